from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.request import Request
from testbed.metrics.miss_ratio import lru_curve
from testbed.metrics.prompt_paths import prompt_paths
from testbed.workloads import FittedWorkload, MooncakeTrace, RagWorkload, data_folder
from testbed.workloads.fitted_statistics import (
    GAPS,
    LENGTHS,
    SHARED,
    Bins,
    Statistics,
    load_statistics,
    save_statistics,
)
from testbed.workloads.fitting import fit


def requests_of(prompts: Sequence[Sequence[int]], **more: Any) -> list[Request]:
    return [
        Request(i, np.array(p, dtype=np.int32), max_new_tokens=1 + i, arrival=2.0 * i, **more)
        for i, p in enumerate(prompts)
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "statistics.json"


@given(st.sampled_from([GAPS, SHARED, LENGTHS, Bins(1, 1)]), st.integers(1, 10_000_000))
def test_a_value_lies_in_its_class(bins: Bins, value: int) -> None:
    low, above = bins.limits(bins.of(value))
    assert low <= value < above
    assert value > bins.exact or (low, above) == (value, value + 1)


def test_relations_by_hand() -> None:
    statistics = fit(
        requests_of(
            [
                [1, 1, 2, 2, 9],  # fresh
                [
                    1,
                    1,
                    2,
                    2,
                    3,
                    3,
                    8,
                    8,
                ],  # goes on from the end of the first, which no page follows
                [1, 1, 4, 4, 5],  # leaves in the middle of what both used: one page
                [1, 1, 6, 6, 6, 6],  # leaves where the last one did
                [7, 7],  # fresh; its only page is never looked up
                [1, 1, 4, 4, 5, 6],  # goes on from the end of the third, three requests ago
            ]
        ),
        page_size=2,
    )
    assert statistics.reuse == {
        "continue,1,2": 1,
        "continue,3,2": 1,
        "junction,1,1": 1,
        "split,1,1": 1,
    }
    assert (statistics.requests, statistics.page_size) == (6, 2)
    assert statistics.relations == {
        "continue": {"2": 1, "6": 1},
        "fresh": {"1": 1, "5": 1},
        "junction": {"4": 1},
        "split": {"3": 1},
    }
    assert statistics.new_tokens == {
        "continue,0": {"4": 1, "2": 1},
        "fresh": {"5": 1, "2": 1},
        "junction,0": {"4": 1},
        "split,0": {"3": 1},
    }
    assert statistics.output_tokens["fresh"] == {"1": 1, "5": 1}
    assert (statistics.span_s, sum(statistics.arrivals)) == (10.0, 6)
    assert set(statistics.gap_quantiles) == {1.0}
    assert (statistics.clients, statistics.same_client) == (
        [6],
        {"continue": 2, "split": 1, "junction": 1},
    )
    statistics.check()


def test_statistics_hold_no_token_and_no_name(file: Path) -> None:
    secret = 1_234_567
    prompts = [[secret, secret + 1, secret + 2 + i] for i in range(9)]
    save_statistics(fit(requests_of(prompts, client="the customer"), 2), file)
    text = file.read_text()
    assert "customer" not in text and "123456" not in text
    numbers = json.loads(text)
    assert numbers["clients"] == [9]
    assert load_statistics(file) == Statistics(**{k: v for k, v in numbers.items() if k != "kind"})


def fitted(file: Path, workload: Any, page_size: int, **more: Any) -> FittedWorkload:
    save_statistics(fit(workload, page_size), file)
    return FittedWorkload(file, **more)


def test_one_prompt_again_and_again(file: Path) -> None:
    workload = fitted(file, requests_of([[5] * 10] * 40), 3, num_requests=30)
    requests = list(workload)
    assert (len(workload), len(requests), workload.name) == (30, 30, "fitted")
    # Lengths up to 16 are kept exactly, and so is the shared part of nine tokens.
    assert {len(r.prompt) for r in requests} == {10}
    assert len({tuple(r.prompt[:9].tolist()) for r in requests}) == 1
    assert [r.arrival for r in requests] == pytest.approx([2.0 * i * 39 / 40 for i in range(30)])


def test_a_common_system_prompt_stays_common(file: Path) -> None:
    prompts = [[1] * 64 + [100 + i] * (20 + i % 7) for i in range(300)]
    workload = fitted(file, requests_of(prompts), 16)
    heads = Counter(tuple(r.prompt[:64].tolist()) for r in workload)
    assert heads.most_common(1)[0][1] >= 295
    assert len({tuple(r.prompt[:80].tolist()) for r in workload}) >= 295
    lengths = [len(r.prompt) for r in workload]
    assert min(lengths) >= 64 + 19 and max(lengths) <= 64 + 28


def test_conversations_grow_turn_by_turn(file: Path) -> None:
    """Twenty at a time, any of them next; a turn adds eight tokens, one in eight is the last."""
    generator = np.random.default_rng(0)
    turns, names, prompts = [1] * 20, list(range(20)), []
    for _ in range(1200):
        i = int(generator.integers(20))
        prompts.append([1000 * names[i] + j for j in range(8 * turns[i])])
        turns[i] += 1
        if generator.random() < 1 / 8:
            turns[i], names[i] = 1, max(names) + 1
    original = requests_of(prompts)
    workload = fitted(file, original, 4)
    curves = [lru_curve(prompt_paths(w, 4)) for w in (original, workload)]
    for pages in (120, 240, 480, 5000):
        rates = [curve.hit_rate(pages) for curve in curves]
        assert rates[1] == pytest.approx(rates[0], abs=0.06), pages


def test_every_walk_is_the_same_and_seeds_differ(file: Path) -> None:
    workload = fitted(file, RagWorkload(num_requests=80), 64, vocab=500)
    walks = [[(r.prompt.tolist(), r.client, r.arrival) for r in workload] for _ in "ab"]
    assert walks[0] == walks[1]
    assert max(max(prompt) for prompt, _, _ in walks[0]) < 500
    other = FittedWorkload(file, seed=1)
    assert [len(r.prompt) for r in other] != [len(r.prompt) for r in workload]


def test_clients_keep_their_shares_and_their_sharing(file: Path) -> None:
    original = RagWorkload(num_requests=600, tenants=3, documents=5)
    workload = fitted(file, original, 64)
    counts = sorted(Counter(r.client for r in workload).values())
    assert len(counts) == 3 and counts[0] > 100
    assert {r.client for r in workload} == {"client-1", "client-2", "client-3"}


def test_more_requests_than_there_were(file: Path) -> None:
    requests = list(fitted(file, requests_of([[1, 2, 3]] * 10), 1, num_requests=35))
    assert len(requests) == 35
    times = [r.arrival for r in requests]
    # Three and a half rounds of eighteen seconds.
    assert times == sorted(times) and 50 < times[-1] < 75


def test_a_single_request(file: Path) -> None:
    (request,) = fitted(file, requests_of([[1, 2, 3]]), 1)
    assert len(request.prompt) == 3 and request.arrival == 0.0
    with pytest.raises(ValueError, match="no requests to fit"):
        fit([], 1)


def mooncake() -> MooncakeTrace:
    path = (data_folder() or Path()) / "mooncake" / "conversation_trace.jsonl"
    if not path.is_file():
        pytest.skip("the Mooncake conversation trace is not in the data folder")
    return MooncakeTrace(path, limit=4000)


def test_hit_rates_by_cache_size_are_close_to_those_of_a_published_trace(file: Path) -> None:
    original = mooncake()
    workload = fitted(file, original, 512)
    curves = [lru_curve(prompt_paths(w, 512)) for w in (original, workload)]
    for pages in (500, 2_000, 8_000, 32_000):
        a, b = (curve.hit_rate(pages) for curve in curves)
        assert b == pytest.approx(a, abs=0.03), pages


BAD_STATISTICS: dict[str, tuple[Any, str]] = {
    "kind": ({"kind": "something"}, "kind is not 'radix-testbed fitted workload 1'"),
    "unknown": ({"more": 1}, r"fields \['more'\] are missing or unknown"),
    "requests": ({"requests": 0}, r"Statistics\.requests=0: a whole number from 1 to"),
    "relations": ({"relations": {"continue": {"1": 2}}}, "relations is not by"),
    "relation": (
        {"relations": {"fresh": {"1": 1}, "split": {"1": 2}}},
        "counts 2 values; 1 are",
    ),
    "page_size": ({"page_size": "2"}, r"Statistics\.page_size='2'"),
    "reuse": ({"reuse": {"continue,1,1": -1}}, "reuse is an object; counts above 0"),
    "reuse sum": ({"reuse": {"continue,1,1": 99}}, "relations is not by"),
    "reuse key": ({"reuse": {"again,1,1": 1}}, 'reuse holds "again,1,1"; relation,gap,shared'),
    "reuse class": ({"reuse": {"continue,x,1": 1}}, 'reuse holds "x"; the number of a class'),
    "class number": ({"reuse": {"continue,201,1": 1}}, 'reuse holds "201"; the number of a class'),
    "new_tokens": ({"new_tokens": {}}, "new_tokens is not by"),
    "outputs": ({"output_tokens": 5}, "output_tokens is not by"),
    "clients": ({"clients": [1]}, "clients must be whole numbers that sum up to about 2"),
    "arrivals": ({"arrivals": [1, 0.5]}, "arrivals must be whole numbers"),
    "span": ({"span_s": -1}, r"Statistics\.span_s=-1"),
    "gaps": ({"gap_quantiles": [1, 0]}, "gap_quantiles must be at least two numbers"),
    "class": ({"relations": {"fresh": {"1": 1}, "split": {"3": 1}}}, "relations counts 0 requests"),
    "length class": (
        {"output_tokens": {"fresh": {"1": 1}, "split": {"200": 1}}},
        r'output_tokens\[split\] holds "200"; the number of a class, from 1 to',
    ),
    "gap class": ({"reuse": {"continue,9,1": 1}}, "so many requests ago nobody was there"),
    "many": ({"requests": 10**400}, r"Statistics\.requests=1000"),
    "huge gap": ({"gap_quantiles": [0, 1e308]}, "gap_quantiles must be .* from 0 to 4 that never"),
    "longer gap": ({"gap_quantiles": [0, 10**400]}, "gap_quantiles must be"),
    "nobody first": (
        {
            "requests": 1,
            "reuse": {"continue,1,1": 1},
            "relations": {"continue": {"1": 1}},
            "new_tokens": {"continue,0": {"1": 1}},
            "output_tokens": {"continue": {"1": 1}},
        },
        "no fresh request of class 1",
    ),
    "same client": ({"same_client": {"continue": 5}}, "same_client"),
}


@pytest.mark.parametrize(("change", "message"), BAD_STATISTICS.values(), ids=BAD_STATISTICS.keys())
def test_statistics_that_were_tampered_with(file: Path, change: Any, message: str) -> None:
    save_statistics(fit(requests_of([[1, 2, 3], [1, 2, 3]]), 1), file)
    FittedWorkload(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=message) as error:
        FittedWorkload(file)
    assert str(error.value).startswith(f"{file}: ")


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff"])
def test_a_file_that_is_no_statistics(file: Path, text: str) -> None:
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"statistics\.json: "):
        FittedWorkload(file)


