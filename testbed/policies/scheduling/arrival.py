"""Admission in the order of arrival."""

from __future__ import annotations

from typing import Literal

from testbed.core.policy import Proposals, SchedulingPolicy
from testbed.core.views import SchedulerView

OnMisfit = Literal["stop", "skip"]
"""After a proposal that did not fit: end the pass (head-of-line blocking, as SGLang does), or try
the next one, at a cost of O(waiting) for every pass that changes something while memory is full."""


def check_on_misfit(on_misfit: str) -> None:
    """Raise ValueError unless it is one of the two choices."""
    if on_misfit not in ("stop", "skip"):
        raise ValueError(f"on_misfit={on_misfit!r}: stop or skip is needed")


class Fcfs(SchedulingPolicy):
    """First come, first served; preempted sequences first. vLLM's and SGLang's default."""

    reacts_to_decoding = False

    def __init__(self, on_misfit: OnMisfit = "stop") -> None:
        check_on_misfit(on_misfit)
        self._stop = on_misfit == "stop"
        # Whoever does not fit may be passed by others that do, again and again.
        self.may_starve = on_misfit == "skip"

    def candidates(self, view: SchedulerView) -> Proposals:
        """The queue, front to back."""
        for sequence in view.waiting:
            outcome = yield sequence
            if not outcome and self._stop:
                return
