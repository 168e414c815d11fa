"""Bars: what a benchmark must reach, and whether a figure does."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

_HOLDS = {">=": operator.ge, "<": operator.lt, "==": operator.eq}


@dataclass(frozen=True)
class Bar:
    """A figure's name, the value it is held to, and the unit of both ("" for a ratio)."""

    figure: str
    relation: Literal[">=", "<", "=="]
    value: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.figure} {self.relation} {_number(self.value, self.unit)}"

    def reached(self, figure: float) -> Reached:
        """The bar beside what was measured."""
        return Reached(self, figure, _HOLDS[self.relation](figure, self.value))


class Reached(NamedTuple):
    """A bar, the figure measured for it, and whether the bar holds."""

    bar: Bar
    figure: float
    holds: bool

    def __str__(self) -> str:
        bar = self.bar
        figure, value = (_number(number, bar.unit) for number in (self.figure, bar.value))
        verdict = "ok" if self.holds else "BELOW THE BAR"
        return f"{bar.figure}: {figure} (bar {bar.relation} {value}) {verdict}"


class Benchmark(NamedTuple):
    """run() measures both sides, prints what it saw, and returns a figure for each of the bars."""

    name: str
    question: str
    bars: tuple[Bar, ...]
    run: Callable[[], list[Reached]]


def _number(value: float, unit: str) -> str:
    if not unit:
        return f"{value:.2f}x"
    digits = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    return f"{digits} {unit}"