def test_bad_parameters(file: Path) -> None:
    save_statistics(fit(requests_of([[1]]), 1), file)
    for parameters in ({"num_requests": 0}, {"vocab": 1}, {"seed": -1}):
        (name,) = parameters
        with pytest.raises(ValueError, match=rf"FittedWorkload\.{name}="):
            FittedWorkload(file, **parameters)
    with pytest.raises(FileNotFoundError):
        FittedWorkload("nowhere.json")


def test_statistics_tell_no_clients_count_and_no_gap(file: Path) -> None:
    generator = np.random.default_rng(0)
    times = np.cumsum(generator.exponential(7.0, 40))
    names = ["a"] * 23 + ["b"] * 12 + ["c"] * 5
    requests = [
        Request(i, np.array([i], dtype=np.int32), max_new_tokens=1, arrival=time, client=name)
        for i, (time, name) in enumerate(zip(times.tolist(), names, strict=True))
    ]
    statistics = fit(requests, 1)
    # Doublings from 9 in four: 9, 10.7, 12.7, 15.1, 18, 21.4, 25.5; 22 to 25 and 11 to 12.
    assert statistics.clients == [23, 11, 5]
    # One for eight gaps of 39, and the ends; two digits.
    assert len(statistics.gap_quantiles) == 6
    assert all(float(f"{q:.1e}") == q for q in statistics.gap_quantiles)
    save_statistics(statistics, file)
    assert len(FittedWorkload(file)) == 40


def test_every_client_comes_to_its_own_number_of_requests(file: Path) -> None:
    counts = [8, 4, 4, 2, 2, 1, 1, 1, 1]
    names = np.repeat(np.arange(9), counts)
    names = np.random.default_rng(3).permutation(names).tolist()
    requests = [
        Request(i, np.array([i], dtype=np.int32), max_new_tokens=1, client=f"c{name}")
        for i, name in enumerate(names)
    ]
    for seed in range(5):
        found = Counter(r.client for r in fitted(file, requests, 1, seed=seed))
        assert sorted(found.values(), reverse=True) == counts


def test_the_mean_gap_is_kept(file: Path) -> None:
    times = np.cumsum(np.random.default_rng(1).gamma(0.2, 5.0, 200)).tolist()
    requests = [
        Request(i, np.array([i], dtype=np.int32), max_new_tokens=1, arrival=time)
        for i, time in enumerate(times)
    ]
    spans = [list(fitted(file, requests, 1, seed=seed))[-1].arrival for seed in range(20)]
    assert np.mean(spans) == pytest.approx(times[-1] - times[0], rel=0.15)
