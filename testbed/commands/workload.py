"""`testbed workload`: look at a file of requests, convert it, or share it as statistics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser("workload", help="describe or convert a file of requests")
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    describe = actions.add_parser("describe", help="print lengths, arrivals, clients and sharing")
    _add_input(describe)
    describe.add_argument(
        "--page-size", type=int, default=16, metavar="TOKENS", help="of the cache (default 16)"
    )
    describe.add_argument("--json", action="store_true", help="print the figures as JSON")
    describe.set_defaults(command=_describe)

    convert = actions.add_parser("convert", help="write it in another system's format")
    _add_input(convert)
    convert.add_argument("out", type=Path, metavar="OUT", help="the file to write")
    convert.add_argument("--to", required=True, metavar="FORMAT", help="mooncake or openai_batch")
    _add_output_tokens(convert)
    convert.add_argument(
        "--hash-block",
        type=int,
        default=512,
        metavar="TOKENS",
        help="tokens that each hash id of the Mooncake format names (default 512)",
    )
    convert.add_argument(
        "--model", default="default", help="the model that each line of a batch asks for"
    )
    convert.set_defaults(command=_convert)

    synthesize = actions.add_parser(
        "synthesize", help="write statistics from which a workload like it is made"
    )
    _add_input(synthesize)
    synthesize.add_argument("out", type=Path, metavar="OUT", help="the JSON file to write")
    _add_output_tokens(synthesize)
    synthesize.add_argument(
        "--page-size",
        type=int,
        default=512,
        metavar="TOKENS",
        help="what is shared is counted in pages of so many (default 512)",
    )
    synthesize.add_argument(
        "--compare",
        action="store_true",
        help="print LRU's hit rate by cache size for both, which takes 4 bytes a distinct token",
    )
    synthesize.add_argument(
        "--seed", type=int, default=0, help="of the workload that --compare makes (default 0)"
    )
    synthesize.set_defaults(command=_synthesize)


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file, or a name inside the data folder")
    parser.add_argument("--format", help="instead of finding it by the content")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="a model's tokenizer.json; without one, text is cut about every four characters",
    )
    parser.add_argument(
        "--skip-bad-lines", action="store_true", help="count bad lines instead of stopping"
    )
    parser.add_argument(
        "--block-size",
        type=int,
        default=512,
        metavar="TOKENS",
        help="tokens that each hash id of a Mooncake trace names (default 512)",
    )


def _add_output_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output-tokens",
        type=int,
        metavar="N",
        help="length of the outputs of requests that do not tell theirs",
    )


def _describe(options: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from testbed.commands.workload_page import page
    from testbed.workloads.description import describe
    from testbed.workloads.formats.reader import read_records
    from testbed.workloads.tokenize import load_tokenizer, tokenize

    reader = read_records(
        options.file, options.format, on_error=_on_error(options), block_size=options.block_size
    )
    tokenizer = load_tokenizer(options.tokenizer)
    found = describe(tokenize(_with_progress(reader, None), tokenizer), options.page_size)
    read = {
        "file": str(reader.path),
        "format": reader.format,
        "skipped_lines": reader.skipped_lines,
        "tokenizer": tokenizer.name,
    }
    if options.json:
        print(json.dumps(read | asdict(found), indent=2))
    else:
        print(page(read, found), end="")
    return 0


def _convert(options: argparse.Namespace) -> int:
    from testbed.workloads.formats.writer import LEFT_OUT, write_requests

    workload = _workload(options)
    count = write_requests(
        _with_progress(workload, len(workload)),
        options.out,
        options.to,
        block_size=options.hash_block,
        model=options.model,
    )
    print(f"{count:,} requests written to {options.out}{_skipped(workload)}")
    print(f"left out, for {options.to} has no place for them: {LEFT_OUT[options.to]}")
    return 0


def _synthesize(options: argparse.Namespace) -> int:
    from testbed.workloads import FittedWorkload
    from testbed.workloads.fitted_statistics import save_statistics
    from testbed.workloads.fitting import fit

    workload = _workload(options)
    statistics = fit(_with_progress(workload, len(workload)), options.page_size)
    save_statistics(statistics, options.out)
    print(f"statistics of {len(workload):,} requests written to {options.out}{_skipped(workload)}")
    if options.compare:
        fitted = FittedWorkload(options.out, seed=options.seed)
        print(_comparison(workload, fitted, options.page_size), end="")
    return 0


def _comparison(workload: Any, fitted_workload: Any, page_size: int) -> str:
    """LRU's hit rate at sizes from the largest request to all, for the workload and its fit."""
    from testbed.metrics.miss_ratio import lru_curve
    from testbed.metrics.prompt_paths import prompt_paths

    original, fitted = (
        lru_curve(prompt_paths(_with_progress(each, len(each)), page_size))
        for each in (workload, fitted_workload)
    )
    size = max(original.min_capacity, fitted.min_capacity)
    lines = [f"{'cache tokens':>16}{'LRU hit rate':>14}{'fitted':>10}"]
    while True:
        rates = f"{original.hit_rate(size):>14.3f}{fitted.hit_rate(size):>10.3f}"
        lines.append(f"{size * page_size:>16,}{rates}")
        if size >= original.working_set:
            return "".join(f"{line}\n" for line in lines)
        size = min(size * 2, original.working_set)


def _skipped(workload: Any) -> str:
    return f", {workload.skipped_lines:,} bad lines skipped" if workload.skipped_lines else ""


def _workload(options: argparse.Namespace) -> Any:
    from testbed.workloads.file_workload import FileWorkload

    return FileWorkload(
        options.file,
        options.format,
        tokenizer=None if options.tokenizer is None else str(options.tokenizer),
        output_tokens=options.output_tokens,
        on_error=_on_error(options),
        block_size=options.block_size,
    )


def _on_error(options: argparse.Namespace) -> Any:
    return "skip" if options.skip_bad_lines else "raise"


def _with_progress(items: Iterable[Item], total: int | None) -> Iterator[Item]:
    """The items, with a bar on a terminal's stderr once it takes more than two seconds."""
    from tqdm import tqdm

    hidden = not sys.stderr.isatty()
    yield from tqdm(items, total=total, unit=" requests", delay=2.0, disable=hidden, leave=False)
