"""The engine on the CPU beside vLLM's CPU build and transformers' continuous batching.

Every side generates greedily for the same prompts, all there at once, on the same fp32 weights and
with the same threads. It runs in the engine's environment; each peer has one of its own. vLLM and
we take turns, the one first, then the other, after one round that is not counted; the figure is the
median of the rounds' ratios, as a busy machine slows down both halves of a round alike.
"""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING

import numpy as np

from experiments.benchmarks.bars import Bar, Benchmark, Reached
from experiments.benchmarks.operator_times import milliseconds_by_part
from experiments.benchmarks.peer_venv import TRANSFORMERS, VLLM, PeerError, Session
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request
from testbed.policies.eviction.recency import Lru
from testbed.policies.scheduling.arrival import Fcfs

if TYPE_CHECKING:
    from testbed.engine.engine import Engine
    from testbed.engine.loop import EngineRun

SHARED, ALONE, OUTPUTS = 512, 64, 32
NUM_REQUESTS = 64
NUM_FOR_TRANSFORMERS = 16
BATCH_TOKENS = 2048
PAGE_SIZE = 16
NUM_PAGES = 1024
ROUNDS = 3
VLLM_BAR = Bar("vLLM's seconds / ours, median of the rounds", ">=", 1.0)
TRANSFORMERS_BAR = Bar("transformers' continuous batching's seconds / ours", ">=", 3.0)


def requests(count: int, vocabulary: int) -> list[Request]:
    """`count` prompts of random tokens: SHARED in common, then ALONE of their own."""
    draw = np.random.default_rng(0)
    shared = draw.integers(0, vocabulary, SHARED)
    return [
        Request(
            id,
            np.concatenate([shared, draw.integers(0, vocabulary, ALONE)]).astype(np.int32),
            max_new_tokens=OUTPUTS,
        )
        for id in range(count)
    ]


def load_engine() -> Engine:
    """SmolLM2-135M in fp32; PeerError says how to get what is missing."""
    try:
        from testbed.engine.engine import Engine
        from testbed.engine.model import SMOLLM2, load_model
    except ModuleNotFoundError as error:
        raise PeerError(
            f"{error.name} is not installed: this benchmark runs in the engine's environment, "
            "which `make test-engine` makes: .venv-engine/bin/python -m experiments.benchmarks ..."
        ) from error
    try:
        return Engine(load_model(SMOLLM2))
    except ValueError as error:
        raise PeerError(str(error)) from error


def serve(engine: Engine, workload: list[Request]) -> tuple[float, EngineRun]:
    """Seconds from the first arrival to the last token, and what happened.

    Allocating the pool is not in it: vLLM does so once, when it starts.
    """
    run = engine.run(
        workload,
        cache=CacheConfig(NUM_PAGES, PAGE_SIZE, insert_at="schedule"),
        scheduler=SchedulerConfig(chunk_size=BATCH_TOKENS),
        policy=Fcfs(),
        eviction=Lru(),
    )
    return float(run.measured["seconds"].sum()), run


def run() -> list[Reached]:
    """ROUNDS rounds against vLLM, one against transformers on fewer requests."""
    engine = load_engine()
    # vLLM takes the threads of torch from here, too.
    threads = os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    folder = engine.model.module.config._name_or_path
    arguments = {"model": folder, "max_batch_tokens": BATCH_TOKENS}
    workload = requests(NUM_REQUESTS, engine.model.vocab_size)
    print(
        f"{NUM_REQUESTS} requests, {SHARED} shared + {ALONE} own tokens, {OUTPUTS} generated; "
        f"{threads} threads",
        flush=True,
    )
    with VLLM.session("vllm_engine.py", arguments) as vllm:
        ratio = _against_vllm(engine, workload, vllm)
    with TRANSFORMERS.session("transformers_batching.py", arguments) as batching:
        few = workload[:NUM_FOR_TRANSFORMERS]
        ours, ours_run = serve(engine, few)
        theirs = batching.ask(**_generation(few))
    print(
        f"{NUM_FOR_TRANSFORMERS} of the requests, once: ours {ours:.2f} s, transformers' "
        f"continuous batching {theirs['seconds']:.2f} s, {_equal(ours_run, theirs['tokens'])}"
    )
    return [TRANSFORMERS_BAR.reached(theirs["seconds"] / ours), VLLM_BAR.reached(ratio)]


def _against_vllm(engine: Engine, workload: list[Request], vllm: Session) -> float:
    pairs: list[tuple[float, float]] = []
    for round in range(ROUNDS + 1):
        theirs = None if round % 2 else vllm.ask(**_generation(workload))
        ours, ours_run = serve(engine, workload)
        theirs = theirs or vllm.ask(**_generation(workload))
        if round:
            pairs.append((ours, theirs["seconds"]))
            print(
                f"round {round}: ours {ours:.2f} s, vLLM {theirs['seconds']:.2f} s, "
                f"ratio {theirs['seconds'] / ours:.2f}, {_equal(ours_run, theirs['tokens'])}",
                flush=True,
            )
    for name, place in (("ours", 0), ("vLLM", 1)):
        median_s = statistics.median(pair[place] for pair in pairs)
        rate = NUM_REQUESTS * OUTPUTS / median_s
        print(f"{name}: median {median_s:.2f} s, {rate:.0f} output tokens/s")
    print(f"ours, one more run, profiled: {_parts(_profiled(engine, workload))}")
    print(f"vLLM, likewise: {_parts(vllm.ask(**_generation(workload, profiled=True)))}", flush=True)
    return statistics.median(theirs / ours for ours, theirs in pairs)


def _generation(workload: list[Request], profiled: bool = False) -> dict[str, object]:
    prompts = [request.prompt.tolist() for request in workload]
    return {"prompts": prompts, "outputs": OUTPUTS, "profiled": profiled}


def _equal(ours: EngineRun, theirs: list[list[int]]) -> str:
    equal = sum(ours.outputs[id].tolist() == tokens for id, tokens in enumerate(theirs))
    return f"{equal} of {len(theirs)} outputs equal"


def _profiled(engine: Engine, workload: list[Request]) -> dict[str, float]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as operators:
        serve(engine, workload)
    return milliseconds_by_part(operators.key_averages())


def _parts(milliseconds: dict[str, float]) -> str:
    return ", ".join(f"{part} {ms / 1e3:.2f} s" for part, ms in milliseconds.items())


BENCHMARK = Benchmark(
    "engine",
    "is the engine on this CPU as fast as vLLM 0.32.0's CPU build (SmolLM2-135M, fp32, "
    f"{NUM_REQUESTS} requests that share {SHARED} tokens)?",
    (TRANSFORMERS_BAR, VLLM_BAR),
    run,
)
