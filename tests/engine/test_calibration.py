"""The calibration load covers what it says, and the held-out loads are none of it."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.core.records import MEASURED_COLUMNS
from testbed.engine.calibration import CalibrationGrid, measure_steps, num_requests
from testbed.engine.engine import Engine
from testbed.engine.held_out import held_out_cases
from testbed.sim.fitted import step_kinds
from tests.engine.building import Models

GRID = CalibrationGrid(max_running=6, max_context=128, chunk_size=64)


def widths(largest: int) -> list[int]:
    points = CalibrationGrid(max_running=largest, max_context=128).points
    assert [context for _, context in points] == len(points) // 2 * [32, 128]
    return [width for width, _ in points[::2]]


def test_widths_are_powers_of_two_what_lies_halfway_and_the_widest() -> None:
    assert widths(1) == [1]
    assert widths(5) == [1, 2, 3, 4, 5]
    assert widths(6) == [1, 2, 3, 4, 6]
    assert widths(32) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]


def test_requests_fit_the_grid_and_share_prefixes() -> None:
    for width, context in GRID.points:
        requests = GRID.requests(width, context, vocab=100)
        assert len(requests) == 4 + 3 * width // 2
        # Every eighth is new text; the others start with one of four.
        starts = {tuple(r.prompt[:1].tolist()) for r in requests if r.id % 8 != 7}
        assert len(starts) <= 4
        for request in requests:
            assert len(request.prompt) + request.max_new_tokens <= context
            assert 0 <= request.prompt.min() <= request.prompt.max() < 100


def test_a_pass_covers_every_width_and_kind(models: Models) -> None:
    heard: list[int] = []
    measured = measure_steps(Engine(models["tiny-llama"]), GRID, heard.append)
    assert list(measured) == list(MEASURED_COLUMNS)
    assert set(range(1, 7)) <= set(measured["decode_rows"].tolist())
    assert set(step_kinds(measured)) == {"decode", "prefill", "mixed"}
    assert measured["prefill_tokens"].max() <= 64
    assert heard == list(range(1, num_requests(GRID) + 1))
    contexts = measured["decode_context"] / np.maximum(measured["decode_rows"], 1)
    assert contexts.max() <= 128


@pytest.mark.parametrize(
    ("field", "value", "least"),
    [("max_running", 0, 1), ("max_context", 63, 64), ("chunk_size", 15, 16)],
)
def test_a_grid_that_covers_nothing_is_refused(field: str, value: int, least: int) -> None:
    with pytest.raises(ValueError, match=f"{field}={value}: at least {least} is needed"):
        CalibrationGrid(**{field: value})


def test_held_out_loads_differ_in_rate_and_pool(models: Models) -> None:
    cases = held_out_cases(Engine(models["tiny-llama"]), GRID, num_requests=12)
    assert [case.name for case in cases] == ["below", "at", "past", "thrashing"]
    rates = [len(case.workload) / list(case.workload)[-1].arrival for case in cases]
    assert rates[0] < rates[1] < rates[2]
    assert cases[3].cache.num_pages < cases[0].cache.num_pages
    calibrated = {
        tuple(request.prompt.tolist())
        for width, context in GRID.points
        for request in GRID.requests(width, context, 512)
    }
    for case in cases:
        for request in case.workload:
            assert tuple(request.prompt.tolist()) not in calibrated
            assert len(request.prompt) + request.max_new_tokens <= GRID.max_context
