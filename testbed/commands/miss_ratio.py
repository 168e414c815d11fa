"""`testbed miss-ratio`: the hit rate of a file of requests at every cache size."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from testbed.commands.input_options import (
    add_input_options,
    open_records,
    open_workload,
    skipped_lines,
    with_progress,
)

NUM_SIZES = 8


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "miss-ratio",
        help="print a file's hit rate against cache size",
        description="Serve a file's requests one at a time, in order, at several cache sizes: LRU "
        "from stack distances, at all sizes in one pass; other rules by simulation, size by size.",
    )
    add_input_options(parser)
    parser.add_argument("--page-size", type=int, default=16, metavar="TOKENS", help="(default 16)")
    parser.add_argument(
        "--output-tokens",
        type=int,
        default=1,
        metavar="N",
        help="length of the outputs of requests that do not tell theirs (default 1)",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        nargs="+",
        metavar="N",
        help="cache sizes (default: eight, from the longest request to where nothing is evicted)",
    )
    parser.add_argument(
        "--eviction",
        nargs="+",
        default=[],
        metavar="POLICY",
        help="also simulate these eviction policies",
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the table there")
    parser.set_defaults(command=_miss_ratio)


def _miss_ratio(options: argparse.Namespace) -> int:
    from testbed.metrics.bounds import clairvoyant_bound, sharing_bound
    from testbed.metrics.miss_ratio import lru_curve
    from testbed.metrics.prompt_paths import prompt_paths
    from testbed.policies import registry

    for name in options.eviction:
        registry.find("eviction", name)
    if options.page_size < 1:
        raise ValueError(f"--page-size={options.page_size}: at least 1 is needed")
    reader = open_records(options)
    if reader.format == "lengths":
        raise ValueError(
            f"{reader.path}: it holds lengths alone, so that nothing is known of what its prompts "
            "share; a file with prompts, token ids or hash ids is needed"
        )
    workload = open_workload(options)
    paths = prompt_paths(
        with_progress(workload, len(workload)),
        options.page_size,
        min_computed_tokens=0,
        cache_outputs=True,
    )
    curve = lru_curve(paths)
    # The last token of an output is never computed; every other one may need a page.
    smallest = -(-_longest(workload) // options.page_size)
    sizes = _sizes(options, smallest, max(curve.working_set, smallest))
    names = ["lru", *(f"{name} (simulated)" for name in options.eviction), "clairvoyant"]
    rows = []
    for pages in with_progress(sizes, unit="sizes"):
        simulated = [_simulated(workload, pages, options.page_size, x) for x in options.eviction]
        best = clairvoyant_bound(paths, pages).rate
        rows.append((pages * options.page_size, [curve.hit_rate(pages), *simulated, best]))
    if options.csv is not None:
        _write_csv(options.csv, names, rows)
    print(
        f"{len(workload):,} requests{skipped_lines(workload.skipped_lines)}, one at a time, pages "
        f"of {options.page_size} tokens"
    )
    print("  ".join(["   cache tokens", *(f"{name:>7}" for name in names)]))
    for tokens, rates in rows:
        columns = zip(rates, names, strict=True)
        cells = [f"{rate:{max(len(name), 7)}.3f}" for rate, name in columns]
        print("  ".join([f"{tokens:15,}", *cells]))
    print(f"sharing bound, any order and capacity: {sharing_bound(paths).rate:.3f}")
    if curve.working_set > smallest:
        print(f"LRU needs {curve.working_set * options.page_size:,} tokens to hit all it can")
    return 0


def _write_csv(path: Path, names: list[str], rows: list[tuple[int, list[float]]]) -> None:
    from testbed.reports.style import write_whole

    lines = [["cache tokens", *names]]
    lines += [[str(tokens), *(f"{rate:.6g}" for rate in rates)] for tokens, rates in rows]
    write_whole(path, "".join(f"{','.join(line)}\n" for line in lines).encode())


def _longest(workload: Any) -> int:
    lengths = (len(request.prompt) + request.max_new_tokens - 1 for request in workload)
    return max(int(length) for length in lengths)


def _sizes(options: argparse.Namespace, smallest: int, largest: int) -> list[int]:
    """Pages, ascending."""
    if options.tokens is None:
        growth = (largest / smallest) ** (1 / (NUM_SIZES - 1))
        inner = [round(smallest * growth**step) for step in range(1, NUM_SIZES - 1)]
        return sorted({smallest, *inner, largest})
    sizes = sorted({tokens // options.page_size for tokens in options.tokens})
    if sizes[0] < smallest:
        raise ValueError(
            f"--tokens={min(options.tokens)}: at least {smallest * options.page_size} are needed, "
            "for the longest request"
        )
    return sizes


def _simulated(workload: Any, pages: int, page_size: int, eviction: str) -> float:
    from testbed.core.config import CacheConfig, SchedulerConfig
    from testbed.policies import registry
    from testbed.policies.routing.load import RoundRobin
    from testbed.sim import simulate
    from testbed.sim.latency import FixedLatency
    from testbed.workloads import AllAtOnce, Retimed

    record = simulate(
        Retimed(workload, AllAtOnce()),
        cache=CacheConfig(pages, page_size),
        scheduler=SchedulerConfig(
            max_running=1, chunk_size=0, max_prefill_tokens=2**31 - 1, min_computed_tokens=0
        ),
        policy=lambda: registry.scheduling("fcfs"),
        eviction=lambda: registry.eviction(eviction),
        routing=RoundRobin(),
        latency=FixedLatency(),
    )
    columns = record.requests
    return float(columns["cached_tokens"].sum() / columns["prompt_tokens"].sum())
