"""`testbed advise`: what the order of prompts costs on real traffic, and what wins it back."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from testbed.commands.input_options import add_input_options, open_records


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "advise",
        help="audit the prompts of a log, and forecast hit rates",
        description="Read a log of prompts (chat logs, prompts, traces; any size), find what keeps "
        "its prompts from sharing their beginnings, and say what mended prompts, a larger cache or "
        "a better scheduler would win. Nothing is recommended below 200 requests, or of a file "
        "that has lengths alone.",
    )
    add_input_options(parser)
    parser.add_argument(
        "--run-requests",
        type=int,
        default=1000,
        metavar="N",
        help="consecutive requests in a run of the sample, up to 16 of which are analysed "
        "(default: %(default)s); memory grows with it",
    )
    serving = parser.add_argument_group("serving")
    serving.add_argument(
        "--cache-tokens",
        type=int,
        metavar="TOKENS",
        help="KV cache of one replica (default: what --model leaves free on --hardware)",
    )
    serving.add_argument("--model", default="llama-3.1-8b", help="(default: %(default)s)")
    serving.add_argument("--hardware", default="h100", help="(default: %(default)s)")
    serving.add_argument(
        "--concurrency", type=int, default=64, metavar="N", help="(default: %(default)s)"
    )
    serving.add_argument(
        "--page-size", type=int, default=16, metavar="TOKENS", help="(default: %(default)s)"
    )
    serving.add_argument(
        "--min-prefix",
        type=int,
        default=0,
        metavar="TOKENS",
        help="from which on a prefix is cached, if more than a page (1024 with several providers)",
    )
    thresholds = parser.add_argument_group("thresholds")
    thresholds.add_argument(
        "--go", type=float, default=0.40, help="expected hit rate to go (default: %(default)s)"
    )
    thresholds.add_argument(
        "--no-go", type=float, default=0.30, help="and not to (default: %(default)s)"
    )
    thresholds.add_argument(
        "--min-requests", type=int, default=200, metavar="N", help="(default: %(default)s)"
    )
    pages = parser.add_argument_group("pages, besides the one on the terminal")
    pages.add_argument("--markdown", type=Path, metavar="FILE")
    pages.add_argument(
        "--json", type=Path, metavar="FILE", help="with the numbers behind each sentence"
    )
    parser.set_defaults(command=_advise)


def _advise(options: argparse.Namespace) -> int:
    import json

    from testbed.advisor.advice import advise
    from testbed.advisor.forecast import Setting
    from testbed.advisor.page import markdown_page, text_page
    from testbed.advisor.statements import Section, say
    from testbed.advisor.verdict import Thresholds
    from testbed.workloads.tokenize import load_tokenizer

    setting = Setting(_cache_tokens(options), options.concurrency, options.page_size)
    thresholds = Thresholds(options.go, options.no_go, options.min_requests)
    if options.min_prefix < 0:
        raise ValueError(f"min_prefix={options.min_prefix}: at least 0 is needed")
    reader = open_records(options)
    _check_outputs(options, reader.path)
    with _Progress() as progress:
        advice = advise(
            reader,
            load_tokenizer(options.tokenizer),
            setting,
            thresholds,
            min_prefix=options.min_prefix,
            run_requests=options.run_requests,
            progress=progress.show,
        )
    sections = advice.sections
    if reader.skipped_lines:
        skipped = say(
            "{skipped:,} bad {lines} skipped.",
            skipped=reader.skipped_lines,
            lines="line was" if reader.skipped_lines == 1 else "lines were",
        )
        first = Section(sections[0].title, [*sections[0].statements, skipped])
        sections = [first, *sections[1:]]
    title = f"Advice on {reader.path.name} ({reader.format})"
    print(text_page(title, sections), end="")
    if options.markdown is not None:
        _write(options.markdown, markdown_page(title, sections))
    if options.json is not None:
        page = {
            "file": reader.path.name,
            "format": reader.format,
            "skipped_lines": reader.skipped_lines,
            **advice.as_json(),
        }
        _write(options.json, json.dumps(page, indent=1, allow_nan=False) + "\n")
    return 0


def _cache_tokens(options: argparse.Namespace) -> int:
    from testbed.sim.hardware import get_accelerator, get_model, kv_pool_tokens

    if options.cache_tokens is not None:
        return int(options.cache_tokens)
    return kv_pool_tokens(get_model(options.model), get_accelerator(options.hardware))


def _check_outputs(options: argparse.Namespace, log: Path) -> None:
    """OSError before anything is read, if a page could not be written or would replace a file that
    is read or the other page."""
    from testbed.whole_file import check_writable

    inputs = [log, *([options.tokenizer] if options.tokenizer is not None else [])]
    outputs = [
        check_writable(path, [one for one in inputs if Path(one).exists()])
        for path in (options.markdown, options.json)
        if path is not None
    ]
    if len(outputs) == 2 and outputs[0] == outputs[1]:
        raise OSError(
            f"--markdown={options.markdown}, --json={options.json}: they are one file; two are "
            "needed"
        )


def _write(path: Path, text: str) -> None:
    from testbed.whole_file import whole_file

    with whole_file(path) as stream:
        stream.write(text.encode("utf-8"))


class _Progress:
    """A bar on a terminal's stderr for each stage; a context manager."""

    def __init__(self) -> None:
        self._stage = ""
        self._bar: Any = None

    def show(self, stage: str, count: int) -> None:
        """`count` more requests of the stage are done."""
        from tqdm import tqdm

        if stage != self._stage:
            self.close()
            self._stage = stage
            self._bar = tqdm(
                desc=stage, unit="request", delay=2.0, leave=False, disable=not sys.stderr.isatty()
            )
        self._bar.update(count)

    def close(self) -> None:
        """Take the bar off the terminal."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
