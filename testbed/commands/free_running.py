"""Free-running validation: the simulator's times against the engine's."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from testbed.commands.engine_options import after, latency_file, progress_bar

if TYPE_CHECKING:
    from testbed.core.records import RunRecord
    from testbed.engine.engine import Engine
    from testbed.engine.held_out import Case
    from testbed.sim.latency import LatencyModel


def validate_times(engine: Engine, options: argparse.Namespace) -> int:
    """Print predicted beside measured; 0, as what error is small enough is the user's to say."""
    from testbed.engine.calibration import CalibrationGrid, warm_up
    from testbed.engine.held_out import held_out_cases
    from testbed.metrics.fidelity import compare_runs
    from testbed.metrics.results import processor
    from testbed.reports.fidelity import fidelity_table, plot_fidelity
    from testbed.sim.fitted import read_latency

    hardware = engine.hardware or processor()
    file = options.latency or latency_file(engine, hardware)
    latency, facts = read_latency(file)
    if "grid" not in facts:
        raise ValueError(f"latency={str(file)!r}: a file that `testbed calibrate` wrote is needed")
    here = {
        "model": engine.model.name,
        "hardware": hardware,
        "dtype": options.dtype,
        "threads": options.threads,
        "share_prefixes": engine.share_prefixes,
    }
    for name, value in here.items():
        if facts.get(name) != value:
            print(f"note: calibrated with {name} {facts.get(name)!r}, here it is {value!r}")
    grid = CalibrationGrid(**facts["grid"])
    warm_up(engine, grid)
    cases = held_out_cases(engine, grid, options.requests or 60, seed=options.seed)
    predictions = []
    total = sum(len(case.workload) for case in cases) * options.runs
    done = 0
    measured: dict[str, list[RunRecord]] = {case.name: [] for case in cases}
    with progress_bar(total, "engine") as show:
        # In turns, so that a machine that slows down does so for all of them.
        for _ in range(options.runs):
            for case in cases:
                measured[case.name].append(case.run(engine, after(done, show)).record)
                done += len(case.workload)
    for case in cases:
        predicted = options.runs * [simulate_case(case, latency)]
        predictions += compare_runs(case.name, predicted, measured[case.name])
    print(f"{engine.model.name} on {hardware}, {options.runs} runs of the engine each\n")
    print(fidelity_table(predictions))
    if options.figure is not None:
        written = ", ".join(map(str, plot_fidelity(predictions, options.figure)))
        print(f"figure: {written}")
    return 0


def simulate_case(case: Case, latency: LatencyModel) -> RunRecord:
    """What the simulator predicts for the case."""
    from testbed.core.cost import CostModel
    from testbed.policies import registry
    from testbed.sim.world import simulate

    return simulate(
        case.workload,
        cache=case.cache,
        scheduler=case.scheduler,
        policy=lambda: registry.scheduling(case.policy),
        eviction=lambda: registry.eviction(case.eviction),
        routing=registry.routing("round_robin"),
        latency=latency,
        # What the engine's policies see, which has no latency model.
        cost=CostModel(),
    )
