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

SIGINT, SIGPIPE = 2, 13
"""128 more is what a shell reports of a program that Ctrl-C, or a closed pipe, ended."""
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
    if sys.stdout is None:
        # Closed by the caller; the next file that is opened would take its place.
        print("error: the standard output is closed; give it a file or /dev/null", file=sys.stderr)
        return 2
    try:
        status: int = options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has seen enough (`| head`); nothing may be flushed into the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + SIGPIPE
    except KeyboardInterrupt:
        return 128 + SIGINT
    except Exception as error:
        if not _is_users_mistake(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status


def _is_users_mistake(error: Exception) -> bool:
    # Loaded if one was raised; to import it here would load Arrow for every command.
    results = sys.modules.get("testbed.metrics.results")
    broken_results = () if results is None else (results.ResultsError,)
    return isinstance(error, (ValueError, OSError, *broken_results))
