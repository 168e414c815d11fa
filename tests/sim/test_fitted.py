"""The fitted latency model: hand-computed steps, prices found again, files, least squares."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.batch import BatchShape
from testbed.core.records import MEASURED_COLUMNS, Columns
from testbed.sim.fitted import (
    FEATURES,
    FittedLatency,
    LatencyFileError,
    fit_latency,
    non_negative_least_squares,
    read_latency,
    residuals,
    step_kinds,
    write_latency,
)

PRICES = {
    "step": 1.0,
    "tokens_from_1": 0.1,
    "tokens_from_4": 0.2,
    "tokens_from_16": 0.4,
    "tokens_are_2": 0.05,
    "prefill_rows": 3.0,
    "prefill_pairs": 0.001,
    "prefill_context": 0.002,
    "decode_rows": 0.5,
    "logit_rows": 0.25,
    "decode_context": 0.0002,
    "decode_read_from_0": 0.0001,
    "decode_read_from_4096": 0.01,
}


def decodes(rows: int, context: int, shared: int = 0) -> BatchShape:
    return BatchShape(
        decode_rows=rows, decode_context=context, logit_rows=rows, decode_shared=shared
    )


def random_steps(count: int, seed: int, prices: dict[str, float] = PRICES) -> Columns:
    """Steps that last exactly as long as the prices say."""
    draw = np.random.default_rng(seed)
    shapes = []
    for _ in range(count):
        rows = int(draw.integers(0, 33))
        context = rows * int(draw.integers(10, 400))
        shared = int(context * draw.random())
        prefills = int(draw.integers(0 if rows else 1, 4))
        new, old = int(draw.integers(1, 200)) * prefills, int(draw.integers(0, 300)) * prefills
        pairs = new * old + new * (new + 1) // 2
        sampled = rows + int(draw.integers(0, prefills + 1))
        shapes.append(
            BatchShape(rows, context, prefills, new, pairs, new + old, sampled, shared)
            if prefills
            else decodes(rows, context, shared)
        )
    model = FittedLatency(prices)
    columns: dict[str, Any] = {name: np.zeros(count) for name in MEASURED_COLUMNS}
    columns |= {
        name: np.array([getattr(shape, name) for shape in shapes]) for name in BatchShape._fields
    }
    columns["seconds"] = np.array([model.step_seconds(shape) for shape in shapes])
    return columns


@pytest.mark.parametrize(
    ("shape", "seconds"),
    [
        # The first token comes with the step.
        (decodes(1, 100), 1 + 0.5 + 0.25 + 0.02 + 0.01),
        (decodes(2, 100), 1 + 0.1 + 0.05 + 1 + 0.5 + 0.02 + 0.01),
        (decodes(6, 5096), 1 + 3 * 0.1 + 2 * 0.2 + 3 + 1.5 + 1.0192 + 0.4096 + 10),
        (decodes(6, 5096, 1100), 1 + 3 * 0.1 + 2 * 0.2 + 3 + 1.5 + 1.0192 + 0.3996),
        (
            # 4 decodes and 20 tokens of prefill: 3, 12 and 8 tokens beyond the knots at 1, 4, 16.
            BatchShape(4, 40, 2, 20, 500, 60, 5),
            1 + 0.3 + 2.4 + 3.2 + 6 + 0.5 + 0.12 + 2 + 1.25 + 0.008 + 0.004,
        ),
    ],
)
def test_steps_cost_what_their_features_cost(shape: BatchShape, seconds: float) -> None:
    assert FittedLatency(PRICES).step_seconds(shape) == pytest.approx(seconds)


@given(
    rows=st.integers(1, 64),
    context=st.integers(1, 6000),
    shared=st.floats(0, 1),
    steps=st.integers(1, 200),
    near=st.floats(0, 1e-3),
    far=st.floats(0, 1e-3),
)
def test_a_run_is_its_steps_bit_for_bit(
    rows: int, context: int, shared: float, steps: int, near: float, far: float
) -> None:
    model = FittedLatency({**PRICES, "decode_read_from_0": near, "decode_read_from_4096": far})
    spared = int(shared * context)
    run = model.decode_run(decodes(rows, context, spared), steps).tolist()
    one_by_one = [decodes(rows, context + i * rows, spared) for i in range(steps)]
    assert run == [model.step_seconds(shape) for shape in one_by_one]


def test_a_slower_machine_takes_longer_for_everything() -> None:
    shape = BatchShape(4, 40, 2, 20, 500, 60, 5)
    model = FittedLatency(PRICES)
    assert model.slower(1.5).step_seconds(shape) == pytest.approx(1.5 * model.step_seconds(shape))


def test_a_run_of_anything_but_decodes_is_refused() -> None:
    with pytest.raises(ValueError, match="needs decode rows and no prefill rows"):
        FittedLatency(PRICES).decode_run(BatchShape(1, 5, 1, 1, 1, 1, 1), 3)


def test_the_fit_finds_the_prices_that_made_the_steps() -> None:
    fitted = fit_latency(random_steps(400, seed=1))
    for name in FEATURES:
        assert fitted.prices[name] == pytest.approx(PRICES.get(name, 0.0), rel=1e-6, abs=1e-6), name
    unseen = random_steps(100, seed=2)
    assert residuals(fitted, unseen)["all"].total_error == pytest.approx(0, abs=1e-6)


def test_disturbed_steps_do_not_move_the_fit() -> None:
    steps = random_steps(400, seed=3)
    usual = steps["seconds"].copy()
    steps["seconds"][::10] *= 4
    predicted = fit_latency(steps)
    said = residuals(predicted, {**steps, "seconds": usual})
    assert said["all"].total_error == pytest.approx(0, abs=0.03)
    assert residuals(predicted, steps)["all"].total_error < -0.2


def test_jitter_in_one_direction_is_part_of_the_sum() -> None:
    steps = random_steps(400, seed=3)
    # Most steps are as fast as can be, one in five takes a third longer.
    steps["seconds"][::5] *= 4 / 3
    found = residuals(fit_latency(steps), steps)
    assert found["all"].total_error == pytest.approx(0, abs=1e-6)


def test_residuals_come_by_kind_of_step() -> None:
    steps = {name: np.zeros(4) for name in MEASURED_COLUMNS}
    steps["decode_rows"] = np.array([1, 0, 2, 3])
    steps["prefill_rows"] = np.array([0, 1, 1, 0])
    steps["seconds"] = np.array([1.0, 1.0, 1.0, 3.0])
    assert step_kinds(steps).tolist() == ["decode", "prefill", "mixed", "decode"]
    found = residuals(FittedLatency({"step": 1.5}), steps)
    assert list(found) == ["decode", "prefill", "mixed", "all"]
    assert (found["decode"].steps, found["decode"].mean_seconds) == (2, 2.0)
    assert found["decode"].total_error == pytest.approx(3 / 4 - 1)
    # Errors of the two single steps: 50 % and 50 %.
    assert found["decode"].median_error == pytest.approx(0.5)
    assert found["all"].total_error == pytest.approx(0.0)


def test_too_few_steps_are_no_fit() -> None:
    with pytest.raises(ValueError, match="10 steps were measured; a fit needs at least 50"):
        fit_latency(random_steps(10, seed=0))


@given(seed=st.integers(0, 10_000))
def test_least_squares_are_those_of_the_best_subset(seed: int) -> None:
    """Brute force: the optimum is unconstrained least squares on some set of columns."""
    draw = np.random.default_rng(seed)
    rows, columns = int(draw.integers(3, 10)), int(draw.integers(1, 6))
    matrix = draw.normal(size=(rows, columns)) * 10.0 ** draw.integers(-3, 4, columns)
    if columns > 1 and seed % 3 == 0:
        matrix[:, 1] = matrix[:, 0]
    target = draw.normal(size=rows)
    best = float(np.linalg.norm(target))
    for count in range(1, columns + 1):
        for chosen in map(list, itertools.combinations(range(columns), count)):
            part = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)[0]
            if (part >= 0).all():
                best = min(best, float(np.linalg.norm(matrix[:, chosen] @ part - target)))
    found = non_negative_least_squares(matrix, target)
    assert (found >= 0).all()
    assert np.linalg.norm(matrix @ found - target) <= best * (1 + 1e-9) + 1e-12


def test_a_file_gives_back_prices_and_facts(tmp_path: Path) -> None:
    file = tmp_path / "new" / "latency.json"
    write_latency(file, FittedLatency(PRICES), {"model": "m", "threads": 1})
    latency, facts = read_latency(file)
    assert dict(latency.prices) == PRICES
    assert facts == {"model": "m", "threads": 1}
    assert [path.name for path in file.parent.iterdir()] == ["latency.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not written by `testbed calibrate`"),
        ("[]", "not written by `testbed calibrate`"),
        ("5", 'an object is needed that has an object named "seconds"'),
        ('"seconds"', 'an object is needed that has an object named "seconds"'),
        ("null", 'an object is needed that has an object named "seconds"'),
        ('{"model": "m"}', 'an object is needed that has an object named "seconds"'),
        ('{"seconds": [1]}', 'an object is needed that has an object named "seconds"'),
        ("[" * 100_000, "nested too deeply"),
        (json.dumps({"seconds": {"stepp": 1}}), "'stepp': one of step, tokens_from_1"),
        (json.dumps({"seconds": {"step": -1}}), "step=-1: seconds from 0 to 1000"),
        (json.dumps({"seconds": {"step": None}}), "step=None: seconds from 0 to 1000"),
        (json.dumps({"seconds": {"step": True}}), "step=True: seconds from 0 to 1000"),
        (json.dumps({"seconds": {"step": "1"}}), "step='1': seconds from 0 to 1000"),
        (json.dumps({"seconds": {"step": 1e308}}), "step=1e+308: seconds from 0 to 1000"),
        ('{"seconds": {"step": NaN}}', "step=nan: seconds from 0 to 1000"),
        (json.dumps({"seconds": {}}), "a step of 1 tokens takes 0 s"),
        (json.dumps({"seconds": {"step": 0, "prefill_pairs": 0}}), "a step of 1 tokens takes 0 s"),
        (json.dumps({"seconds": {"step": 1e-320}}), "a step of 1 tokens takes 9.99989e-321 s"),
        # Whoever decodes pays nothing.
        (json.dumps({"seconds": {"prefill_rows": 1}}), "a step of 1 tokens takes 0 s"),
        # 1,000 tokens in one prefill are 1000 * 1001 / 2 pairs.
        (
            json.dumps({"seconds": {"step": 1, "prefill_pairs": 1}}),
            "a step of 1000 tokens takes 500501 s; 1e-06 to 100000 s are needed",
        ),
    ],
)
def test_a_file_that_is_no_latency_model_is_named(
    tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "latency.json"
    file.write_text(content)
    with pytest.raises(LatencyFileError) as error:
        read_latency(file)
    assert str(file) in str(error.value)
    assert message in str(error.value)


def test_a_missing_file_says_who_writes_it(tmp_path: Path) -> None:
    with pytest.raises(LatencyFileError, match="no such file; `testbed calibrate` writes one"):
        read_latency(tmp_path / "none.json")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "latency.json")
    for path in (tmp_path, tmp_path / "latency.json"):
        with pytest.raises(LatencyFileError, match="a file is needed"):
            read_latency(path)
