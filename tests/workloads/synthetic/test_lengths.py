from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads import DrawnLengthsWorkload, LengthsWorkload


def test_prompts_have_the_given_lengths_and_share_no_token() -> None:
    workload = LengthsWorkload(np.array([3, 1, 2]), (4, 5, 6))
    assert (len(workload), workload.name, workload.skipped_lines) == (3, "lengths", 0)
    assert [r.prompt.tolist() for r in workload] == [[0, 1, 2], [3], [4, 5]]
    assert [(r.id, r.max_new_tokens, r.arrival) for r in workload] == [
        (0, 4, 0.0),
        (1, 5, 0.0),
        (2, 6, 0.0),
    ]
    walks = [[r.output.tolist() for r in workload] for _ in "ab"]
    assert walks[0] == walks[1]


def test_a_vocab_bounds_the_tokens() -> None:
    prompts = [r.prompt for r in LengthsWorkload([50] * 20, [1] * 20, vocab=64)]
    assert max(p.max() for p in prompts) < 64
    assert len({tuple(p.tolist()) for p in prompts}) == 20


@pytest.mark.parametrize("distribution", ["normal", "lognormal"])
def test_drawn_lengths_have_the_mean_and_deviation_asked_for(distribution: Any) -> None:
    workload = DrawnLengthsWorkload(num_requests=10_000, distribution=distribution)
    prompts = np.array([len(r.prompt) for r in workload])
    outputs = np.array([r.max_new_tokens for r in workload])
    assert len(workload) == len(prompts) == 10_000
    # Standard error of the means: 2.6 and 0.64 tokens.
    assert abs(prompts.mean() - 1024) < 13 and abs(outputs.mean() - 256) < 3.2
    assert prompts.std() == pytest.approx(256, rel=0.05)
    assert outputs.std() == pytest.approx(64, rel=0.05)
    assert abs(np.corrcoef(prompts, outputs)[0, 1]) < 0.05


@given(st.integers(0, 20))
def test_drawn_lengths_are_paired(seed: int) -> None:
    def lengths(**parameters: Any) -> list[tuple[int, int]]:
        workload = DrawnLengthsWorkload(**({"num_requests": 30, "seed": seed} | parameters))
        return [(len(r.prompt), r.max_new_tokens) for r in workload]

    base = lengths()
    assert lengths(num_requests=20) == base[:20]
    assert [p for p, _ in lengths(output_mean=10, output_sd=1)] == [p for p, _ in base]
    assert lengths(seed=seed + 1) != base


def test_no_deviation_gives_equal_lengths_and_wide_ones_stop_at_1() -> None:
    equal = DrawnLengthsWorkload(num_requests=5, prompt_sd=0, output_mean=2, output_sd=0)
    assert {(len(r.prompt), r.max_new_tokens) for r in equal} == {(1024, 2)}
    wide = DrawnLengthsWorkload(num_requests=500, prompt_mean=2, prompt_sd=4)
    assert min(len(r.prompt) for r in wide) == 1


@pytest.mark.parametrize(
    ("prompts", "outputs", "message"),
    [
        ([], [], r"LengthsWorkload\.prompt_lengths: a list of whole numbers, at least one"),
        ([1.5], [1], r"LengthsWorkload\.prompt_lengths: a list of whole numbers"),
        ([True], [1], r"LengthsWorkload\.prompt_lengths: a list of whole numbers"),
        ([[1]], [1], r"LengthsWorkload\.prompt_lengths: a list of whole numbers"),
        ([1, 0], [1, 1], r"LengthsWorkload\.prompt_lengths\[1\]=0: 1 to 10000000 tokens"),
        ([1, 1], [1, -2], r"LengthsWorkload\.output_lengths\[1\]=-2"),
        ([1], [10_000_001], r"LengthsWorkload\.output_lengths\[0\]=10000001"),
        ([1, 1], [1], r"output_lengths has 1 entries; 2 are needed"),
        ([10_000_000] * 215, [1] * 215, r"LengthsWorkload: 2150000000 distinct prompt tokens"),
    ],
)
def test_bad_lengths(prompts: Any, outputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LengthsWorkload(prompts, outputs)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"num_requests": 0}, r"DrawnLengthsWorkload\.num_requests=0"),
        ({"prompt_mean": 0}, r"DrawnLengthsWorkload\.prompt_mean=0: a number from 1 to 1e\+07"),
        ({"output_mean": 1e300}, r"DrawnLengthsWorkload\.output_mean=1e\+300"),
        ({"prompt_sd": -1}, r"DrawnLengthsWorkload\.prompt_sd=-1"),
        ({"output_sd": float("nan")}, r"DrawnLengthsWorkload\.output_sd=nan"),
        ({"distribution": "gamma"}, r"distribution='gamma': one of normal, lognormal"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DrawnLengthsWorkload(**parameters)
