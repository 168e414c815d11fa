"""Whether simulated times are the engine's, on this CPU, for loads that no fit has seen.

In every round each load is served once, after a calibration pass of its own, as a machine does not
keep one speed for minutes. The latency model is fitted to all calibration passes; each load's
figures are predicted once and held against the median of the engine's runs. An error may be as
large as its limit, or as the distance of a run of the engine from that median where that is larger.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from experiments.benchmarks.bars import Bar, Benchmark, Reached
from experiments.benchmarks.peer_venv import PeerError
from experiments.progress import ProgressBar
from testbed.commands.calibrate import residual_table
from testbed.commands.engine_options import after
from testbed.commands.free_running import simulate_case
from testbed.core.records import RunRecord, joined
from testbed.metrics.fidelity import Prediction, compare_runs
from testbed.reports.fidelity import NAMES, fidelity_table
from testbed.sim.fitted import fit_latency, residuals

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


def run() -> list[Reached]:
    """Calibrate, measure, predict, compare."""
    engine = load_engine()
    from testbed.engine.calibration import CalibrationGrid, measure_steps, num_requests, warm_up
    from testbed.engine.held_out import held_out_cases

    grid = CalibrationGrid()
    warm_up(engine, grid)
    cases = held_out_cases(engine, grid, NUM_REQUESTS)
    passes = []
    runs: dict[str, list[RunRecord]] = {case.name: [] for case in cases}
    a_round = sum(num_requests(grid) + len(case.workload) for case in cases)
    with ProgressBar(ROUNDS * a_round, "fidelity") as bar:
        done = 0
        for case in ROUNDS * cases:
            passes.append(measure_steps(engine, grid, after(done, bar.show)))
            done += num_requests(grid)
            runs[case.name].append(case.run(engine, after(done, bar.show)).record)
            done += len(case.workload)
    measured = joined(passes)
    latency = fit_latency(measured)
    print(
        f"the fit, on {ROUNDS} calibration passes:\n{residual_table(residuals(latency, measured))}"
    )
    predictions = [
        row
        for case in cases
        for row in compare_runs(case.name, simulate_case(case, latency), runs[case.name])
    ]
    print(
        f"\n{ROUNDS} runs of each load, none of them in the fit:\n{fidelity_table(predictions)}\n"
    )
    return judge(predictions)


def judge(predictions: list[Prediction]) -> list[Reached]:
    """For each figure how many loads it was predicted too badly for."""
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
