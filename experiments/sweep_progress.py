"""How far a sweep is: its jobs write it beside their folders, one process shows it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from experiments.progress import ProgressBar, shows_live

JOURNAL = ".sweep-journal"
"""A line for each news of a run: the name of its folder, and a share of its requests or an end."""
FINISHED = "finished"
FAILED = "failed"
NOTE_INTERVAL_S = 1.0
SHOW_INTERVAL_S = 0.5
CLEARED_LINE = "\r\x1b[K"


def note(folder: Path, state: str | float) -> None:
    """Append a run's news; folder: the run's. A disk that refuses it must not fail the run."""
    with suppress(OSError):
        # One write to a file that is opened for appending: other jobs' lines stay whole.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
        journal = os.open(folder.parent / JOURNAL, flags, 0o644)
        try:
            os.write(journal, f"{folder.name} {state}\n".encode())
        finally:
            os.close(journal)


def say(text: str, stream: TextIO | None) -> None:
    """Print a job's line; on a terminal in place of the display, which comes back below.

    A stream that is closed, or whose reader has gone, fails no run.
    """
    if stream is None:
        return
    try:
        print(f"{CLEARED_LINE if shows_live(stream) else ''}{text}", file=stream, flush=True)
    except OSError:
        # What is buffered would fail again at the end of the process.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class RunProgress(ProgressBar):
    """The bar of one run. In a sweep its news go to the journal, and on a terminal only there."""

    def __init__(self, folder: Path, total: int, label: str, unit: str, *, in_sweep: bool) -> None:
        super().__init__(total, label, unit, hidden=in_sweep and shows_live(sys.stderr))
        self._folder, self._total = folder if in_sweep else None, total
        self._noted = time.monotonic()
        if in_sweep:
            note(folder, 0.0)

    def show(self, done: int) -> None:
        """So many are over so far."""
        super().show(done)
        if self._folder is not None and time.monotonic() - self._noted >= NOTE_INTERVAL_S:
            self._noted = time.monotonic()
            note(self._folder, round(done / self._total, 3))


class Tally:
    """Counts of the runs by what the journal says of them.

    names: the runs that count; the journal may also hold those of another sweep.
    """

    def __init__(self, journal: Path, names: Iterable[str]) -> None:
        self._journal = journal
        self._names = frozenset(names)
        self._read = journal.stat().st_size if journal.is_file() else 0
        self._states: dict[str, str] = {}

    def update(self) -> None:
        """Read what has been added."""
        if not self._journal.is_file():
            return
        try:
            with self._journal.open("rb") as file:
                if self._journal.stat().st_size < self._read:
                    self._read = 0  # Another sweep ended, and removed it.
                file.seek(self._read)
                added = file.read()
        except OSError:
            return
        whole = added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            name, _, state = line.partition(" ")
            if name in self._names:
                self._states[name] = state

    @property
    def ended(self) -> int:
        """Runs that finished or failed."""
        return sum(state in (FINISHED, FAILED) for state in self._states.values())

    @property
    def failed(self) -> int:
        """Runs that failed."""
        return sum(state == FAILED for state in self._states.values())

    @property
    def running(self) -> int:
        """Runs that have begun and not ended."""
        return len(self._states) - self.ended

    @property
    def work(self) -> float:
        """Runs that ended, and the shares of the others that are done."""
        shares = (s for s in self._states.values() if s not in (FINISHED, FAILED))
        return self.ended + sum(map(float, shares))


class SweepDisplay:
    """The runs done, running and failed, and the time left, while a launcher is at work.

    A context manager; shows nothing unless standard error is a terminal. folder: the sweep's.
    names: the folders of the runs that are launched. complete: how many were complete before.
    """

    def __init__(self, folder: Path, names: Iterable[str], complete: int) -> None:
        names = list(names)
        self._journal = folder / JOURNAL
        self._tally = Tally(self._journal, names)
        self._complete, self._total = complete, complete + len(names)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._bar = tqdm(
            desc=self._text(),
            total=self._total,
            initial=complete,
            smoothing=0,
            dynamic_ncols=True,
            disable=not shows_live(sys.stderr),
            bar_format="{desc} |{bar}| {elapsed} elapsed, {remaining} left",
        )

    def __enter__(self) -> SweepDisplay:
        if not self._bar.disable:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
            self._show()
        self._bar.close()
        with suppress(OSError):
            self._journal.unlink()

    def _watch(self) -> None:
        while not self._stop.wait(SHOW_INTERVAL_S):
            self._show()

    def _show(self) -> None:
        self._tally.update()
        self._bar.n = self._complete + self._tally.work
        self._bar.set_description_str(self._text())

    def _text(self) -> str:
        tally = self._tally
        parts = [f"sweep: {self._complete + tally.ended} of {self._total} runs"]
        parts += [f"{tally.running} running"] if tally.running else []
        parts += [f"{tally.failed} failed"] if tally.failed else []
        return ", ".join(parts)
