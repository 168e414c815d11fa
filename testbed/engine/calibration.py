"""Steps of every size on a real model, for a latency model to be fitted to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.records import Columns, joined
from testbed.core.request import Request, Tokens
from testbed.engine.engine import Engine
from testbed.policies import registry


@dataclass(frozen=True)
class CalibrationGrid:
    """What the steps shall cover.

    max_running: decoding sequences. max_context: prompt and output tokens of a sequence.
    chunk_size: prompt tokens of a step. page_size: of the pool. policy: who runs with whom; what
    sequences share is read once, so orders that bring them together have cheaper steps.
    """

    max_running: int = 32
    max_context: int = 512
    chunk_size: int = 256
    page_size: int = 16
    policy: str = "lpm"
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"max_running": 1, "max_context": 64, "chunk_size": self.page_size}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ValueError(f"{name}={getattr(self, name)}: at least {smallest} is needed")

    @property
    def widths(self) -> list[int]:
        """Batch sizes: powers of two, and the largest."""
        powers = [1 << i for i in range(self.max_running.bit_length())]
        return sorted({*powers, self.max_running})

    def requests(self, width: int, vocab: int) -> list[Request]:
        """What keeps `width` sequences running for a while, all at once.

        Prompts are made like those of retrieval: one of four system prompts, up to two of sixteen
        documents by popularity, and a question; lengths differ from width to width. Outputs are of
        all lengths. So the batch grows and shrinks, chunks are cut anywhere, decode steps are mixed
        with prefills, and prefixes are shared, and contexts equally long, as often as where prompts
        come from templates.
        """
        draw = np.random.default_rng([self.seed, width])

        def text(length: int) -> Tokens:
            return draw.integers(0, vocab, length).astype(np.int32)

        # Prefills take turns, so a wide batch fills up only while its sequences go on for long.
        longest_output = min(16 + 2 * width, self.max_context // 4)
        quarter = (self.max_context - longest_output) // 4
        system, document, question = draw.integers(quarter // 4, quarter + 1, 3).tolist()
        systems = [text(system) for _ in range(4)]
        documents = [text(document) for _ in range(16)]
        popularity = 1 / np.arange(1, 17)
        popularity /= popularity.sum()
        requests = []
        for id in range(_count(width)):
            chosen = draw.choice(16, size=int(draw.integers(0, 3)), replace=False, p=popularity)
            parts = [systems[int(draw.integers(4))], *(documents[i] for i in sorted(chosen))]
            prompt = np.concatenate([*parts, text(question)])
            output = text(int(draw.integers(1, longest_output + 1)))
            requests.append(Request(id, prompt, output))
        return requests


def num_requests(grid: CalibrationGrid) -> int:
    """Requests of one pass over the grid."""
    return sum(map(_count, grid.widths))


def _count(width: int) -> int:
    """Requests that keep so many sequences running for a while."""
    return 4 + 2 * width


def warm_up(engine: Engine, grid: CalibrationGrid) -> None:
    """Serve the widest batch once: the first steps of a process touch memory and compile code."""
    _serve(engine, grid, grid.widths[-1], None)


def measure_steps(
    engine: Engine, grid: CalibrationGrid, progress: Callable[[int], None] | None = None
) -> Columns:
    """The steps of one pass over the grid, by MEASURED_COLUMNS, on an engine that is warm.

    progress: told how many requests are served.
    """
    done = 0

    def told(left: int) -> None:
        if progress is not None:
            progress(done + left)

    passes: list[Columns] = []
    for width in grid.widths:
        passes.append(_serve(engine, grid, width, told))
        done += _count(width)
    return joined(passes)


def _serve(
    engine: Engine, grid: CalibrationGrid, width: int, progress: Callable[[int], None] | None
) -> Columns:
    pages = (width + 1) * -(-grid.max_context // grid.page_size)
    run = engine.run(
        grid.requests(width, engine.model.vocab_size),
        cache=CacheConfig(num_pages=pages, page_size=grid.page_size),
        scheduler=SchedulerConfig(max_running=width, chunk_size=grid.chunk_size),
        policy=registry.scheduling(grid.policy),
        eviction=registry.eviction("lru"),
        progress=progress,
    )
    return run.measured
