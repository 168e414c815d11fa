"""The parts, one after the other in one process; each writes itself down as it goes."""

from __future__ import annotations

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

from experiments.gpu.report import report

PARTS: Mapping[str, float] = MappingProxyType(
    {
        "ceilings": 15,
        "correctness": 50,
        "kernels": 40,
        "tokens": 75,
        "steps": 120,
        "sharing": 40,
        "runs": 90,
        "launches": 35,
        "throughput": 70,
    }
)
"""Seconds after which a part starts nothing more. Each is a module here whose run(setting) yields
what it has measured so far, whenever it has more; a key "wrong" counts failures. The one that runs
others' code is the last: it may take its time, and the device's memory."""
VERSIONS = ("torch", "triton", "transformers", "numpy")
LOST = 3
"""Exit status of a process whose device answers no more."""


def run_part(name: str, folder: Path, smoke: bool) -> bool:
    """Measure one part, and write it down as it goes; whether all is well."""
    import torch

    from experiments.gpu.setting import Setting

    began = perf_counter()
    device = torch.device("cpu" if smoke else "cuda")
    setting = Setting(device, smoke, began + PARTS[name], folder)
    print(f"== {name} on {setting.card}", flush=True)
    record: dict[str, Any] = {
        "card": setting.card,
        "smoke": smoke,
        "versions": {package: version(package) for package in VERSIONS},
    }

    def keep(**more: Any) -> None:
        record.update(more, seconds=perf_counter() - began)
        partial = folder / f"{name}.json.partial"
        partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        partial.rename(folder / f"{name}.json")

    keep(finished=False)
    try:
        for measured in import_module(f"experiments.gpu.{name}").run(setting):
            keep(**measured)
        keep(finished=True)
    except Exception as error:
        traceback.print_exc()
        keep(failed=f"{type(error).__name__}: {error}")
    return record["finished"] and not record.get("wrong")


def run_parts(names: list[str], output: Path, smoke: bool, begun: Any) -> None:
    """Run parts in order, print the report, and exit: 1 if one failed or is wrong, LOST if the rest
    needs a new process. begun: a shared integer, the number of parts that have begun."""
    import torch

    if not smoke and not torch.cuda.is_available():
        print("No GPU here: nothing to measure.")
        return
    card = "smoke" if smoke else "-".join(torch.cuda.get_device_name().lower().split())
    folder = output / card
    folder.mkdir(parents=True, exist_ok=True)
    well = True
    for name in names:
        begun.value += 1
        well = run_part(name, folder, smoke) and well
        if not smoke:
            _give_memory_back()
    print("\n".join(report(folder)))
    sys.exit(0 if well else 1)


def _give_memory_back() -> None:
    """The next part's pool needs the memory of the last one's."""
    import torch

    gc.collect()
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        # After a bad access every call fails, those of destructors too.
        print(f"The device is lost: {error}", flush=True)
        os._exit(LOST)
