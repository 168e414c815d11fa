"""`testbed report`: one HTML page about a run or a sweep."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from hashlib import file_digest
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.whole_file import check_writable

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
    parser.add_argument("results", help="folder of a run or of a sweep")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="(default: report.html in the folder)"
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
    folder = Path(options.results)
    output = options.output
    if output is None:
        is_run = (folder / "config.yaml").is_file()
        own = folder.resolve()
        output = own.with_name(f"{own.name}.html") if is_run else folder / "report.html"
    target = check_writable(output)
    for run in results.folders.values():
        if run.resolve() in target.parents:
            raise ValueError(f"output {output}: {run} is the folder of a run, which holds no more")
    bar: Any = tqdm(desc="report", unit="view", delay=2.0, disable=not sys.stderr.isatty())
    with bar:
        page = report_page(
            results,
            folder,
            by=options.by,
            shown=options.run,
            prompts=lambda run: asked(results, run),
            progress=lambda run: bar.update(),
        )
    print(f"report: {write_whole(Path(output), page.encode())} ({len(page) / 1e6:.1f} MB)")
    return 0


def asked(results: Results, run: str) -> Iterable[Request]:
    """What a run was asked: as the engine wrote it down, or made again from the run's config.

    Raises NoPrompts where the workload is not one of testbed.workloads, where its data is not
    there or not what the run read, and for LM programs.
    """
    from testbed.core.records import ADDED_COLUMNS, added_requests
    from testbed.core.request import Request
    from testbed.metrics.loading import Results
    from testbed.reports.page.prefixes import NoPrompts

    added = Results({run: results.folders[run]}).added
    if len(added):
        return added_requests({name: added[name].to_numpy() for name in ADDED_COLUMNS})
    config = results.configs[run].get("workload")
    if not isinstance(config, Mapping) or "_target_" not in config:
        raise NoPrompts("its config does not say how its workload is made")
    try:
        _check_data(config, results.configs[run].get("inputs") or {})
        made: Iterable[Request] = _built(config)
        first = next(iter(made), None)
    except FileNotFoundError as error:
        # Its message lists folders of this machine, which are nobody else's business.
        raise NoPrompts("a file that its workload reads is not here") from error
    except (ImportError, AttributeError, TypeError, ValueError, OSError) as error:
        raise NoPrompts(" ".join(str(error).split()).rstrip(".")) from error
    if not isinstance(first, Request):
        raise NoPrompts(
            "LM programs ask as they go, by what they were answered, and a simulation does not "
            "write down prompts"
        )
    return made


def _check_data(workload: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    """ValueError if a file that the workload reads is not what it was when the run read it.

    digests: the config's `inputs`, 16 hex digits of the SHA-256 of each; older runs have none.
    """
    from testbed.workloads.data_folder import find_data_file

    for option, name in (("path", "workload"), ("tokenizer", "tokenizer")):
        if name in digests and option in workload:
            path = find_data_file(workload[option])
            with path.open("rb") as stream:
                found = file_digest(stream, "sha256").hexdigest()
            if not found.startswith(digests[name]):
                raise ValueError(f"{workload[option]} has changed since the run")


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
