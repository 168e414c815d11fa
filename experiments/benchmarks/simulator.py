"""Simulated requests per second of wall time, against Vidur."""

from __future__ import annotations

import csv
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from experiments.benchmarks.bars import Bar, Benchmark, Reached
from experiments.benchmarks.peer_venv import VIDUR
from experiments.simulation import Simulation
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.records import RunRecord
from testbed.core.request import Request
from testbed.policies.eviction.recency import Lru
from testbed.policies.routing.load import RoundRobin
from testbed.policies.scheduling.arrival import Fcfs
from testbed.sim.hardware import MODELS, get_accelerator, get_efficiency, kv_pool_tokens
from testbed.sim.latency import Roofline
from testbed.workloads import DrawnLengthsWorkload, PoissonArrivals, Retimed

NUM_REQUESTS = 16_384
RATE = 1.0
NUM_BUSY = 4_096
BUSY_RATE = 10.0
PAGE_SIZE = 16
CHUNK_SIZE = 512
MAX_RUNNING = 256
RUNS = 2
BAR = Bar("product's simulated requests per second / Vidur's", ">=", 50.0)


class Prepared:
    """Requests built beforehand, so that both sides are timed from requests at hand."""

    name = "prepared"
    skipped_lines = 0

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


def synthetic(num_requests: int, rate: float) -> Prepared:
    """1,024 +- 256 tokens in, 256 +- 64 out, nothing shared, Poisson arrivals of `rate` a second.

    At 1 a second, the rate of Vidur's own example, few requests share
    a step and most steps change nothing: Vidur makes an event of each, we pass over runs of them.
    The busier the replica, the smaller that advantage.
    """
    lengths = DrawnLengthsWorkload(num_requests)
    return Prepared(list(Retimed(lengths, PoissonArrivals(rate))))


def simulation(workload: Prepared) -> Simulation:
    """Vidur's defaults where it has them: FCFS, chunked prefill of 512 tokens, one H100."""
    model, accelerator = MODELS["llama-3.1-8b"], get_accelerator("h100")
    return Simulation(
        workload,
        cache=CacheConfig(kv_pool_tokens(model, accelerator) // PAGE_SIZE, PAGE_SIZE),
        scheduler=SchedulerConfig(max_running=MAX_RUNNING, chunk_size=CHUNK_SIZE),
        policy=Fcfs,
        eviction=Lru,
        routing=RoundRobin,
        latency=Roofline(model, accelerator, get_efficiency("h100", "vllm")),
        kv_bytes_per_token=model.kv_bytes_per_token,
    )


def write_vidur_requests(workload: Prepared, path: Path) -> None:
    """The same arrivals and lengths as a trace in Vidur's format."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("Date", "Time", "PromptTokenCount", "CompletionTokenCount"))
        for request in workload.requests:
            # The one date that Vidur's generator keeps by default.
            rows.writerow(
                ("2023-08-21", request.arrival, len(request.prompt), request.max_new_tokens)
            )


def run() -> list[Reached]:
    """Our whole simulation, records included, against Vidur's event loop alone.

    Our runs, which together are shorter than Vidur's one, come half before it and half after it,
    so that a machine that becomes busier or idler meanwhile favours neither.
    """
    print("Vidur's random forest is replaced by our roofline, which only makes it faster.")
    busy = synthetic(NUM_BUSY, BUSY_RATE)
    ours, theirs = _compare(busy)
    print(f"at {BUSY_RATE:g} requests/s, {NUM_BUSY:,} requests (no bar): {ours / theirs:.1f}x")
    ours, theirs = _compare(synthetic(NUM_REQUESTS, RATE))
    return [BAR.reached(ours / theirs)]


def _compare(workload: Prepared) -> tuple[float, float]:
    """Simulated requests per wall second, ours and Vidur's."""
    seconds = [_timed(workload)[0] for _ in range(RUNS)]
    with tempfile.TemporaryDirectory() as folder:
        requests = Path(folder) / "requests.csv"
        write_vidur_requests(workload, requests)
        peer = VIDUR.run(
            "vidur_simulator.py",
            {
                "requests": str(requests),
                "chunk_size": CHUNK_SIZE,
                "max_running": MAX_RUNNING,
                "accelerator": "h100",
                "engine": "vllm",
            },
        )
    for _ in range(RUNS):
        elapsed, record = _timed(workload)
        seconds.append(elapsed)
    mean_s = statistics.mean(seconds)
    ours, theirs = len(workload) / mean_s, len(workload) / peer["loop_s"]
    print(f"product: {mean_s:.3f} s, {ours:,.0f} requests/s; {_simulated(record)}")
    print(
        f"Vidur: event loop {peer['loop_s']:.2f} s, {theirs:,.0f} requests/s (with its set-up and "
        f"CSV {len(workload) / peer['whole_s']:,.0f}); "
        f"TTFT {1e3 * peer['ttft_mean_s']:.1f} ms, E2E {peer['e2e_mean_s']:.3f} s on average"
    )
    return ours, theirs


def _timed(workload: Prepared) -> tuple[float, RunRecord]:
    start = time.perf_counter()
    record = simulation(workload).run().record
    return time.perf_counter() - start, record


def _simulated(record: RunRecord) -> str:
    requests = record.requests
    ttft = (requests["first_token_s"] - requests["arrival_s"]).mean()
    e2e = (requests["finish_s"] - requests["arrival_s"]).mean()
    return f"TTFT {1e3 * ttft:.1f} ms, E2E {e2e:.3f} s on average"


BENCHMARK = Benchmark(
    "simulator",
    f"how much faster than Vidur 0.0.26 are {NUM_REQUESTS:,} synthetic requests simulated?",
    (BAR,),
    run,
)
