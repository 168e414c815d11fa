"""Both bounds: published cases, brute force, and the inequalities that make them bounds."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.records import RunRecord
from testbed.core.request import Request
from testbed.metrics.bounds import clairvoyant_bound, run_bounds, sharing_bound
from testbed.metrics.prompt_paths import block_paths, prompt_paths
from testbed.workloads.data_folder import data_folder

CASES = Path(__file__).resolve().parents[1] / "cases"
DATA = data_folder()


def instances(name: str) -> list[dict[str, Any]]:
    return json.loads((CASES / name).read_text())["instances"]


def ask(
    index: int, prompt: list[int], output: list[int] | None = None, namespace: str = ""
) -> Request:
    return Request(
        id=index,
        prompt=np.array(prompt, dtype=np.int32),
        output=None if output is None else np.array(output, dtype=np.int32),
        max_new_tokens=0 if output else 1,
        namespace=namespace,
    )


@pytest.mark.parametrize("case", instances("order.json"), ids=lambda case: case["id"])
def test_serial_cases(case: dict[str, Any]) -> None:
    expected = case["expected"]
    prompts = case["warm"] + case["prompts"]
    paths = prompt_paths(
        (ask(i, prompt) for i, prompt in enumerate(prompts)), page_size=1, min_computed_tokens=0
    )
    bound = clairvoyant_bound(paths, case["capacity"])
    counted = bound.request_hit_tokens[len(case["warm"]) :]
    assert counted.tolist() == expected["fcfs_token"]["belady"]["per_request"]
    assert counted.sum() == expected["fcfs_optimal_eviction"]
    if not case["warm"]:
        assert bound.evicted_pages == expected["fcfs_token"]["belady"]["evicted_tokens"]
        sharing = sharing_bound(paths)
        assert sharing.hit_tokens == expected["upper_bound_cold"]
        assert sharing.total_tokens == expected["total_tokens"]
        assert sum(paths.pages) == expected["distinct_prefix_tokens"]


@pytest.mark.parametrize(
    "case",
    [c for c in instances("order.json") if not c["warm"] and "dfs" in c["expected"]],
    ids=lambda case: case["id"],
)
def test_the_capped_sharing_bound_is_what_depth_first_order_reaches(case: dict[str, Any]) -> None:
    paths = prompt_paths((ask(i, p) for i, p in enumerate(case["prompts"])), page_size=1)
    assert sharing_bound(paths).hit_tokens == case["expected"]["dfs"]["hits_cap1"]


@pytest.mark.skipif(DATA is None, reason="no data folder")
@pytest.mark.parametrize(
    "case",
    instances("traces.json"),
    ids=lambda c: f"{Path(c['file']).stem}-{c['mode']}-{c['capacity']}",
)
def test_public_traces(case: dict[str, Any]) -> None:
    assert DATA is not None
    size = case["block_size"]
    rows = [json.loads(line) for line in (DATA / case["file"]).read_text().splitlines()]
    lengths = [row["input_length"] for row in rows]
    blocks = [row["hash_ids"] for row in rows]
    if case["mode"] != "A":
        blocks = [ids[: n // size] for ids, n in zip(blocks, lengths, strict=True)]
    paths = block_paths(blocks, lengths, size, min_computed_tokens=int(case["mode"] == "C"))
    bound = clairvoyant_bound(paths, case["capacity"])
    # With unlimited capacity there is nothing to evict: LRU is the clairvoyant rule.
    expected = case["lru"] if case["capacity"] is None else case["belady"]
    got = [bound.hit_pages, bound.hit_tokens, bound.evicted_pages]
    assert got[: len(expected)] == expected
    if case["capacity"] is None and case["mode"] != "A":
        assert sharing_bound(paths).hit_tokens == bound.hit_tokens


def best_eviction(pages: list[tuple[list[Any], int]], capacity: int) -> int:
    """Most hit pages over every way to evict leaves; pages: (all stored, how many looked up)."""
    states = {frozenset[Any](): 0}
    for stored, num_lookup in pages:
        following: dict[frozenset[Any], int] = {}
        for resident, hits in states.items():
            found = 0
            while found < num_lookup and stored[found] in resident:
                found += 1
            frontier = {resident | set(stored)}
            while any(len(state) > capacity for state in frontier):
                # Everything that one more eviction of a childless page can lead to.
                frontier = {
                    state - {page}
                    for state in frontier
                    for page in state
                    if page not in stored
                    and not any(len(p) > len(page) and p[: len(page)] == page for p in state)
                }
            for state in frontier:
                following[state] = max(following.get(state, 0), hits + found)
        states = following
    return max(states.values())


def least_recently_used(pages: list[tuple[list[Any], int]], capacity: int | None) -> list[int]:
    """Hit pages of each request."""
    resident: OrderedDict[Any, None] = OrderedDict()
    hits = []
    for stored, num_lookup in pages:
        found = 0
        while found < num_lookup and stored[found] in resident:
            found += 1
        hits.append(found)
        for page in reversed(stored):
            resident[page] = None
            resident.move_to_end(page)
        while capacity is not None and len(resident) > capacity:
            resident.popitem(last=False)
    return hits


def explicit_pages(
    requests: list[Request], page_size: int, min_computed: int, cache_outputs: bool
) -> list[tuple[list[Any], int]]:
    """Every page as its whole prefix, namespace first."""
    pages = []
    for request in requests:
        tokens = request.prompt.tolist()
        if cache_outputs and request.output is not None:
            tokens += request.output.tolist()[:-1]
        ends = range(page_size, len(tokens) + 1, page_size)
        stored = [(request.namespace, *tokens[:end]) for end in ends]
        pages.append((stored, (len(request.prompt) - min_computed) // page_size))
    return pages


token_lists = st.lists(st.integers(0, 1), min_size=1, max_size=6)
workloads = st.lists(
    st.tuples(token_lists, st.one_of(st.none(), token_lists), st.sampled_from(["", "b"])),
    min_size=1,
    max_size=7,
)


@settings(max_examples=150, deadline=None)
@given(workloads, st.integers(1, 3), st.integers(0, 1), st.integers(0, 4))
def test_without_outputs_it_is_the_best_that_eviction_can_do(
    workload: list[tuple[list[int], list[int] | None, str]],
    page_size: int,
    min_computed: int,
    spare: int,
) -> None:
    requests = [ask(i, prompt, None, space) for i, (prompt, _, space) in enumerate(workload)]
    pages = explicit_pages(requests, page_size, min_computed, cache_outputs=False)
    capacity = max(len(stored) for stored, _ in pages) + spare
    paths = prompt_paths(requests, page_size, min_computed_tokens=min_computed)
    bound = clairvoyant_bound(paths, capacity)
    best = best_eviction(pages, capacity)
    if min_computed == 0:
        assert bound.hit_pages == best
    assert bound.hit_pages >= best
    assert bound.hit_tokens == bound.hit_pages * page_size


@settings(max_examples=150, deadline=None)
@given(workloads, st.integers(1, 3), st.integers(0, 1), st.booleans(), st.integers(0, 4))
def test_policy_hits_clairvoyant_bound_and_sharing_bound_are_in_this_order(
    workload: list[tuple[list[int], list[int] | None, str]],
    page_size: int,
    min_computed: int,
    cache_outputs: bool,
    spare: int,
) -> None:
    requests = [ask(i, *row) for i, row in enumerate(workload)]
    pages = explicit_pages(requests, page_size, min_computed, cache_outputs)
    capacity = max(len(stored) for stored, _ in pages) + spare
    paths = prompt_paths(
        requests, page_size, min_computed_tokens=min_computed, cache_outputs=cache_outputs
    )
    bound = clairvoyant_bound(paths, capacity)
    unlimited = clairvoyant_bound(paths, None)
    sharing = sharing_bound(paths)
    assert best_eviction(pages, capacity) <= bound.hit_pages <= unlimited.hit_pages
    assert unlimited.hit_tokens <= sharing.hit_tokens
    assert [hits * page_size for hits in least_recently_used(pages, None)] == (
        unlimited.request_hit_tokens.tolist()
    )
    large_enough = clairvoyant_bound(paths, max(1, sum(paths.pages)))
    assert large_enough.request_hit_tokens.tolist() == unlimited.request_hit_tokens.tolist()


def test_the_sharing_bound_by_hand() -> None:
    # Distinct prefixes: 1, 12, 123, 1234, 5 -> 5 of 10 tokens. With one token always computed the
    # prompt 1 2 3 4 can share 3 tokens at its second visit, not 4.
    requests = [ask(0, [1, 2, 3, 4]), ask(1, [1, 2, 3, 4]), ask(2, [5]), ask(3, [1])]
    assert sharing_bound(prompt_paths(requests, 1, min_computed_tokens=0)).hit_tokens == 5
    # 1 2 3: each looked up twice, missed once; but 1 is served alone first and only stored by that.
    assert sharing_bound(prompt_paths(requests, 1)).hit_tokens == 2 + 1 + 1
    assert sharing_bound(prompt_paths(requests, 2, min_computed_tokens=0)).hit_tokens == 4
    assert sharing_bound(prompt_paths(requests, 2)).hit_tokens == 2
    assert sharing_bound(prompt_paths([], 2)).rate == 0.0


def test_an_output_that_becomes_part_of_a_prompt_can_be_hit() -> None:
    chat = [ask(0, [1, 2], [3, 4, 5]), ask(1, [1, 2, 3, 4, 5, 6], [7])]
    without = prompt_paths(chat, 1)
    outputs = prompt_paths(chat, 1, cache_outputs=True)
    assert sharing_bound(without).hit_tokens == 2
    # 1 2 3 4: the output's last token was never fed back, so its KV does not exist.
    assert sharing_bound(outputs).hit_tokens == 4
    assert clairvoyant_bound(outputs, 6).hit_tokens == 4


def test_the_order_and_the_served_subset_count() -> None:
    requests = [ask(0, [1, 1, 1]), ask(1, [2, 2, 2]), ask(2, [1, 1, 1]), ask(3, [2, 2, 2])]
    paths = prompt_paths(requests, 1, min_computed_tokens=0)
    assert clairvoyant_bound(paths, 3).hit_tokens == 0
    assert clairvoyant_bound(paths, 3, order=[0, 2, 1, 3]).hit_tokens == 6
    only = clairvoyant_bound(paths, 3, order=[0, 2])
    assert (only.hit_tokens, only.total_tokens, only.rate) == (3, 6, 0.5)


def test_a_request_larger_than_the_cache_is_an_error() -> None:
    paths = prompt_paths([ask(0, [1]), ask(1, [1, 2, 3])], 1)
    with pytest.raises(ValueError, match="place 1 needs 3 pages but capacity is 2"):
        clairvoyant_bound(paths, 2)


def test_a_page_size_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="page_size=0: at least 1"):
        prompt_paths([], 0)


def served(request: int, replica: int, admitted_s: float, **more: Any) -> dict[str, Any]:
    return {
        "request": request,
        "replica": replica,
        "admitted_s": admitted_s,
        "admitted_step": 1,
        **more,
    }


def test_the_bounds_of_a_run_follow_its_replicas_and_order(make_record: Any) -> None:
    # Replica 0 serves A A, replica 1 serves A: apart they share one prompt less than together.
    record: RunRecord = make_record(
        [
            served(7, 0, 2.0),
            served(3, 0, 1.0),
            served(5, 1, 0.5),
            {"request": 4, "status": "refused", "admitted_step": -1},
        ],
        [],
        num_pages=2,
        page_size=2,
    )
    prompt = [1, 2, 3, 4, 5]
    requests = [ask(3, prompt), ask(4, [9] * 99), ask(5, prompt), ask(7, prompt)]
    sharing, clairvoyant = run_bounds(record, iter(requests))
    assert (sharing.hit_tokens, sharing.total_tokens) == (8, 15)
    assert (clairvoyant.hit_tokens, clairvoyant.total_tokens) == (4, 15)
    with pytest.raises(ValueError, match="request 7 was served but is not among them"):
        run_bounds(record, requests[:3])
