"""The `testbed` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from testbed.commands import calibrate, compare, model, policy, validate

COMMANDS = (calibrate, compare, model, policy, validate)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status, 2 after a user's mistake."""
    parser = argparse.ArgumentParser(prog="testbed", description="Prefix caching in LLM serving.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    options = parser.parse_args(arguments)
    try:
        status: int = options.command(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status
