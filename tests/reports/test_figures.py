"""The figure: what it draws, that it is the same every time, and how its files are written."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.policies import registry
from testbed.reports import style
from testbed.reports.comparison import Comparison, compare
from testbed.reports.figures import plot_policies, policy_figure, policy_table
from testbed.reports.style import PALETTE, POLICY_LOOKS, colours, looks


def summary(hit: float, throughput: float, bound: float = 0.6) -> dict[str, float]:
    return {
        "hit_rate": hit,
        "clairvoyant_bound": bound,
        "sharing_bound": 0.75,
        "output_tokens_per_s": throughput,
    }


@pytest.fixture
def comparison(make_sweep: Any) -> Comparison:
    return compare(
        make_sweep(
            ({"scheduler": "fcfs"}, 0, summary(0.25, 100.0)),
            ({"scheduler": "fcfs"}, 1, summary(0.35, 300.0)),
            ({"scheduler": "lpm"}, 0, summary(0.5, 400.0)),
        )
    )


def test_bars_and_ticks_are_where_the_numbers_are(comparison: Comparison) -> None:
    hit, throughput = policy_figure(comparison).axes
    assert [bar.get_width() for bar in hit.patches] == pytest.approx([0.3, 0.5])
    assert [bar.get_width() for bar in throughput.patches] == [200.0, 400.0]
    assert [text.get_text() for text in hit.get_yticklabels()] == ["fcfs", "lpm"]
    lines = {c.get_label(): c for c in hit.collections if not c.get_label().startswith("_")}
    drawn = {name: [s[0][0] for s in c.get_segments()] for name, c in lines.items()}
    assert list(drawn.values()) == [[0.6, 0.6], [0.75, 0.75]]
    assert hit.get_xlim()[0] == 0 and hit.get_xlim()[1] > 0.75


def test_bounds_that_were_not_computed_are_left_out(make_sweep: Any) -> None:
    alone = {**summary(0.5, 1.0), "clairvoyant_bound": math.nan, "sharing_bound": math.nan}
    figure = policy_figure(compare(make_sweep(({"scheduler": "lpm"}, 0, alone))))
    assert figure.legends == []


def test_the_numbers_lie_beside_the_figure(comparison: Comparison, tmp_path: Path) -> None:
    written = plot_policies(comparison, tmp_path / "figures" / "policies")
    assert [path.name for path in written] == ["policies.pdf", "policies.png", "policies.csv"]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(
        path.name for path in written
    )
    rows = [line.split(",") for line in written[2].read_text().splitlines()]
    assert rows[0][:4] == ["label", "seeds", "hit_rate", "hit_rate_half_width"]
    # Two seeds 0.1 apart: 12.706 * 0.0707107 / sqrt 2.
    assert rows[1][:4] == ["fcfs", "2", "0.3", "0.6353"]
    assert rows[2][:4] == ["lpm", "1", "0.5", ""]


def test_an_oracle_is_marked_in_figure_and_numbers(make_sweep: Any) -> None:
    numbers = summary(0.5, 9.0)
    sweep = make_sweep(({"scheduler": "oracle"}, 0, numbers), ({"scheduler": "lpm"}, 0, numbers))
    comparison = compare(sweep)
    figure = policy_figure(comparison)
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["lpm", "oracle†"]
    assert figure.get_supxlabel().startswith("† oracle")
    assert policy_table(comparison)["oracle"].tolist() == [False, True]


def test_equal_results_give_equal_bytes_in_any_process(tmp_path: Path) -> None:
    program = (
        "import sys, pandas as pd\n"
        "from testbed.reports.comparison import Comparison\n"
        "from testbed.reports.figures import plot_policies\n"
        "columns = ['hit_rate', 'clairvoyant_bound', 'sharing_bound', 'output_tokens_per_s']\n"
        "rows = {l: pd.DataFrame([[.1, .2, .3, 4.]], columns=columns) for l in ('fcfs', 'new')}\n"
        "plot_policies(Comparison(('scheduler',), rows), sys.argv[1])\n"
    )
    for name, seed in (("a", "1"), ("b", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": seed}
        command = [sys.executable, "-c", program, str(tmp_path / name / "figure")]
        subprocess.run(command, env=environment, check=True)
    for kind in ("pdf", "png", "csv"):
        first, second = (tmp_path / name / f"figure.{kind}" for name in "ab")
        assert first.read_bytes() == second.read_bytes(), kind


def test_fonts_are_embedded_as_truetype(comparison: Comparison, tmp_path: Path) -> None:
    pdf = plot_policies(comparison, tmp_path / "policies")[0].read_bytes()
    assert b"/Type3" not in pdf
    assert b"/FontFile2" in pdf


def test_a_policy_keeps_its_look_and_strangers_get_free_colours() -> None:
    assert looks(["lpm", "fcfs"])["lpm"] == looks(["lpm 100", "x"])["lpm 100"]
    chosen = colours(["fcfs", "mine", "lpm", "yours"])
    assert len(set(chosen.values())) == 4
    assert set(chosen.values()) <= set(PALETTE)
    assert len(colours([f"p{i}" for i in range(20)])) == 20


@pytest.mark.parametrize("kind", ["scheduling", "eviction", "routing"])
def test_no_two_policies_of_a_kind_that_ships_look_alike(kind: Any) -> None:
    names = registry.BUILT_IN[kind]
    assert names.keys() <= POLICY_LOOKS.keys()
    assert len({POLICY_LOOKS[name] for name in names}) == len(names)


def test_a_failing_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = style.write_whole(tmp_path / "a.csv", b"old")

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        style.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
