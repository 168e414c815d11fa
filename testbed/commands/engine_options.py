"""What the commands that run the engine have in common."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.engine.engine import Engine


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """The options that `build_engine` reads."""
    parser.add_argument(
        "--model",
        default="tiny-llama",
        help="a hub id, a local folder, smollm2, or one of tiny-llama, tiny-qwen2, tiny-qwen3, "
        "tiny-mistral and tiny-smollm2, which need no download (default: %(default)s)",
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        help="of weights and KV (default: %(default)s)",
    )
    parser.add_argument(
        "--threads", type=positive, default=1, metavar="N", help="of torch (default: 1)"
    )
    parser.add_argument(
        "--share-prefixes",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let the sequences of a step read the pages that they share once (default: yes)",
    )


def build_engine(options: argparse.Namespace) -> Engine:
    """The engine that the options ask for; ValueError if torch is missing or has no such device."""
    try:
        import torch

        from testbed.engine.engine import Engine
        from testbed.engine.model import load_model
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{error.name} is not installed: pip install 'radix-testbed[engine]'"
        ) from error
    if options.device.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"device={options.device!r}: cpu or cuda is needed")
    if options.device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"device={options.device!r}: torch finds no GPU here; cpu works")
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    model = load_model(options.model, dtype=dtype, device=options.device)
    return Engine(model, share_prefixes=options.share_prefixes)


def latency_file(engine: Engine, hardware: str) -> Path:
    """Where the latency model of a model on some hardware is kept for the user."""
    from testbed.engine.model import cache_folder

    dtype = str(engine.model.dtype).removeprefix("torch.")
    return cache_folder() / "latency" / _slug(hardware) / f"{_slug(engine.model.name)}-{dtype}.json"


@contextmanager
def progress_bar(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """Shows on stderr how many requests are done; yields what is told."""
    from tqdm import tqdm

    bar: Any = tqdm(
        total=total,
        desc=label,
        unit="request",
        delay=2.0,
        mininterval=0.2 if sys.stderr.isatty() else 5.0,
    )
    with bar:
        yield lambda done: bar.update(done - bar.n)


def after(before: int, show: Callable[[int], None]) -> Callable[[int], None]:
    """Tells `show` what is done in a part that so many requests went before."""
    return lambda done: show(before + done)


def positive(text: str) -> int:
    """An argument that is a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 on is needed")
    return int(text)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
