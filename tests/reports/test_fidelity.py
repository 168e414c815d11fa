"""The error table and its figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.core.records import RunRecord
from testbed.metrics.fidelity import FIGURES, Prediction
from testbed.reports.fidelity import (
    distribution_table,
    fidelity_table,
    plot_fidelity,
    plot_fidelity_runs,
)
from tests.metrics.conftest import build_record

PREDICTIONS = [
    Prediction(workload, figure, 0.021, 0.020, 0.05, 0.0123)
    for workload in ("below", "at")
    for figure in FIGURES
]


def test_the_table_has_units_errors_and_spreads() -> None:
    lines = fidelity_table(PREDICTIONS).splitlines()
    rows = [line.split() for line in lines]
    assert lines[4].split() == ["TTFT", "p50", "ms", "21.0", "20.0", "+5.0", "%", "1.2", "%"]
    assert ["hit", "rate", "0.0210", "0.0200", "+5.00", "pt", "1.23", "pt"] in rows
    assert [row[0] for row in rows if row and row[0] in ("below", "at")] == ["below", "at"]
    assert max(map(len, lines)) <= 100


def test_the_figure_is_the_same_every_time(tmp_path: Path) -> None:
    written = plot_fidelity(PREDICTIONS, tmp_path / "fidelity")
    assert [path.name for path in written] == ["fidelity.pdf", "fidelity.png", "fidelity.csv"]
    before = [path.read_bytes() for path in written]
    plot_fidelity(PREDICTIONS, tmp_path / "fidelity")
    assert [path.read_bytes() for path in written] == before
    assert (tmp_path / "fidelity.csv").read_text().startswith("workload,figure,predicted,")


def run(slowness: float) -> RunRecord:
    """Two requests of three tokens: the second's first comes with the first's last."""
    times = [slowness * time for time in (1.0, 2.0, 4.0, 5.0, 7.0)]
    requests = [
        {"request": n, "first_token_s": times[2 * n], "finish_s": times[2 * n + 2]}
        | {"decode_spans": f"{2 * n + 1}-{2 * n + 3}", "admitted_step": 2 * n + 1}
        | {"prompt_tokens": 4, "output_tokens": 3}
        for n in (0, 1)
    ]
    steps = [
        {"step": n + 1, "start_s": 0.0, "end_s": end, "decode_rows": int(n != 0)}
        for n, end in enumerate(times)
    ]
    return build_record(requests, steps)


def test_distributions_are_shares_up_to_each_time() -> None:
    table = distribution_table({"load": (run(1.0), run(2.0))})
    lines = {
        key: list(zip(line["seconds"], line["share"], strict=True))
        for key, line in table.groupby(["backend", "quantity"])
    }
    assert lines["engine", "ttft"] == [(1.0, 0.5), (4.0, 1.0)]
    # Gaps between tokens: 1 and 2 s of the first request, 1 and 2 s of the second.
    shares = {seconds: share for seconds, share in lines["simulator", "itl"]}
    assert shares == {2.0: 0.5, 4.0: 1.0}


def test_runs_are_drawn_with_the_median_as_measured(tmp_path: Path) -> None:
    measured = {"load": [run(1.0), run(1.1), run(1.5)]}
    written = plot_fidelity_runs(measured, {"load": 3 * [run(1.1)]}, tmp_path / "fidelity")
    assert [path.name for path in written][-2:] == ["fidelity.csv", "fidelity.distributions.csv"]
    rows = [line.split(",") for line in written[2].read_text().splitlines()]
    makespan = dict(zip(rows[0], rows[2], strict=True))
    assert makespan["figure"] == "makespan_s" and float(makespan["error"]) == pytest.approx(0)
    assert float(makespan["spread"]) == pytest.approx(0.4 / 1.1, rel=1e-4)
