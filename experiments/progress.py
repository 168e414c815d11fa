"""A progress bar on stderr for runs of more than two seconds, on a terminal or in a log."""

from __future__ import annotations

import sys
from typing import TextIO

from tqdm import tqdm

DELAY_S = 2.0


def shows_live(stream: TextIO | None) -> bool:
    """Whether what is drawn there can be drawn over; None: the stream is closed."""
    return stream is not None and stream.isatty()


class Lines:
    """A stream that gives each state of a bar a line of its own, for files and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write what the bar shows, without the control characters that move the cursor."""
        if shown := text.strip():
            self._stream.write(f"{shown}\n")

    def flush(self) -> None:
        """Flush the stream behind."""
        self._stream.flush()


class ProgressBar:
    """Requests, or whatever `unit` says, done of `total`; a context manager."""

    def __init__(
        self, total: int, label: str, unit: str = "requests", *, hidden: bool = False
    ) -> None:
        on_terminal = shows_live(sys.stderr)
        self._bar = tqdm(
            total=total,
            desc=label,
            unit=f" {unit}",
            delay=DELAY_S,
            disable=hidden or sys.stderr is None,
            miniters=1,
            mininterval=0.2 if on_terminal else 5.0,
            file=sys.stderr if on_terminal else Lines(sys.stderr),
            bar_format=None
            if on_terminal
            else f"{{desc}}: {{n_fmt}} of {{total_fmt}} {unit}, {{elapsed}} elapsed, {{rate_fmt}}",
        )

    def show(self, done: int) -> None:
        """`done` requests have left so far."""
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
