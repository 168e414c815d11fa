from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise, takewhile
from typing import Any

import pytest

from testbed.workloads import LessonWorkload, Segment

Prompt = tuple[Segment, ...]


def serve(prompts: Sequence[Prompt], budget_blocks: int) -> float:
    """Token hit rate of an LRU cache of whole segments whose victims are leaves off the path."""
    stamps: dict[Prompt, int] = {}
    hits = 0
    for now, prompt in enumerate(prompts):
        path = [prompt[: depth + 1] for depth in range(len(prompt))]
        for node in path:
            if node in stamps:
                hits += node[-1].num_tokens
            else:
                make_room(stamps, set(path), budget_blocks - node[-1].num_blocks)
            stamps[node] = now
    return hits / sum(segment.num_tokens for prompt in prompts for segment in prompt)


def make_room(stamps: dict[Prompt, int], pinned: set[Prompt], limit: int) -> None:
    while sum(node[-1].num_blocks for node in stamps) > limit:
        parents = {node[:-1] for node in stamps}
        del stamps[min((n for n in stamps if n not in parents and n not in pinned), key=stamps.get)]


def depth_first(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Pre-order of the tree of prompts, children by first arrival."""
    first: dict[Prompt, int] = {}
    for i, prompt in enumerate(prompts):
        for depth in range(len(prompt)):
            first.setdefault(prompt[: depth + 1], i)
    return sorted(prompts, key=lambda p: [first[p[: depth + 1]] for depth in range(len(p))])


@pytest.mark.parametrize(
    ("scrambled", "budget_blocks", "fcfs"),
    [
        (False, 180, 0.8247),
        (False, 212, 0.8706),
        (False, 244, 0.8772),
        (False, 320, 0.9537),
        (False, 640, 0.9602),
        (True, 180, 0.1757),
        (True, 212, 0.1949),
        (True, 244, 0.1949),
        (True, 320, 0.2561),
        (True, 640, 0.3864),
        (True, 2000, 0.6945),
    ],
)
def test_hit_rates_of_an_independent_implementation(
    scrambled: bool, budget_blocks: int, fcfs: float
) -> None:
    """The expected rates were worked out elsewhere; they fix segments, draws and both shuffles."""
    assert round(serve(LessonWorkload(scrambled).segments, budget_blocks), 4) == fcfs


def common_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def serve_unpinned(prompts: Sequence[Prompt], budget_blocks: int) -> float:
    """As the lesson's own program: room is made segment by segment, even out of the prompt's own
    ancestors, and the victim is the oldest entry that no other entry extends."""
    stamps: dict[Prompt, int] = {}
    hits = 0
    for now, prompt in enumerate(prompts):
        path = [prompt[: depth + 1] for depth in range(len(prompt))]
        found = list(takewhile(stamps.__contains__, path))
        hits += sum(node[-1].num_tokens for node in found)
        stamps |= dict.fromkeys(found, now)
        for node in path[len(found) :]:
            while sum(n[-1].num_blocks for n in (*stamps, node)) > budget_blocks:
                extended = {n[:depth] for n in stamps for depth in range(1, len(n))}
                del stamps[min((n for n in stamps if n not in extended), key=stamps.get)]
            stamps[node] = now
    return hits / sum(segment.num_tokens for prompt in prompts for segment in prompt)


def by_static_score(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The lesson's cache-aware order: by the best of count * length over a prompt's prefixes."""
    counts = Counter(prompt[: depth + 1] for prompt in prompts for depth in range(len(prompt)))

    def score(prompt: Prompt) -> int:
        lengths = accumulate(segment.num_tokens for segment in prompt)
        return max(counts[prompt[: d + 1]] * length for d, length in enumerate(lengths))

    return sorted(prompts, key=score, reverse=True)


@pytest.mark.parametrize(
    ("scrambled", "fcfs", "cache_aware"), [(False, 69.1, 69.1), (True, 8.4, 26.5)]
)
def test_what_the_lessons_own_program_prints(
    scrambled: bool, fcfs: float, cache_aware: float
) -> None:
    """160 blocks are less than a prompt's 180: only the system prompt outlives a request, and all
    prompts of the fixed order score the same."""
    prompts = LessonWorkload(scrambled).segments
    assert round(100 * serve_unpinned(prompts, 160), 1) == fcfs
    assert round(100 * serve_unpinned(by_static_score(prompts), 160), 1) == cache_aware
    if not scrambled:
        assert by_static_score(prompts) == list(prompts)
        assert fcfs == round(100 * 79 * 2000 / (80 * 2860), 1)


@pytest.mark.parametrize(("scrambled", "bound"), [(False, 0.9602), (True, 0.7946)])
def test_depth_first_order_reaches_the_sharing_bound(scrambled: bool, bound: float) -> None:
    workload = LessonWorkload(scrambled)
    nodes = {prompt[: depth + 1] for prompt in workload.segments for depth in range(4)}
    assert round(1 - sum(node[-1].num_tokens for node in nodes) / (80 * 2860), 4) == bound
    prompts = sorted(request.prompt.tolist() for request in workload)
    shared = sum(common_prefix(a, b) for a, b in pairwise(prompts))
    assert round(shared / (80 * 2860), 4) == bound
    assert round(serve(depth_first(workload.segments), 180), 4) == bound


def test_segments_fill_whole_blocks_and_own_their_numbers() -> None:
    every = {segment for prompt in LessonWorkload().segments for segment in prompt}
    assert len(every) == 2 + 4 + 80
    blocks = {s.name.split("_")[0]: (s.num_tokens, s.num_blocks) for s in every}
    assert blocks == {"SYSTEM": (2000, 125), "TOOLS": (300, 19), "DOC": (500, 32), "Q": (60, 4)}
    ids = [int(block) for segment in every for block in segment.block_ids()]
    assert sorted(ids) == list(range(125 + 19 + 4 * 32 + 80 * 4))


def test_requests_are_the_segments_tokens() -> None:
    workload = LessonWorkload(scrambled=True)
    assert (len(workload), workload.skipped_lines) == (80, 0)
    for i, (request, prompt) in enumerate(zip(workload, workload.segments, strict=True)):
        assert request.prompt.tolist() == [
            token for s in prompt for token in range(s.first_token, s.first_token + s.num_tokens)
        ]
        assert (request.id, request.max_new_tokens, request.arrival) == (i, 1, 0.0)
        assert prompt[-1].name.startswith("Q_")
    assert len({prompt[-1].name for prompt in workload.segments}) == 80


def test_a_vocab_bounds_the_tokens() -> None:
    assert max(int(r.prompt.max()) for r in LessonWorkload(vocab=100)) == 99


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"scrambled": 1}, r"LessonWorkload\.scrambled=1"),
        ({"vocab": 0}, r"LessonWorkload\.vocab=0"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LessonWorkload(**parameters)
