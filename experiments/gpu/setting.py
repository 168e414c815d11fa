"""Where a part runs, how large its problems are, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import torch

Size = TypeVar("Size")


@dataclass(frozen=True)
class Setting:
    """device: what is measured. smoke: tiny sizes on the CPU, kernels in Triton's interpreter: the
    code runs, its figures mean nothing. deadline: perf_counter() after which a part starts nothing
    more. folder: where a part leaves what is no JSON."""

    device: torch.device
    smoke: bool
    deadline: float = field(compare=False)
    folder: Path

    def size(self, full: Size, smoke: Size) -> Size:
        """The one of the two that is asked for."""
        return smoke if self.smoke else full

    @property
    def dtype(self) -> torch.dtype:
        """Of models and inputs; the interpreter multiplies bfloat16 tiles as if they were bits."""
        return self.size(torch.bfloat16, torch.float32)

    @property
    def time_is_up(self) -> bool:
        return perf_counter() >= self.deadline

    def synchronise(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def card(self) -> str:
        """The device's name."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
