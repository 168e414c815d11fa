"""python -m tests.cases [DIR]: run a folder's cases; exit 1 if one fails."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.cases.folder import Outcome, run_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each failure as it is found, then what was skipped, then the totals."""
    parser = argparse.ArgumentParser(prog="python -m tests.cases", description=__doc__)
    parser.add_argument(
        "dir",
        nargs="?",
        type=Path,
        default=Path(__file__).parent,
        metavar="DIR",
        help="a folder of *.json case files (default: the cases of this project)",
    )
    outcomes: list[Outcome] = []
    for outcome in run_folder(parser.parse_args(arguments).dir):
        outcomes.append(outcome)
        for failure in outcome.failures:
            print(f"{outcome.name} {failure}", flush=True)
    skipped = Counter(skip for outcome in outcomes for skip in outcome.skipped)
    for (field, reason), count in skipped.items():
        print(f"skipped in {count} instances: {field} ({reason})")
    failed = sum(bool(outcome.failures) for outcome in outcomes)
    passed = sum(bool(outcome.checked and not outcome.failures) for outcome in outcomes)
    if skipped:
        print(f"{skipped.total()} skipped")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
