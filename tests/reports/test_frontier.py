"""The frontier's points are the runs' means, and its axes name their unit."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from testbed.reports.comparison import Comparison
from testbed.reports.frontier import frontier_figure, plot_frontier


@pytest.fixture
def comparison() -> Comparison:
    def summary(*rows: tuple[float, float, float, float]) -> pd.DataFrame:
        columns = ["max_service_gap", "max_extended_service_gap", "hit_rate", "output_tokens_per_s"]
        return pd.DataFrame(rows, columns=columns)

    groups = {
        "vtc": summary((10.0, 400.0, 0.1, 50.0), (30.0, 600.0, 0.3, 70.0)),
        "lpm": summary((900.0, 800.0, 0.8, 90.0), (900.0, 800.0, 0.8, 90.0)),
    }
    return Comparison(("scheduler",), groups, frozenset({"lpm"}))


def test_every_axis_names_its_unit(comparison: Comparison) -> None:
    axes = frontier_figure(comparison).axes
    assert [ax.get_xlabel() for ax in axes[2:]] == [
        "Largest service gap (total tokens)",
        "Largest service gap (extended tokens)",
    ]
    assert [ax.get_ylabel() for ax in axes[::2]] == [
        "Prefix-cache hit rate",
        "Output throughput (tokens/s)",
    ]


def test_points_are_means(comparison: Comparison, tmp_path: Path) -> None:
    written = plot_frontier(comparison, tmp_path / "frontier")
    assert [path.suffix for path in written] == [".pdf", ".png", ".csv"]
    vtc, lpm = pd.read_csv(written[-1]).to_dict("records")
    assert (vtc["label"], vtc["seeds"], vtc["oracle"]) == ("vtc", 2, False)
    assert (vtc["max_service_gap"], vtc["max_extended_service_gap"]) == (20.0, 500.0)
    assert vtc["hit_rate"] == pytest.approx(0.2)
    assert (lpm["output_tokens_per_s"], lpm["oracle"]) == (90.0, True)
    assert lpm["hit_rate_half_width"] == 0.0
