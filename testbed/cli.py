"""The `testbed` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from testbed.commands import (
    advise,
    calibrate,
    compare,
    doctor,
    miss_ratio,
    model,
    policy,
    prefix_cost,
    report,
    validate,
    workload,
)

SIGPIPE = 13
"""128 more is what a shell reports of a program that a closed pipe ended."""
COMMANDS = (
    advise,
    calibrate,
    compare,
    doctor,
    miss_ratio,
    model,
    policy,
    prefix_cost,
    report,
    validate,
    workload,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status, 2 after a user's mistake."""
    parser = argparse.ArgumentParser(prog="testbed", description="Prefix caching in LLM serving.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    options = parser.parse_args(arguments)
    try:
        status: int = options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has seen enough (`| head`); nothing may be flushed into the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + SIGPIPE
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status
