"""Service over time and the gap between clients, on two requests that are served in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.reports.fairness import fairness_figure, fairness_table, plot_fairness
from tests.metrics.conftest import build_record

OPTIONS = {"scheduler": "vtc", "scheduler.prompt_weight": 1.0, "scheduler.output_weight": 2.0}


@pytest.fixture
def sweep(make_sweep: Any) -> Any:
    """a's 10 tokens are admitted at 0 s, b's at 12 s, when a's second request has come too."""

    def request(number: int, client: str, arrival: float, admitted: float, step: int) -> Any:
        return {
            "request": number,
            "client": client,
            "arrival_s": arrival,
            "admitted_s": admitted,
            "admitted_step": step,
            "first_token_s": admitted + 6.0,
            "prompt_tokens": 10,
            "output_tokens": 1,
            "decode_spans": f"{step}-{step}",
        }

    record = build_record(
        [
            request(0, "a", 0.0, 0.0, 1),
            request(1, "b", 0.0, 12.0, 2),
            request(2, "a", 24.0, 24.0, 3),
        ],
        [
            {"step": step, "start_s": start, "end_s": start + 6.0, "prefill_rows": 1}
            for step, start in ((1, 0.0), (2, 12.0), (3, 24.0))
        ],
    )
    return make_sweep((OPTIONS, 0, {"hit_rate": 0.0}, record))


def test_service_is_a_rate_over_windows_and_bounds_stand_beside_gaps(sweep: Any) -> None:
    table = fairness_table(sweep)
    lines = {
        (quantity, client): group.set_index("time_s")["mean"]
        for (quantity, client), group in table.groupby(["quantity", "client"])
    }
    # Twelve windows of 2 s. a's prompt is charged at 0, before the first of them; its output
    # token, worth 2, when it comes, at 6 s; b's at 12 and 18.
    a, b = lines["service_per_s", "a"], lines["service_per_s", "b"]
    assert a[a > 0].to_dict() == {6.0: 1.0, 24.0: 5.0}
    assert b[b > 0].to_dict() == {12.0: 5.0, 18.0: 1.0}
    # 2 max(1 * 10, 2 * 10 pages * 2 tokens).
    assert lines["gap_total_bound", ""].unique().tolist() == [80.0]
    assert ("gap_extended_bound", "") not in lines


@pytest.mark.filterwarnings("error")
def test_where_all_arrive_at_once_times_run_to_the_last_token(
    make_sweep: Any, tmp_path: Path
) -> None:
    # A name is text, whatever it looks like to Matplotlib.
    names = ("$\\frac{$", "_late")
    requests = [
        {
            "request": i,
            "client": names[i],
            "admitted_s": 12.0 * i,
            "admitted_step": i + 1,
            "first_token_s": 12.0 * (i + 1),
            "finish_s": 12.0 * (i + 1),
            "prompt_tokens": 10,
            "output_tokens": 1,
            "decode_spans": f"{i + 1}-{i + 1}",
        }
        for i in range(2)
    ]
    steps = [
        {"step": i + 1, "start_s": 12.0 * i, "end_s": 12.0 * (i + 1), "prefill_rows": 1}
        for i in range(2)
    ]
    # The config names the schedulers, and nothing of their options.
    sweep = make_sweep(
        *(
            ({"scheduler": name}, 0, {"hit_rate": 0.0}, build_record(requests, steps))
            for name in ("vtc", "dlpm", "locality_fair")
        )
    )
    table = fairness_table(sweep)
    late = table[(table["client"] == "_late") & (table["scheduler"] == "dlpm")]
    # Windows of 2 s: 10 tokens at 12 s, and the output's 2 at 24.
    rates = late.set_index("time_s")["mean"]
    assert rates[rates > 0].to_dict() == {12.0: 5.0, 24.0: 1.0}
    assert not table["mean"].isna().any() and not table["quantity"].str.contains("bound").any()
    service = fairness_figure(table).axes[0]
    assert [line.get_label().strip() for line in service.lines] == list(names)
    plot_fairness(sweep, tmp_path / "fairness")


def test_runs_that_served_nothing_have_no_figure(make_sweep: Any) -> None:
    with pytest.raises(ValueError, match="no request of these runs was served"):
        fairness_table(make_sweep(({"scheduler": "vtc"}, 0, {}, build_record([], []))))


def test_a_panel_a_scheduler_and_a_line_a_client(sweep: Any, tmp_path: Path) -> None:
    service, total, extended = fairness_figure(fairness_table(sweep)).axes
    assert service.get_title() == "vtc"
    assert [line.get_label() for line in service.lines] == ["a", "b"]
    assert "total" in total.get_ylabel() and "extended" in extended.get_ylabel()
    written = plot_fairness(sweep, tmp_path / "fairness")
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in plot_fairness(sweep, tmp_path / "fairness")] == before
