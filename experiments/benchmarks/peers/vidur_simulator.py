"""Driver: Vidur 0.0.26's Sarathi scheduler and event loop on given arrivals and lengths.

Arguments (JSON): requests (a CSV of Date, Time, PromptTokenCount, CompletionTokenCount),
chunk_size, max_running, accelerator, engine.

The wheel ships no profiles and would fetch them, so its random-forest predictor is replaced by the
testbed's closed-form roofline: both simulators then take the same step times, and Vidur is spared
about ten table lookups a step.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stand_ins

stand_ins.install("vidur")

import pandas as pd
from vidur._native.entities import ExecutionTime  # type: ignore[import-not-found]
from vidur.config import (  # type: ignore[import-not-found]
    ClusterConfig,
    MetricsConfig,
    ReplicaConfig,
    SimulationConfig,
)
from vidur.config.config import (  # type: ignore[import-not-found]
    SarathiSchedulerConfig,
    TraceRequestGeneratorConfig,
)
from vidur.execution_time_predictor import (  # type: ignore[import-not-found]
    ExecutionTimePredictorRegistry,
)
from vidur.simulator import Simulator  # type: ignore[import-not-found]
from vidur.types import ExecutionTimePredictorType  # type: ignore[import-not-found]

from testbed.core.batch import BatchShape
from testbed.sim.hardware import MODELS, get_accelerator, get_efficiency
from testbed.sim.latency import Roofline


def predictor(roofline: Roofline) -> Callable[..., Any]:
    """A class for Vidur's registry that gives a batch the roofline's time, as one operator's."""

    class ClosedForm:
        def __init__(self, predictor_config: Any, replica_config: Any, cache_config: Any) -> None:
            self._layers = replica_config.num_layers_per_pipeline_stage

        def get_execution_time(self, batch: Any, pipeline_stage: int) -> Any:
            decode_rows = decode_context = prefill_rows = prefill_tokens = pairs = context = 0
            for new, end in zip(batch.num_q_tokens, batch.num_kv_tokens, strict=True):
                if new == 1:
                    decode_rows += 1
                    decode_context += end
                else:
                    prefill_rows += 1
                    prefill_tokens += new
                    context += end
                    pairs += new * (end - new) + new * (new + 1) // 2
            shape = BatchShape(
                decode_rows,
                decode_context,
                prefill_rows,
                prefill_tokens,
                pairs,
                context,
                len(batch.num_q_tokens),
            )
            milliseconds = 1e3 * roofline.step_seconds(shape)
            return ExecutionTime(self._layers, *[0.0] * 4, milliseconds / self._layers, *[0.0] * 9)

    return ClosedForm


def simulate(requests: str, chunk_size: int, max_running: int, output: str) -> dict[str, float]:
    """One simulation: seconds of the event loop, and of everything from configuration to CSV."""
    begin = time.perf_counter()
    simulator = Simulator(
        SimulationConfig(
            cluster_config=ClusterConfig(
                replica_config=ReplicaConfig(
                    model_name="meta-llama/Llama-3-8B",
                    num_pipeline_stages=1,
                    tensor_parallel_size=1,
                ),
                replica_scheduler_config=SarathiSchedulerConfig(
                    batch_size_cap=max_running, chunk_size=chunk_size
                ),
            ),
            request_generator_config=TraceRequestGeneratorConfig(
                trace_file=requests,
                prefill_scale_factor=1.0,
                time_scale_factor=1.0,
                max_tokens=4096,
            ),
            metrics_config=MetricsConfig(
                write_json_trace=False,
                enable_chrome_trace=False,
                store_plots=False,
                output_dir=output,
            ),
        )
    )
    write = simulator._write_output
    ends = []
    simulator._write_output = lambda: ends.append(time.perf_counter())
    start = time.perf_counter()
    simulator.run()
    write()
    return {"loop_s": ends[0] - start, "whole_s": time.perf_counter() - begin}


def main(
    requests: str, chunk_size: int, max_running: int, accelerator: str, engine: str
) -> dict[str, Any]:
    """One simulation, with what it simulated."""
    roofline = Roofline(
        MODELS["llama-3.1-8b"], get_accelerator(accelerator), get_efficiency(accelerator, engine)
    )
    kind = ExecutionTimePredictorType.RANDOM_FORREST
    ExecutionTimePredictorRegistry.unregister(kind)
    ExecutionTimePredictorRegistry.register(kind, predictor(roofline))
    with tempfile.TemporaryDirectory() as output, contextlib.redirect_stdout(sys.stderr):
        times = simulate(requests, chunk_size, max_running, output)
        written = pd.read_csv(next(Path(output).glob("*/request_metrics.csv")))
    return {
        **times,
        "requests": len(written),
        "ttft_mean_s": float(written["prefill_e2e_time"].mean()),
        "e2e_mean_s": float(written["request_e2e_time"].mean()),
    }


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
