"""`testbed workload`: look at a file of requests, convert it, or share it as statistics."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from testbed.commands.input_options import (
    add_input_options,
    open_records,
    open_workload,
    skipped_lines,
    with_progress,
)


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser("workload", help="describe or convert a file of requests")
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    describe = actions.add_parser("describe", help="print lengths, arrivals, clients and sharing")
    add_input_options(describe)
    describe.add_argument(
        "--page-size", type=int, default=16, metavar="TOKENS", help="of the cache (default 16)"
    )
    describe.add_argument("--json", action="store_true", help="print the figures as JSON")
    describe.set_defaults(command=_describe)

    convert = actions.add_parser("convert", help="write it in another system's format")
    add_input_options(convert)
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
    add_input_options(synthesize)
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
    from testbed.workloads.tokenize import load_tokenizer, tokenize

    _require_page("--page-size", options.page_size)
    reader = open_records(options)
    tokenizer = load_tokenizer(options.tokenizer)
    found = describe(tokenize(with_progress(reader), tokenizer), options.page_size)
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
    from testbed.workloads.formats.writer import LEFT_OUT, require_target, write_requests

    require_target(options.to)
    _require_page("--hash-block", options.hash_block)
    _check_out(options)
    workload = open_workload(options)
    count = write_requests(
        with_progress(workload, len(workload)),
        options.out,
        options.to,
        block_size=options.hash_block,
        model=options.model,
    )
    print(f"{count:,} requests written to {options.out}{skipped_lines(workload.skipped_lines)}")
    print(f"left out, for {options.to} has no place for them: {LEFT_OUT[options.to]}")
    if options.to == "openai_batch" and workload.ids_are_made_up:
        print(
            "the token ids are made up and mean nothing to a model: give --tokenizer for a file of "
            "text; one of hash ids or lengths has none to give"
        )
    _print_unknown_sharing(workload)
    return 0


def _synthesize(options: argparse.Namespace) -> int:
    from testbed.workloads import FittedWorkload
    from testbed.workloads.fitted_statistics import save_statistics
    from testbed.workloads.fitting import fit

    _require_page("--page-size", options.page_size)
    _check_out(options)
    workload = open_workload(options)
    statistics = fit(with_progress(workload, len(workload)), options.page_size)
    save_statistics(statistics, options.out)
    skipped = skipped_lines(workload.skipped_lines)
    print(f"statistics of {len(workload):,} requests written to {options.out}{skipped}")
    _print_unknown_sharing(workload)
    if options.compare:
        fitted = FittedWorkload(options.out, seed=options.seed)
        print(_comparison(workload, fitted, options.page_size), end="")
    return 0


def _require_page(option: str, tokens: int) -> None:
    from testbed.workloads.parameters import MAX_LENGTH

    if not 1 <= tokens <= MAX_LENGTH:
        raise ValueError(f"{option}={tokens}: 1 to {MAX_LENGTH} tokens are needed")


def _check_out(options: argparse.Namespace) -> None:
    """Refuse an output that cannot be written, or would destroy what is read, before all work."""
    from testbed.whole_file import check_writable
    from testbed.workloads import find_data_file

    inputs = [find_data_file(options.file)]
    if options.tokenizer is not None and options.tokenizer.is_file():
        inputs.append(options.tokenizer)
    check_writable(options.out, inputs)


def _print_unknown_sharing(workload: Any) -> None:
    if workload.read_as == "lengths":
        print("the file holds lengths alone: what its prompts share is not known, and none is kept")


def _comparison(workload: Any, fitted_workload: Any, page_size: int) -> str:
    """LRU's hit rate at sizes from the largest request to all, for the workload and its fit."""
    from testbed.metrics.miss_ratio import lru_curve
    from testbed.metrics.prompt_paths import prompt_paths

    original, fitted = (
        lru_curve(prompt_paths(with_progress(each, len(each)), page_size))
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
