"""What the commands that read a file of requests have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from testbed.workloads.file_workload import FileWorkload
    from testbed.workloads.formats.reader import RecordReader

Item = TypeVar("Item")


def add_input_options(parser: argparse.ArgumentParser) -> None:
    """The file, and the options that say how it is read."""
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
        help="tokens that each hash id of a Mooncake trace names (default: %(default)s)",
    )


def open_records(options: argparse.Namespace) -> RecordReader:
    """The file's requests as they stand there, before their text is tokenized."""
    from testbed.workloads.formats.reader import read_records

    if options.block_size < 1:
        raise ValueError(f"--block-size={options.block_size}: at least 1 is needed")
    return read_records(
        options.file,
        options.format,
        on_error="skip" if options.skip_bad_lines else "raise",
        block_size=options.block_size,
    )


def open_workload(options: argparse.Namespace) -> FileWorkload:
    """The file as a workload; `--output-tokens` is the length of outputs that it does not tell."""
    from testbed.workloads.file_workload import FileWorkload

    return FileWorkload(
        options.file,
        options.format,
        tokenizer=None if options.tokenizer is None else str(options.tokenizer),
        output_tokens=options.output_tokens,
        on_error="skip" if options.skip_bad_lines else "raise",
        block_size=options.block_size,
    )


def skipped_lines(count: int) -> str:
    """How many bad lines were left out, to go behind a count of requests; empty if none were."""
    return f", {count:,} bad lines skipped" if count else ""


def with_progress(
    items: Iterable[Item], total: int | None = None, unit: str = "requests"
) -> Iterator[Item]:
    """The items, with a bar on a terminal's stderr once it takes more than two seconds."""
    from tqdm import tqdm

    hidden = not sys.stderr.isatty()
    yield from tqdm(items, total=total, unit=f" {unit}", delay=2.0, disable=hidden, leave=False)
