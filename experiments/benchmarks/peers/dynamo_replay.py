"""Driver: Dynamo 1.3.1's Rust mocker replays a Mooncake trace offline on one worker.

Arguments (JSON): trace, engine (vllm | sglang), page_size, num_pages, speedup (of arrivals),
chunk_size, max_running. `sglang` schedules by longest prefix match. Reading the trace is timed too.
The step times are its built-in polynomial.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from dynamo._core import (  # type: ignore[import-not-found]
    MockEngineArgs,
    SglangArgs,
    run_mocker_trace_replay,
)


def main(
    trace: str,
    engine: str,
    page_size: int,
    num_pages: int,
    speedup: float,
    chunk_size: int,
    max_running: int,
) -> dict[str, Any]:
    """Seconds of one replay, with what it simulated."""
    lpm = SglangArgs(schedule_policy="lpm", page_size=page_size, chunked_prefill_size=chunk_size)
    arguments = MockEngineArgs(
        engine_type=engine,
        num_gpu_blocks=num_pages,
        block_size=page_size,
        max_num_seqs=max_running,
        max_num_batched_tokens=chunk_size,
        sglang=lpm if engine == "sglang" else None,
    )
    start = time.perf_counter()
    report = run_mocker_trace_replay(
        [trace],
        extra_engine_args=arguments,
        num_workers=1,
        arrival_speedup_ratio=speedup,
        trace_block_size=512,
    )
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "requests": report["completed_requests"],
        "hit_rate": report["first_admission_prefix_cache_reused_ratio"],
        "simulated_s": report["duration_ms"] / 1e3,
        "ttft_mean_s": report["mean_ttft_ms"] / 1e3,
    }


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
