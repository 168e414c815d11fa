"""The experiments of VTC against what its artifact measured, and against water filling."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments.config import build_simulation
from experiments.run import CONF, register_options
from testbed.core.records import RunRecord
from testbed.metrics.fair_share import max_min_share
from testbed.metrics.service import TOTAL, clients_of, service_curve
from testbed.metrics.service_gap import max_service_gaps

BOUND = 2 * 2 * 10_000
"""2 * w_q * M, the pool of 10,000 tokens."""


@pytest.fixture(autouse=True)
def composed(data: Path) -> Iterator[None]:
    register_options()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        yield


def run(experiment: str, scheduler: str) -> RunRecord:
    config = compose("config", [f"experiment={experiment}", f"scheduler={scheduler}"])
    options: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    return build_simulation(options, partial(instantiate, _convert_="all")).run().record


def rates(record: RunRecord, begin_s: float, end_s: float) -> dict[str, float]:
    """Service per second of each client between two times."""
    before, after = service_curve(record, TOTAL, np.array([begin_s, end_s]))
    given = (after - before) / (end_s - begin_s)
    return dict(zip(clients_of(record).names, given.tolist(), strict=True))


def ttft(record: RunRecord, client: str) -> float:
    mine = record.requests["client"] == client
    waits = record.requests["first_token_s"][mine] - record.requests["arrival_s"][mine]
    return float(waits.mean())


def test_overload_is_served_equally_by_vtc_and_by_demand_by_fcfs() -> None:
    vtc, fcfs = run("vtc_overload", "vtc"), run("vtc_overload", "fcfs")
    assert max_service_gaps(vtc, [TOTAL])[0] <= BOUND < max_service_gaps(fcfs, [TOTAL])[0]
    equal, by_demand = rates(vtc, 60, 360), rates(fcfs, 60, 360)
    assert equal["client-0"] == pytest.approx(equal["client-1"], rel=0.02)
    assert by_demand["client-1"] == pytest.approx(2 * by_demand["client-0"], rel=0.05)
    # The artifact's gap grows by 437 a second; the simulated card's speed is a guess.
    growth = by_demand["client-1"] - by_demand["client-0"]
    assert growth == pytest.approx(437, rel=0.15)


def test_small_clients_get_all_they_ask_for() -> None:
    served = rates(run("vtc_proportional", "vtc"), 60, 600)
    demands = [0.25 * 768, 0.5 * 768, 1.5 * 768]
    shares = max_min_share(demands, sum(served.values()))
    assert list(served.values()) == pytest.approx(shares.tolist(), rel=0.03)
    assert shares[:2].tolist() == demands[:2]


def test_service_follows_weights() -> None:
    # Per weight, all four are served alike while all of them wait.
    served = list(rates(run("vtc_weighted", "vtc"), 60, 360).values())
    assert served == pytest.approx([served[0]] * 4, rel=0.05)


def test_a_light_client_does_not_notice_another_s_growing_load() -> None:
    vtc, fcfs = run("vtc_increase", "vtc"), run("vtc_increase", "fcfs")
    assert ttft(vtc, "client-0") < 0.5 < ttft(fcfs, "client-0")


def test_lcf_over_serves_who_was_light_where_vtc_does_not() -> None:
    vtc, lcf = (rates(run("vtc_shift", name), 330, 590) for name in ("vtc", "lcf"))
    assert abs(vtc["client-0"] - vtc["client-1"]) < BOUND / 260
    assert lcf["client-0"] > 1.1 * lcf["client-1"]


def test_long_prompts_against_long_outputs_stay_within_the_bound() -> None:
    record = run("vtc_poisson_prompt_output", "vtc")
    assert max_service_gaps(record, [TOTAL])[0] <= BOUND
