"""`python -m experiments.benchmarks [NAME]`: list the benchmarks, or run one and hold its bars."""

from __future__ import annotations

import sys

from experiments.benchmarks import (
    advisor,
    cache,
    cluster,
    engine,
    eviction,
    exact,
    fairness,
    fidelity,
    miss_ratio,
    overhead,
    routing,
    scheduling,
    simulator,
    startup,
    sweep,
    trace,
)
from experiments.benchmarks.bars import Benchmark
from experiments.benchmarks.peer_venv import PeerError

BENCHMARKS = tuple(
    module.BENCHMARK
    for module in (
        exact,
        cache,
        simulator,
        trace,
        miss_ratio,
        advisor,
        scheduling,
        fairness,
        eviction,
        routing,
        cluster,
        engine,
        overhead,
        fidelity,
        sweep,
        startup,
    )
)


def main(arguments: list[str], benchmarks: tuple[Benchmark, ...] = BENCHMARKS) -> int:
    """The exit code: 0 if every bar holds, 1 if one does not, 2 if the benchmark cannot run."""
    by_name = {benchmark.name: benchmark for benchmark in benchmarks}
    match arguments:
        case []:
            for benchmark in benchmarks:
                print(f"{benchmark.name}: {benchmark.question}")
                for bar in benchmark.bars:
                    print(f"    {bar}")
            return 0
        case [name] if name in by_name:
            return _run(by_name[name])
        case _:
            given = " ".join(arguments)
            print(f"benchmark {given!r}: one of {', '.join(by_name)} is needed", file=sys.stderr)
            return 2


def _run(benchmark: Benchmark) -> int:
    print(f"{benchmark.name}: {benchmark.question}")
    try:
        reached = benchmark.run()
    except (PeerError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    for result in reached:
        print(result)
    return 0 if all(result.holds for result in reached) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
