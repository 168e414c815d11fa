"""Workload, ProgramWorkload: what a run serves, re-iterable and in arrival order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from testbed.core.program import Program
from testbed.core.request import Request


class Workload(Protocol):
    """A finite sequence of requests that can be walked any number of times, always the same.

    Requests come in arrival order with ids 0 to len - 1, and are built as they are yielded, so that
    a trace of many million tokens never lies in memory at once. Randomness comes from the
    workload's own seed alone.
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def skipped_lines(self) -> int:
        """Bad input lines that were left out on request; 0 where nothing was read."""
        ...

    def __len__(self) -> int:
        """The number of requests."""
        ...

    def __iter__(self) -> Iterator[Request]:
        """A fresh walk from the first request."""
        ...


@runtime_checkable
class ProgramWorkload(Protocol):
    """A finite sequence of LM programs that can be walked any number of times, always the same.

    Programs come in arrival order with ids 0 to len - 1. A program's randomness comes from the
    workload's seed and the program's id alone, so that it is the same whenever it runs. hints: send
    the common prefix of a Fork ahead.
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def skipped_lines(self) -> int:
        """Bad input lines that were left out on request; 0 where nothing was read."""
        ...

    @property
    def hints(self) -> bool:
        """See ProgramRunner."""
        ...

    def __len__(self) -> int:
        """The number of programs."""
        ...

    def __iter__(self) -> Iterator[Program]:
        """A fresh walk from the first program."""
        ...
