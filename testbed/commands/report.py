"""`testbed report`: one HTML page about a run or a sweep."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.core.request import Request
    from testbed.metrics.loading import Results

WORKLOADS = "testbed.workloads."
"""Only what lies here is made again from a stored config: a config may come from anywhere."""


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "report",
        help="write one HTML page about a run or a sweep",
        description="Write the question, warnings, tables, figures and interactive views of a run "
        "or a sweep as one HTML page that needs nothing else, and no network.",
    )
    parser.add_argument("results", type=Path, help="folder of a run or of a sweep")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="(default: report.html in the folder)"
    )
    parser.add_argument(
        "--by", action="append", default=[], metavar="OPTION", help="what makes a row; repeatable"
    )
    parser.add_argument(
        "--run",
        action="append",
        default=[],
        metavar="NAME",
        help="whose steps and prompts the page holds; repeatable (default: the first seed of each "
        "setting, of six at most)",
    )
    parser.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from testbed.commands.compare import load_results
    from testbed.reports.page.document import report_page
    from testbed.reports.style import write_whole

    results = load_results(options.results)
    is_run = (options.results / "config.yaml").is_file()
    output = options.output or (
        # A run's folder holds the run and nothing else.
        options.results.with_name(f"{options.results.resolve().name}.html")
        if is_run
        else options.results / "report.html"
    )
    bar: Any = tqdm(desc="report", unit="run", delay=2.0, disable=not sys.stderr.isatty())
    with bar:
        page = report_page(
            results,
            options.results,
            by=options.by,
            shown=options.run,
            prompts=lambda run: asked(results, run),
            progress=lambda run: bar.update(),
        )
    print(f"report: {write_whole(output, page.encode())} ({len(page) / 1e6:.1f} MB)")
    return 0


def asked(results: Results, run: str) -> Iterable[Request] | None:
    """What a run was asked: as the engine wrote it down, or made again from the run's config.

    None where the workload is not one of testbed.workloads, or its data is not there.
    """
    from testbed.core.records import ADDED_COLUMNS, added_requests
    from testbed.core.request import Request
    from testbed.metrics.loading import Results

    added = Results({run: results.folders[run]}).added
    if len(added):
        return added_requests({name: added[name].to_numpy() for name in ADDED_COLUMNS})
    config = results.configs[run].get("workload")
    if not isinstance(config, Mapping) or "_target_" not in config:
        return None
    try:
        made: Iterable[Request] = _built(config)
        # Programs ask as they go: their prompts are not known before they run.
        return made if isinstance(next(iter(made), None), Request) else None
    except (ImportError, AttributeError, TypeError, ValueError, OSError):
        return None


def _built(value: Any) -> Any:
    """The objects that a stored config describes; ValueError for any from elsewhere."""
    if isinstance(value, Mapping):
        parts = {name: _built(part) for name, part in value.items() if name != "_target_"}
        if "_target_" not in value:
            return parts
        target = str(value["_target_"])
        if not target.startswith(WORKLOADS):
            raise ValueError(f"_target_={target!r}: one below {WORKLOADS} is needed")
        module, _, name = target.rpartition(".")
        return getattr(import_module(module), name)(**parts)
    return [_built(part) for part in value] if isinstance(value, list) else value
