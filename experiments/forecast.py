"""Prints the forecast of speedups beside what simulations measured, with the error.

    python -m experiments.run -m experiment=forecast output=results/forecast
    python -m experiments.forecast results/forecast

For each run with a cache there must be one with cache.kind=none and the same other options. The
run's own hit rate goes in, so that the error is that of the model behind the forecast.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields

import pandas as pd

from testbed.metrics.forecast import Forecast, Load, forecast
from testbed.metrics.loading import Results, load
from testbed.metrics.results import ResultsError
from testbed.sim.fitted import read_latency
from testbed.sim.hardware import Accelerator, ModelShape, get_efficiency, kv_pool_tokens
from testbed.sim.latency import LatencyModel, Roofline

KIND = "cache.kind"
QUEUES = 1.5
"""Times the seconds of a lone prefill: a longer wait for the first token is a queue's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.forecast")
    parser.add_argument("results", help="the folder of a sweep over cache.kind")
    options = parser.parse_args(arguments)
    try:
        table = forecast_table(load(options.results))
    except (ValueError, OSError, ResultsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table.to_string(index=False, float_format="{:.3f}".format))
    return 0


def forecast_table(results: Results) -> pd.DataFrame:
    """A row for each run with a cache: its hit rate, what was forecast, what was simulated.

    quantity: `prefill saving` where requests hardly queued even without a cache, so that the time
    to the first token is that of a prefill; else `throughput gain`, in requests per second. error:
    forecast over simulated, less 1. ValueError for a run without a partner.
    """
    varied = [name for name in results.overrides if name != KIND]
    summary = results.summary
    if KIND not in summary:
        raise ValueError(f"no run sets {KIND}; runs with {KIND}=none are needed beside the others")
    keys = summary[["seed", *varied]].astype(str).agg(" ".join, axis=1)
    runs = list(zip(keys, summary.to_dict("records"), strict=True))
    without = {key: run for key, run in runs if run[KIND] == "none"}
    rows = []
    for key, run in runs:
        if run[KIND] == "none":
            continue
        if key not in without:
            raise ValueError(f"run {run['run']}: there is none like it with {KIND}=none")
        cold = without[key]
        expected = _forecast_of(results, run["run"], run["hit_rate"])
        if cold["ttft_mean_s"] < QUEUES * expected.cold_prefill_s:
            quantity, guess = "prefill saving", expected.prefill_saving
            simulated = 1 - run["ttft_mean_s"] / cold["ttft_mean_s"]
        else:
            quantity, guess = "throughput gain", expected.throughput_gain
            simulated = run["requests_per_s"] / cold["requests_per_s"]
        rows.append(
            {name: run[name] for name in varied if summary[name].astype(str).nunique() > 1}
            | {
                "hit_rate": run["hit_rate"],
                "quantity": quantity,
                "forecast": guess,
                "simulated": simulated,
                "error": guess / simulated - 1,
            }
        )
    table = pd.DataFrame(rows)
    return table.sort_values(["quantity", "hit_rate"], ignore_index=True)


def _forecast_of(results: Results, run: str, hit_rate: float) -> Forecast:
    config = results.configs[run]
    requests = results.requests[results.requests["run"] == run]
    hardware, model = config["hardware"], ModelShape(**config["model"])
    accelerator = Accelerator(**{f.name: hardware[f.name] for f in fields(Accelerator)})
    latency: LatencyModel
    if config.get("latency"):
        latency, *_ = read_latency(config["latency"])
    else:
        efficiency = get_efficiency(accelerator.name, hardware["engine"])
        shares = hardware.get("shared_prefix_decode", False)
        latency = Roofline(model, accelerator, efficiency, hardware["tp"], shares)
    pool = config["cache"]["tokens"] or kv_pool_tokens(
        model, accelerator, hardware["tp"], hardware["utilisation"], hardware["reserve_bytes"]
    )
    offered = Load(
        requests["prompt_tokens"].to_numpy(),
        requests["output_tokens"].to_numpy(),
        pool,
        config["batching"]["max_running"],
        config["batching"]["chunk_size"] or config["batching"]["max_prefill_tokens"],
    )
    return forecast(offered, hit_rate, latency.step_seconds)


if __name__ == "__main__":
    sys.exit(main())
