"""Everything that needs a GPU, in one run of a few minutes.

    python -m experiments.gpu [--output results] [--parts ceilings correctness kernels launches]

Needs torch, triton and numpy, no network, no simulator. Writes results/<card>/<part>.json as each
part ends, so that a run that is cut short leaves what it had. Without a GPU it says so; the exit
status is 0 then, and 1 if a kernel is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from experiments.gpu import ceilings, correctness, kernels, launches

Part = Callable[[], dict[str, Any]]
"""Measures, prints what it sees, and returns what is kept. A key "wrong" counts failures."""

PARTS = MappingProxyType(
    {
        "ceilings": ceilings.run,
        "correctness": correctness.run,
        "kernels": kernels.run,
        "launches": launches.run,
    }
)


def main(arguments: list[str]) -> int:
    """Run the parts that the arguments name, in order."""
    parser = argparse.ArgumentParser(prog="experiments.gpu")
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("No GPU here: nothing to measure.")
        return 0
    card = torch.cuda.get_device_name()
    folder = options.output / "-".join(card.lower().split())
    folder.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for name in options.parts:
        print(f"== {name} on {card}", flush=True)
        began = time.perf_counter()
        measured = PARTS[name]()
        wrong += measured.get("wrong", 0)
        record = {
            "card": card,
            "torch": torch.__version__,
            "seconds": time.perf_counter() - began,
            **measured,
        }
        (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
