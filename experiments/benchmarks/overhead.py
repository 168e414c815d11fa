"""What a decode step of the engine costs besides the model."""

from __future__ import annotations

import numpy as np

from experiments.benchmarks.bars import Bar, Benchmark, Reached
from experiments.benchmarks.engine import NUM_REQUESTS, load_engine, requests, serve

BAR = Bar(f"outside the model's forward, of a step of {NUM_REQUESTS} decodes", "<", 5.0, "%")


def run() -> list[Reached]:
    """The median step of those that decode for all requests and do nothing else."""
    engine = load_engine()
    workload = requests(NUM_REQUESTS, engine.model.vocab_size)
    _, served = serve(engine, workload)
    measured = served.measured
    full = (measured["decode_rows"] == NUM_REQUESTS) & (measured["prefill_rows"] == 0)
    seconds, forward = measured["seconds"][full], measured["forward_s"][full]
    prepare, sample = measured["prepare_s"][full], measured["sample_s"][full]
    parts = {
        "step": seconds,
        "forward": forward,
        "prepare": prepare,
        "sample": sample,
        "schedule and commit": seconds - forward - prepare - sample,
    }
    medians = ", ".join(f"{name} {1e3 * np.median(part):.2f}" for name, part in parts.items())
    print(f"{len(seconds)} steps, median ms: {medians}")
    return [BAR.reached(float(100 * np.median(1 - forward / seconds)))]


BENCHMARK = Benchmark(
    "overhead",
    f"how much of a decode step of SmolLM2-135M with {NUM_REQUESTS} sequences is not the model?",
    (BAR,),
    run,
)
