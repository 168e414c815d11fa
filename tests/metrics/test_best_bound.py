"""What the best order of segments shares, served on a cache without limit."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from testbed.core.records import RunRecord
from testbed.metrics.best_bound import best_order_bound
from testbed.metrics.bounds import Bound, sharing_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.workloads import TemplateSegment, TemplateWorkload

ABSENT = TemplateSegment(0)
SMALL = TemplateWorkload(
    num_requests=30,
    tenants=2,
    system=TemplateSegment(9),
    tools=TemplateSegment(5, values=3),
    context=TemplateSegment(12, values=4),
    question=TemplateSegment(6, values=None),
    timestamp=ABSENT,
    user=ABSENT,
    order=("question", "context", "tools", "system"),
    output_tokens=2,
)
SEGMENTS = ("system", "tools", "context", "question")


def record_of(page_size: int, served: int) -> RunRecord:
    """A run that admitted the first requests, and refused the others."""
    requests = {
        "request": np.arange(SMALL.num_requests),
        "admitted_step": np.where(np.arange(SMALL.num_requests) < served, 0, -1),
    }
    return RunRecord(requests, {}, None, {"page_size": page_size})


@pytest.mark.parametrize("served", [30, 11])
def test_with_pages_of_one_token_it_is_the_best_of_all_orders(served: int) -> None:
    def bound(order: tuple[str, ...]) -> Bound:
        requests = list(SMALL.in_order(order))[:served]
        return sharing_bound(prompt_paths(requests, 1, min_computed_tokens=0))

    found = best_order_bound(
        SMALL, record_of(1, served), Bound(0, 1), min_computed_tokens=0, cache_outputs=False
    )
    everywhere = [bound(order) for order in permutations(SEGMENTS)]
    if served == SMALL.num_requests:
        assert found.hit_tokens == max(one.hit_tokens for one in everywhere) > 0
    assert found in everywhere


def test_whole_pages_are_counted() -> None:
    """One page of eight tokens fits into the 9 tokens of the system prompt that all share."""
    alone = TemplateWorkload(
        num_requests=30,
        system=TemplateSegment(9),
        tools=ABSENT,
        context=ABSENT,
        question=TemplateSegment(6, values=None),
        timestamp=ABSENT,
        user=ABSENT,
        order=("question", "system"),
        output_tokens=1,
    )
    assert best_order_bound(alone, record_of(8, 30), Bound(0, 450)) == Bound(29 * 8, 30 * 15)


def test_an_order_that_is_better_in_whole_pages_stays() -> None:
    own = Bound(999, 1000)
    assert best_order_bound(SMALL, record_of(8, 30), own) is own


def test_the_same_requests_in_another_order() -> None:
    first, second = list(SMALL), list(SMALL.in_order(SEGMENTS))
    for one, other in zip(first, second, strict=True):
        assert sorted(one.prompt.tolist()) == sorted(other.prompt.tolist())
        assert one.output is not None and other.output is not None
        assert (one.id, one.output.tolist()) == (other.id, other.output.tolist())
