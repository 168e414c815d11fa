"""`testbed compare`: the runs of a folder side by side, or two folders before and after."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.whole_file import check_writable

if TYPE_CHECKING:
    from testbed.metrics.loading import Results


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "compare",
        help="print the runs of a folder side by side, or what changed between two folders",
        description="With one folder: its runs side by side, a row for each setting. With two: the "
        "second against the first, paired by seed, workload and setting, with a verdict for each "
        "metric; the exit status is 0 if nothing got worse, 1 if something did or is missing "
        "after, 2 after a mistake.",
    )
    parser.add_argument("results", help="folder of a run or of a sweep")
    parser.add_argument("after", nargs="?", help="another one, to be compared with the first")
    parser.add_argument(
        "--by", action="append", default=[], metavar="OPTION", help="what makes a row; repeatable"
    )
    one = parser.add_argument_group("with one folder")
    one.add_argument("--baseline", metavar="ROW", help="also print the others less this row")
    one.add_argument("--figure", metavar="STEM", help="also write STEM.pdf, STEM.png and STEM.csv")
    one.add_argument("--frontier", metavar="STEM", help="likewise, hit rate against service gaps")
    two = parser.add_argument_group("with two folders")
    two.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="COLUMN",
        help="what is judged, by its name in summary.json; repeatable (default: all of the table)",
    )
    two.add_argument(
        "--margin",
        type=float,
        default=0.0,
        metavar="FRACTION",
        help="differences up to this part of the value before do not count (default: %(default)s)",
    )
    parser.set_defaults(command=_compare)


def _compare(options: argparse.Namespace) -> int:
    of_one = [
        f"--{name}"
        for name in ("baseline", "figure", "frontier")
        if vars(options)[name] is not None
    ]
    of_two = [f"--{name}" for name in ("metric", "margin") if vars(options)[name]]
    if options.after is not None and of_one:
        raise ValueError(f"{of_one[0]}: only with one folder")
    if options.after is None and of_two:
        raise ValueError(f"{of_two[0]}: only with two folders, before and after")
    return _side_by_side(options) if options.after is None else _before_and_after(options)


def _side_by_side(options: argparse.Namespace) -> int:
    from testbed.reports.comparison import compare
    from testbed.reports.gap_lines import gap_lines
    from testbed.reports.table import comparison_table

    stems = {name: _stem(name, vars(options)[name]) for name in ("figure", "frontier")}
    results = load_results(options.results)
    comparison = compare(results, options.by)
    # The figures first: a table is printed only if all that was asked for worked out.
    table = comparison_table(comparison, options.baseline)
    if gaps := gap_lines(results, comparison):
        table += f"\n{gaps}"
    written: list[Path] = []
    if stems["figure"] is not None:
        from testbed.reports.figures import plot_policies

        written += plot_policies(comparison, stems["figure"])
    if stems["frontier"] is not None:
        from testbed.reports.frontier import plot_frontier

        written += plot_frontier(comparison, stems["frontier"])
    if written:
        table += f"\nfigure: {', '.join(map(str, written))}\n"
    print(table, end="")
    return 0


def _before_and_after(options: argparse.Namespace) -> int:
    from testbed.metrics.pairing import pair_runs
    from testbed.reports.changes import changes_table, judge_pairs

    sides = [load_results(path) for path in (options.results, options.after)]
    pairs = pair_runs(sides[0], sides[1], options.by)
    judgements = judge_pairs(pairs, options.metric, options.margin)
    print(f"before: {options.results}, {_origin(sides[0])}")
    print(f"after:  {options.after}, {_origin(sides[1])}")
    print(f"\n{changes_table(pairs, judgements, options.margin)}", end="")
    return 1 if pairs.missing or any(j.change.failed for j in judgements) else 0


def load_results(path: str | Path) -> Results:
    """The runs of a folder; ValueError, in one line, where there is none."""
    from testbed.metrics.loading import load
    from testbed.metrics.results import ResultsError

    try:
        results = load(path)
        results.summary  # noqa: B018  read at once, while a damaged file can still be named
    except ResultsError as error:
        raise ValueError(" ".join(str(error).split())) from error
    return results


def _origin(results: Results) -> str:
    """How many runs, and of which commits."""
    from testbed.metrics.loading import commit_of

    commits = dict.fromkeys(map(commit_of, results.manifests.values()))
    number = len(results.folders)
    return f"{number} run{'s' * (number > 1)}, commit {', '.join(commits)}"


def _stem(option: str, text: str | None) -> Path | None:
    """Where figures go, without what its files end in; an OSError if nothing can be there."""
    if text is None:
        return None
    path = Path(text)
    if not path.name:
        raise ValueError(f"--{option}={text!r}: the beginning of a file's name is needed")
    stem = path.with_suffix("") if path.suffix in (".pdf", ".png", ".csv") else path
    for suffix in (".pdf", ".png", ".csv"):
        check_writable(f"{stem}{suffix}")
    return stem
