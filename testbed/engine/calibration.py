"""Steps of every size on a real model, for a latency model to be fitted to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

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
    def points(self) -> list[tuple[int, int]]:
        """Batch sizes, each with a short and with the longest context.

        The sizes: 1, 2, 3, 4, 6, 8, 12, 16 and so on, and the largest. Were contexts alike, what a
        row costs and what it reads could not be told apart.
        """
        powers = [1 << i for i in range(self.max_running.bit_length())]
        sizes = {*powers, *(3 * power // 2 for power in powers[1:]), self.max_running}
        widths = [size for size in sorted(sizes) if size <= self.max_running]
        return list(product(widths, (self.max_context // 4, self.max_context)))

    def requests(self, width: int, context: int, vocab: int) -> list[Request]:
        """What keeps `width` sequences of at most `context` tokens running for a while.

        Most prompts are made like those of retrieval: one of four system prompts, up to two of
        sixteen documents by popularity, whose lengths differ from point to point, and a question,
        often short. Every eighth is new text. Outputs are of all lengths. So the batch grows and
        shrinks, chunks are cut anywhere, decode steps are mixed with prefills of all sizes, and
        prefixes are shared, and contexts equally long, as often as where prompts come from
        templates.
        """
        draw = np.random.default_rng([self.seed, width, context])

        def text(length: int) -> Tokens:
            return draw.integers(0, vocab, length).astype(np.int32)

        # Prefills take turns, so a wide batch fills up only while its sequences go on for long.
        longest_output = min(16 + 2 * width, context // 4)
        quarter = (context - longest_output) // 4
        system, document = draw.integers(quarter // 4, quarter + 1, 2).tolist()
        systems = [text(system) for _ in range(4)]
        documents = [text(document) for _ in range(16)]
        popularity = 1 / np.arange(1, 17)
        popularity /= popularity.sum()
        requests = []
        for id in range(_count(width)):
            chosen = draw.choice(16, size=int(draw.integers(0, 3)), replace=False, p=popularity)
            parts = [systems[int(draw.integers(4))], *(documents[i] for i in sorted(chosen))]
            question = text(int(quarter ** draw.random()))
            prompt = np.concatenate([*parts, question])
            if id % 8 == 7:
                prompt = text(int(draw.integers(quarter, 4 * quarter)))
            output = text(int(draw.integers(1, longest_output + 1)))
            requests.append(Request(id, prompt, output))
        return requests


def num_requests(grid: CalibrationGrid) -> int:
    """Requests of one pass over the grid."""
    return sum(_count(width) for width, _ in grid.points)


def _count(width: int) -> int:
    """Requests that keep so many sequences running for a while."""
    return 4 + 3 * width // 2


def warm_up(engine: Engine, grid: CalibrationGrid) -> None:
    """Serve the largest batch once: the first steps of a process touch memory and compile code."""
    _serve(engine, grid, *grid.points[-1], None)


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
    for width, context in grid.points:
        passes.append(_serve(engine, grid, width, context, told))
        done += _count(width)
    return joined(passes)


def _serve(
    engine: Engine,
    grid: CalibrationGrid,
    width: int,
    context: int,
    progress: Callable[[int], None] | None,
) -> Columns:
    pages = (width + 1) * -(-context // grid.page_size)
    run = engine.run(
        grid.requests(width, context, engine.model.vocab_size),
        cache=CacheConfig(num_pages=pages, page_size=grid.page_size),
        scheduler=SchedulerConfig(max_running=width, chunk_size=grid.chunk_size),
        policy=registry.scheduling(grid.policy),
        eviction=registry.eviction("lru"),
        progress=progress,
    )
    return run.measured
