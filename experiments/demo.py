"""The demo: five schedulers on one workload, two at a time; prints a table and draws a figure.

python -m experiments.demo
"""

from __future__ import annotations

import shutil
import time
from collections.abc import MutableSequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import Manager
from pathlib import Path

from experiments.job import run_job
from experiments.progress import ProgressBar
from experiments.simulation import Simulation
from testbed import load
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.policies import registry
from testbed.reports.comparison import compare
from testbed.reports.figures import plot_policies
from testbed.reports.table import comparison_table
from testbed.sim.hardware import get_accelerator, get_efficiency, get_model, kv_pool_tokens
from testbed.sim.latency import Roofline
from testbed.workloads import MooncakeTrace, PoissonArrivals, RagWorkload, Retimed, Workload

POLICIES = ("fcfs", "lpm", "dfs_weight", "vtc", "dlpm", "locality_fair")
HARDWARE, MODEL = "h100", "llama-3.1-8b"
PAGE_SIZE = 16
CLIENTS = 8
WORKERS = 2
FOLDER = Path("results/demo")


def main() -> None:
    """Run the demo; about half a minute on two cores."""
    workload = demo_workload()
    if not isinstance(workload, MooncakeTrace):
        print("The data folder has no Mooncake trace (see CONTRIBUTING.md): a synthetic workload.")
    shutil.rmtree(FOLDER, ignore_errors=True)
    print(
        f"{len(workload):,} requests of the {workload.name} workload, under each of "
        f"{', '.join(POLICIES)};\nsimulated: {MODEL} on one {HARDWARE}, eviction lru\n"
    )
    start = time.perf_counter()
    with Manager() as manager, ProcessPoolExecutor(WORKERS) as pool:
        done = manager.list([0] * len(POLICIES))
        jobs = [pool.submit(run_policy, name, done) for name in POLICIES]
        with ProgressBar(len(workload) * len(POLICIES), "demo") as bar:
            while not all(job.done() for job in jobs):
                bar.show(sum(done))
                time.sleep(0.1)
            bar.show(sum(done))
        for job in jobs:
            job.result()
    wall_seconds = time.perf_counter() - start
    results = load(FOLDER)
    comparison = compare(results)
    print(comparison_table(comparison))
    hours = results.summary["makespan_s"].sum() / 3600
    print(f"{hours:.1f} hours of serving simulated in {wall_seconds:.0f} s; runs in {FOLDER}/")
    print("figure: " + ", ".join(map(str, plot_policies(comparison, FOLDER / "policies"))))


def demo_workload() -> Workload:
    """Mooncake's conversation trace where the data folder has it, else the RAG workload.

    The trace names no clients: its conversations are dealt to CLIENTS of unequal shares.
    """
    try:
        return MooncakeTrace("mooncake/conversation_trace.jsonl", clients=CLIENTS)
    except FileNotFoundError:
        return Retimed(RagWorkload(num_requests=8000, tenants=16), PoissonArrivals(rate=32.0))


def run_policy(name: str, done: MutableSequence[int]) -> None:
    """Run one policy into its folder; `done` shares its progress with the other processes."""
    workload = demo_workload()
    model, accelerator = get_model(MODEL), get_accelerator(HARDWARE)
    simulation = Simulation(
        workload=workload,
        cache=CacheConfig(kv_pool_tokens(model, accelerator) // PAGE_SIZE, PAGE_SIZE),
        scheduler=SchedulerConfig(),
        policy=partial(registry.scheduling, name),
        eviction=partial(registry.eviction, "lru"),
        routing=partial(registry.routing, "round_robin"),
        latency=Roofline(model, accelerator, get_efficiency(HARDWARE, "vllm")),
        kv_bytes_per_token=model.kv_bytes_per_token,
    )
    config = {
        "workload": workload.name,
        "scheduler": name,
        "eviction": "lru",
        "hardware": HARDWARE,
        "model": MODEL,
        "cache": asdict(simulation.cache),
        "batching": asdict(simulation.scheduler),
        "record": {"steps": True, "decisions": False, "bounds": True},
        "seed": 0,
    }

    def progress(count: int) -> None:
        # Sharing a number costs more than simulating a request.
        if count % 50 == 0 or count == len(workload):
            done[POLICIES.index(name)] = count

    run_job(
        simulation, FOLDER / name, config=config, overrides={"scheduler": name}, progress=progress
    )


if __name__ == "__main__":
    main()
