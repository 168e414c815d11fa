"""Whether simulated times are the engine's, on this CPU, for loads that no fit has seen.

In every round each load is served once, between two calibration passes, as a machine does not keep
one speed for minutes. The latency model is fitted to all calibration passes. Each run is predicted
at the speed that the machine had in the passes around it. The median of the errors may be as large
as its limit, or as the distance of a run of the engine from the runs' median where that is larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from experiments.benchmarks.bars import Bar, Benchmark, Reached
from experiments.benchmarks.peer_venv import PeerError
from experiments.progress import ProgressBar
from testbed.commands.calibrate import residual_table
from testbed.commands.engine_options import after
from testbed.commands.free_running import simulate_case
from testbed.core.records import Columns, RunRecord, joined
from testbed.metrics.fidelity import Prediction, compare_runs
from testbed.reports.fidelity import NAMES, fidelity_table
from testbed.sim.fitted import Residual, fit_latency, residuals

if TYPE_CHECKING:
    from testbed.engine.engine import Engine

ROUNDS = 5
NUM_REQUESTS = 120
LIMITS = MappingProxyType(
    {
        "output_tokens_per_s": 0.03,
        "makespan_s": 0.03,
        "ttft_p50_s": 0.05,
        "ttft_p95_s": 0.10,
        "tpot_p50_s": 0.04,
        "tpot_p95_s": 0.10,
        "hit_rate": 0.0005,
    }
)
"""Errors that are small enough: relative; of the hit rate, 0.05 points."""
BARS = MappingProxyType(
    {
        figure: Bar(
            f"loads whose {NAMES[figure].removesuffix(' ms').removesuffix(' s')} is off by more "
            + (f"than {limit:.0%}" if figure != "hit_rate" else f"than {100 * limit:.2f} points")
            + " and the engine's own spread",
            "==",
            0,
            "loads",
        )
        for figure, limit in LIMITS.items()
    }
)


def load_engine() -> Engine:
    """A model of 4 million parameters with random weights, which stay in the CPU's caches.

    Its steps take milliseconds, as those of a large model on a GPU do. PeerError without torch.
    """
    try:
        import torch
        from transformers import LlamaConfig

        from testbed.engine.engine import Engine
        from testbed.engine.model import build_module, wrap_module
        from testbed.engine.packed_linear import pack_linear_layers
    except ModuleNotFoundError as error:
        raise PeerError(
            f"{error.name} is not installed: this benchmark runs in the engine's environment, "
            "which `make test-engine` makes: .venv-engine/bin/python -m experiments.benchmarks ..."
        ) from error
    # Two threads wait for each other whenever anything else runs.
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    module = build_module(config, dtype=torch.float32, seed=0)
    pack_linear_layers(module)
    return Engine(wrap_module("llama-4m", module, torch.device("cpu")))


class PairedRuns(NamedTuple):
    """Runs of the engine by load, and run by run what was predicted of them.

    passes: how many calibration passes the prices were fitted to, and how well they fit.
    """

    measured: Mapping[str, list[RunRecord]]
    predicted: Mapping[str, list[RunRecord]]
    passes: int
    residuals: Mapping[str, Residual]


def paired_runs(engine: Engine, rounds: int, num_requests: int) -> PairedRuns:
    """Calibrate and serve in turns, then fit and predict."""
    from testbed.engine import calibration
    from testbed.engine.held_out import held_out_cases

    grid = calibration.CalibrationGrid()
    calibration.warm_up(engine, grid)
    cases = held_out_cases(engine, grid, num_requests)
    calibrating = calibration.num_requests(grid)
    served = sum(calibrating + len(case.workload) for case in cases)
    passes: list[Columns] = []
    measured: dict[str, list[RunRecord]] = {case.name: [] for case in cases}
    with ProgressBar(rounds * served + calibrating, "engine") as bar:
        done = 0
        for case in rounds * cases:
            passes.append(calibration.measure_steps(engine, grid, after(done, bar.show)))
            done += calibrating
            measured[case.name].append(case.run(engine, after(done, bar.show)).record)
            done += len(case.workload)
        passes.append(calibration.measure_steps(engine, grid, after(done, bar.show)))
    latency = fit_latency(joined(passes))
    took = [1 / (1 + residuals(latency, each)["all"].total_error) for each in passes]
    predicted: dict[str, list[RunRecord]] = {case.name: [] for case in cases}
    for case, before, later in zip(rounds * cases, took, took[1:], strict=False):
        then = latency.slower((before + later) / 2)
        predicted[case.name].append(simulate_case(case, then))
    return PairedRuns(measured, predicted, len(passes), residuals(latency, joined(passes)))


def run() -> list[Reached]:
    """Measure, predict, compare."""
    runs = paired_runs(load_engine(), ROUNDS, NUM_REQUESTS)
    print(f"the fit, on {runs.passes} calibration passes:\n{residual_table(runs.residuals)}")
    predictions = [
        row
        for load, measured in runs.measured.items()
        for row in compare_runs(load, runs.predicted[load], measured)
    ]
    print(
        f"\n{ROUNDS} runs of each load, none of them in the fit:\n{fidelity_table(predictions)}\n"
    )
    return judge(predictions)


def judge(predictions: list[Prediction]) -> list[Reached]:
    """For each figure how many loads it was predicted too badly for."""
    close = sum(abs(row.error) <= LIMITS[row.figure] for row in predictions)
    print(f"errors within the limits, whatever the spread: {close} of {len(predictions)}\n")
    return [
        bar.reached(
            sum(
                abs(row.error) > max(LIMITS[figure], row.spread)
                for row in predictions
                if row.figure == figure
            )
        )
        for figure, bar in BARS.items()
    ]


BENCHMARK = Benchmark(
    "fidelity",
    "are simulated latencies and throughput those of the engine, below saturation to thrashing?",
    tuple(BARS.values()),
    run,
)
