"""`testbed validate`: does the simulator decide, and predict, what the engine did?"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from testbed.commands.engine_options import (
    add_engine_options,
    build_engine,
    positive,
    progress_bar,
)
from testbed.commands.free_running import validate_times

if TYPE_CHECKING:
    from testbed.core.config import CacheConfig, SchedulerConfig
    from testbed.core.cost import CostModel
    from testbed.core.decisions import Decision
    from testbed.core.records import Columns
    from testbed.engine.engine import Engine
    from testbed.engine.loop import EngineRun
    from testbed.sim.recorded import Replay
    from testbed.workloads import Workload


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "validate",
        help="hold the simulator against the engine",
        description="Serve a workload on the engine, record it, let the simulator decide it anew "
        "with the recorded step times, and compare every decision: batches, order, hit tokens, "
        "page ids, evictions, preemptions. The exit status is 0 if all are equal, 1 if one is not, "
        "2 after a mistake.",
    )
    parser.add_argument(
        "run", nargs="?", type=Path, help="folder of a recorded engine run to replay instead"
    )
    add_engine_options(parser)
    parser.add_argument(
        "--workload",
        default="shared",
        help="shared (prompts over common documents, sized for a tiny model) or the path of a "
        "trace in Mooncake's format (default: %(default)s)",
    )
    parser.add_argument(
        "--requests", type=positive, metavar="N", help="how many (default: 24; 60 free-running)"
    )
    parser.add_argument(
        "--rate", type=float, help="Poisson arrivals a second; all at once unless given"
    )
    parser.add_argument(
        "--scheduler", default="lpm", help="a name or package.module:Class (default: %(default)s)"
    )
    parser.add_argument("--eviction", default="lru", help="likewise (default: %(default)s)")
    parser.add_argument("--batching", default="mixed", choices=("mixed", "prefill_first"))
    parser.add_argument("--page-size", type=positive, default=16, help="(default: %(default)s)")
    parser.add_argument(
        "--pages",
        type=_pages,
        metavar="N",
        help="of the pool; auto: as many as fit the free memory (default: so few that sequences "
        "are preempted)",
    )
    parser.add_argument(
        "--chunk-size", type=int, default=64, help="prefill tokens a step (default: %(default)s)"
    )
    parser.add_argument(
        "--reserve",
        default="ratio",
        choices=("full", "ratio", "peak"),
        help="what admission keeps free; ratio takes 5 %%, so that memory runs short (default: "
        "%(default)s)",
    )
    parser.add_argument("--insert-at", default="commit", choices=("commit", "schedule"))
    parser.add_argument(
        "--latency",
        type=Path,
        metavar="FILE",
        help="what calibrate wrote, for policies that weigh costs (default: a second for each "
        "computed token); free-running, what predicts, if not at its usual place",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the workload (default: 0)")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="also save the engine's run")
    times = parser.add_argument_group(
        "free-running",
        "Instead of decisions, compare times: simulate loads below, at and past saturation and one "
        "whose cache thrashes, with a latency model of `testbed calibrate`, and serve them.",
    )
    times.add_argument("--free-running", action="store_true")
    times.add_argument("--runs", type=positive, default=5, help="of the engine (default: 5)")
    times.add_argument(
        "--figure", type=Path, metavar="STEM", help="also write STEM.pdf, STEM.png and STEM.csv"
    )
    parser.set_defaults(command=_validate)


def _pages(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return positive(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or auto") from error


def _validate(options: argparse.Namespace) -> int:
    if options.run is not None:
        return _validate_folder(options.run)
    engine = build_engine(options)

    from testbed.engine.loop import RunFailed

    validate = validate_times if options.free_running else _validate_decisions
    try:
        return validate(engine, options)
    except MemoryError as error:
        raise ValueError(f"pages: {error}") from error
    except RunFailed as failure:
        print(f"the run failed at {failure}")
        return 1


def _validate_decisions(engine: Engine, options: argparse.Namespace) -> int:
    from testbed.core.config import CacheConfig, SchedulerConfig
    from testbed.engine.kv_pool import pages_that_fit
    from testbed.engine.loop import RunFailed
    from testbed.metrics.results import ResultsError, config_hash, is_complete
    from testbed.policies import registry
    from testbed.sim.fitted import read_latency

    workload = _workload(options, engine.model.vocab_size)
    if options.pages == "auto":
        pages = pages_that_fit(engine.model, options.page_size)
    else:
        longest = max(len(r.prompt) + r.max_new_tokens for r in workload)
        longest = min(longest, engine.model.context_tokens)
        # Three of the longest sequences: a fourth one has to evict, and soon to preempt.
        pages = options.pages or 3 * -(-longest // options.page_size)
    cache = CacheConfig(num_pages=pages, page_size=options.page_size, insert_at=options.insert_at)
    scheduler = SchedulerConfig(
        chunk_size=options.chunk_size,
        batching=options.batching,
        reserve=options.reserve,
        reserve_ratio=0.05,
        reserve_ratio_floor=0.05,
    )
    prices = None
    if options.latency is not None:
        prices = dict(read_latency(options.latency)[0].prices)
    config = {
        "model": options.model,
        "device": options.device,
        "dtype": options.dtype,
        "share_prefixes": options.share_prefixes,
        "workload": workload.name if options.workload == "shared" else options.workload,
        "requests": len(workload),
        "rate": options.rate,
        "scheduler": options.scheduler,
        "eviction": options.eviction,
        "cache": asdict(cache),
        "batching": asdict(scheduler),
        "cost": prices,
        "seed": options.seed,
    }
    try:
        if options.output is not None and is_complete(options.output, config_hash(config)):
            raise ResultsError(
                f"{options.output} holds this run already: `testbed validate {options.output}` "
                "replays it; another folder is needed for another run"
            )
        start = perf_counter()
        failure = None
        with progress_bar(len(workload), "engine") as show:
            try:
                run = engine.run(
                    workload,
                    cache=cache,
                    scheduler=scheduler,
                    policy=registry.scheduling(options.scheduler),
                    eviction=registry.eviction(options.eviction),
                    cost=_cost(config),
                    progress=show,
                )
            except RunFailed as error:
                run, failure = error.partial, error
        if options.output is not None:
            _save(options.output, engine, run, config, perf_counter() - start, failure)
    except ResultsError as error:
        raise ValueError(" ".join(str(error).split())) from error
    if failure is not None:
        kept = f"; what was done is in {options.output}" if options.output is not None else ""
        print(f"the run failed at {failure}{kept}")
        return 1
    again = _replay(run.added, run.measured, config, cache, scheduler)
    return _verdict(run.log.rows, again)


def _validate_folder(folder: Path) -> int:
    """Replay a recorded run; its tables hold all that is needed."""
    from testbed.core.config import CacheConfig, SchedulerConfig
    from testbed.core.records import ADDED_COLUMNS, DECISION_COLUMNS, MEASURED_COLUMNS
    from testbed.metrics.loading import load
    from testbed.metrics.results import ResultsError

    try:
        results = load(folder)
        if len(results.folders) != 1:
            raise ResultsError(f"{folder}: the folder of one run is needed, not of a sweep")
        frames = (results.added, results.measured, results.decisions)
        (config,) = results.configs.values()
    except ResultsError as error:
        raise ValueError(" ".join(str(error).split())) from error
    added, measured, decisions = (
        {name: frame[name].to_numpy() for name in schema}
        for frame, schema in zip(
            frames, (ADDED_COLUMNS, MEASURED_COLUMNS, DECISION_COLUMNS), strict=True
        )
    )
    if not len(measured["step"]) or not len(decisions["step"]):
        raise ValueError(f"{folder}: a run that an engine recorded is needed, with its decisions")
    try:
        cache, scheduler = CacheConfig(**config["cache"]), SchedulerConfig(**config["batching"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder}/config.yaml: no config of an engine run: {error}") from error
    rows = list(zip(*(decisions[name].tolist() for name in DECISION_COLUMNS), strict=True))
    return _verdict(rows, _replay(added, measured, config, cache, scheduler))


def _workload(options: argparse.Namespace, vocab: int) -> Workload:
    from testbed.workloads import AllAtOnce, MooncakeTrace, PoissonArrivals, RagWorkload, Retimed

    count = options.requests or 24
    if options.workload != "shared":
        return MooncakeTrace(options.workload, limit=count, vocab=vocab, seed=options.seed)
    documents = RagWorkload(
        num_requests=count,
        tenants=3,
        system_tokens=24,
        documents=8,
        document_tokens=40,
        question_tokens=12,
        output_tokens=40,
        vocab=vocab,
        seed=options.seed,
        name="shared",
    )
    if options.rate is None:
        return Retimed(documents, AllAtOnce())
    return Retimed(documents, PoissonArrivals(options.rate, seed=options.seed))


def _replay(
    added: Columns,
    measured: Columns,
    config: Mapping[str, Any],
    cache: CacheConfig,
    scheduler: SchedulerConfig,
) -> Replay:
    from testbed.policies import registry
    from testbed.sim.recorded import replay

    return replay(
        added,
        measured,
        cache=cache,
        scheduler=scheduler,
        policy=registry.scheduling(config["scheduler"]),
        eviction=registry.eviction(config["eviction"]),
        cost=_cost(config),
    )


def _cost(config: Mapping[str, Any]) -> CostModel | None:
    """Of a calibrated model's prices, which the config keeps: a file may change."""
    from testbed.core.cost import CostModel
    from testbed.sim.fitted import FittedLatency

    prices = config.get("cost")
    return None if prices is None else CostModel(FittedLatency(prices).step_seconds)


