"""The error table and its figure."""

from __future__ import annotations

from pathlib import Path

from testbed.metrics.fidelity import FIGURES, Prediction
from testbed.reports.fidelity import fidelity_table, plot_fidelity

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
