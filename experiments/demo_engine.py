"""The demo's second half: the same schedulers on a real model, beside the simulator.

python -m experiments.demo_engine
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from experiments.demo import POLICIES
from experiments.progress import ProgressBar
from testbed.commands.engine_options import after
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.records import RunRecord
from testbed.engine.engine import Engine
from testbed.engine.loop import EngineRun
from testbed.engine.model import load_model
from testbed.metrics.fidelity import served_figures
from testbed.metrics.results import processor
from testbed.policies import registry
from testbed.sim.latency import FixedLatency
from testbed.sim.recorded import replay
from testbed.sim.world import simulate
from testbed.workloads import AllAtOnce, RagWorkload, Retimed, Workload

MODEL = "tiny-llama"
REQUESTS = 120
CACHE = CacheConfig(num_pages=64, page_size=16)
BATCHING = SchedulerConfig(
    max_running=8, chunk_size=128, reserve="ratio", reserve_ratio=0.2, reserve_ratio_floor=0.2
)


def main() -> int:
    """Run the demo; a few seconds on one core. 1 if the simulator decided anything otherwise."""
    # On matrices this small, a second thread waits more than it computes.
    torch.set_num_threads(1)
    engine = Engine(load_model(MODEL))
    workload = demo_workload(engine.model.vocab_size)
    print(
        f"{len(workload)} requests at once on {MODEL} (random weights), computed by torch on "
        f"{engine.hardware or processor()}"
    )
    with ProgressBar(len(workload) * len(POLICIES), "engine") as bar:
        runs = {
            name: serve(engine, workload, name, after(place * len(workload), bar.show))
            for place, name in enumerate(POLICIES)
        }
    print(
        "\n"
        "               hit rate  hit rate\n"
        "scheduler        engine  simulated\n"
        "-------------  --------  ---------"
    )
    different = {}
    for name, run in runs.items():
        ours = served_figures(run.record)
        theirs = served_figures(predict(workload, name))
        print(f"{name:<13}  {ours['hit_rate']:>8.3f}  {theirs['hit_rate']:>9.3f}")
        if (difference := first_difference(run, name)) is not None:
            different[name] = difference
    decisions = sum(len(run.log.rows) for run in runs.values())
    preempted = sum(int(run.record.requests["preemptions"].sum()) for run in runs.values())
    evicted = sum(int(run.record.steps["evicted_pages"].sum()) for run in runs.values())
    print(f"\nreplayed in the simulator: {decisions:,} decisions", end="")
    print(f" ({evicted:,} pages evicted, {preempted} sequences preempted)", end="")
    print(", all equal" if not different else "")
    for name, difference in different.items():
        print(f"DIFFERENT under {name}: {difference}")
    return 1 if different else 0


def demo_workload(vocab: int) -> Workload:
    """Four tenants' questions about common documents, in prompts of 150 tokens."""
    documents = RagWorkload(
        num_requests=REQUESTS,
        tenants=4,
        system_tokens=32,
        documents=16,
        document_tokens=48,
        question_tokens=22,
        output_tokens=16,
        vocab=vocab,
    )
    return Retimed(documents, AllAtOnce())


def serve(
    engine: Engine, workload: Workload, name: str, progress: Callable[[int], None]
) -> EngineRun:
    """The workload on the real model."""
    return engine.run(
        workload,
        cache=CACHE,
        scheduler=BATCHING,
        policy=registry.scheduling(name),
        eviction=registry.eviction("lru"),
        progress=progress,
    )


def predict(workload: Workload, name: str) -> RunRecord:
    """The workload in the simulator, which is told nothing of the engine's run.

    Any step times will do: where every request waits from the start, they move no decision.
    """
    return simulate(
        workload,
        cache=CACHE,
        scheduler=BATCHING,
        policy=lambda: registry.scheduling(name),
        eviction=lambda: registry.eviction("lru"),
        routing=registry.routing("round_robin"),
        latency=FixedLatency(),
        cost=CostModel(),
    )


def first_difference(run: EngineRun, name: str) -> str | None:
    """The first decision that a replay takes otherwise."""
    again = replay(
        run.added,
        run.measured,
        cache=CACHE,
        scheduler=BATCHING,
        policy=registry.scheduling(name),
        eviction=registry.eviction("lru"),
    )
    return run.log.first_difference(again.log)


if __name__ == "__main__":
    sys.exit(main())
