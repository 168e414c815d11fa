"""Everything that needs a GPU, in one command of about ten minutes.

    PYTHONPATH=.:kernels python -m experiments.gpu [--output results] [--parts NAME ...] [--smoke]

Needs torch, triton, transformers and numpy; no network, no simulator. Each part writes
OUTPUT/<card>/<part>.json as it ends, so that a run that is cut short leaves what it had; a part
that fails does not stop the others. `runs` writes engine runs too: experiments.gpu.recorded replays
them where the simulator is installed. Last comes the table of experiments.gpu.report.

The exit status is 1 if a result is wrong or a part failed, else 0. Without a GPU it says so and
ends with 0. --smoke runs the code of every part at tiny sizes on the CPU, kernels in Triton's
interpreter, and writes to OUTPUT/smoke: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

PARTS: Mapping[str, float] = MappingProxyType(
    {
        "ceilings": 15,
        "correctness": 50,
        "kernels": 40,
        "tokens": 45,
        "steps": 120,
        "sharing": 40,
        "runs": 90,
        "throughput": 70,
        "launches": 35,
    }
)
"""Seconds after which a part starts nothing more. Each is a module here with run(setting); a key
"wrong" of what it returns counts failures."""
VERSIONS = ("torch", "triton", "transformers", "numpy")


def run_part(name: str, folder: Path, smoke: bool) -> bool:
    """Measure and write down one part; whether all is well."""
    import torch

    from experiments.gpu.setting import Setting

    began = perf_counter()
    device = torch.device("cpu" if smoke else "cuda")
    setting = Setting(device, smoke, began + PARTS[name], folder)
    print(f"== {name} on {setting.card}", flush=True)
    try:
        measured: dict[str, Any] = import_module(f"experiments.gpu.{name}").run(setting)
    except Exception as error:
        traceback.print_exc()
        measured = {"failed": f"{type(error).__name__}: {error}"}
    record = {
        "card": setting.card,
        "smoke": smoke,
        "versions": {package: version(package) for package in VERSIONS},
        "seconds": perf_counter() - began,
        **measured,
    }
    partial = folder / f"{name}.json.partial"
    partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    partial.rename(folder / f"{name}.json")
    # The next part's pool needs the memory of this one's.
    gc.collect()
    if not smoke:
        torch.cuda.empty_cache()
    return not measured.get("wrong") and "failed" not in measured


def main(arguments: list[str]) -> int:
    """Run the parts that the arguments name, in order."""
    parser = argparse.ArgumentParser(prog="experiments.gpu")
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on the CPU")
    options = parser.parse_args(arguments)
    if options.smoke:
        # Read when Triton is imported, which no import has done yet.
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    if not options.smoke and not torch.cuda.is_available():
        print("No GPU here: nothing to measure.")
        return 0
    card = "smoke" if options.smoke else "-".join(torch.cuda.get_device_name().lower().split())
    folder = options.output / card
    folder.mkdir(parents=True, exist_ok=True)
    well = [run_part(name, folder, options.smoke) for name in options.parts]

    from experiments.gpu.report import report

    print("\n".join(report(folder)))
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