def _save(
    folder: Path,
    engine: Engine,
    run: EngineRun,
    config: Mapping[str, Any],
    wall_seconds: float,
    failure: Exception | None,
) -> None:
    from testbed.metrics.results import processor, write_run
    from testbed.metrics.summary import summarize

    write_run(
        folder,
        config=config,
        record=run.record,
        summary=summarize(run.record),
        seed=config["seed"],
        wall_seconds=wall_seconds,
        overrides={"scheduler": config["scheduler"], "eviction": config["eviction"]},
        added=run.added,
        measured=run.measured,
        machine={
            "hardware": engine.hardware or processor(),
            **{name: config[name] for name in ("model", "device", "dtype")},
        },
        failure=None if failure is None else str(failure),
    )


def _verdict(engine: list[Decision], again: Replay) -> int:
    """Say whether the simulator decided alike; the exit status."""
    from testbed.core.records import DECISION_KINDS

    counts = Counter(row[2] for row in engine)
    kinds = ", ".join(f"{counts[kind]:,} {kind}" for kind in DECISION_KINDS)
    steps = max((row[1] for row in engine), default=0)
    print(f"{len(engine):,} decisions in {steps:,} steps: {kinds}")
    simulator = again.log.rows
    if engine == simulator:
        print("equal: the simulator repeats every decision of the engine")
        return 0
    place = next(
        (i for i, (a, b) in enumerate(zip(engine, simulator, strict=False)) if a != b),
        min(len(engine), len(simulator)),
    )
    print(f"different from decision {place} on")
    for name, rows in (("engine", engine), ("simulator", simulator)):
        print(f"  {name:<10} {_shown(rows[place]) if place < len(rows) else 'nothing more'}")
    if again.diverged is not None:
        print(f"  the simulator stops at {again.diverged}")
    return 1


def _shown(row: Decision) -> str:
    from testbed.core.records import DECISION_COLUMNS

    named = dict(zip(DECISION_COLUMNS, row, strict=True))
    kind, step = named.pop("kind"), named.pop("step")
    return f"step {step} {kind}: " + ", ".join(f"{name} {value}" for name, value in named.items())
