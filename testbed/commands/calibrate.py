"""`testbed calibrate`: measure an engine's steps and fit a latency model to them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.commands.engine_options import (
    add_engine_options,
    after,
    build_engine,
    latency_file,
    positive,
    progress_bar,
)

if TYPE_CHECKING:
    from testbed.core.records import Columns
    from testbed.engine.calibration import CalibrationGrid
    from testbed.engine.engine import Engine
    from testbed.sim.fitted import Residual


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "calibrate",
        help="fit the simulator's step times to an engine",
        description="Serve a calibration load on the engine, fit a latency model to its steps, "
        "print how well it reproduces them, and store it for simulations.",
    )
    add_engine_options(parser)
    parser.add_argument(
        "--max-running", type=positive, default=32, help="widest batch (default: %(default)s)"
    )
    parser.add_argument(
        "--max-context", type=positive, default=512, help="longest sequence (default: %(default)s)"
    )
    parser.add_argument(
        "--chunk-size", type=positive, default=256, help="prefill tokens a step (default: 256)"
    )
    parser.add_argument("--page-size", type=positive, default=16, help="(default: %(default)s)")
    parser.add_argument(
        "--passes", type=positive, default=3, help="over the whole load (default: %(default)s)"
    )
    parser.add_argument(
        "--scheduler",
        default="lpm",
        help="in whose order the load is served; what running sequences share is read once "
        "(default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the load (default: %(default)s)")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="where the JSON goes (default: TESTBED_CACHE, else ~/.cache/radix-testbed, by "
        "hardware and model)",
    )
    parser.set_defaults(command=_calibrate)


def _calibrate(options: argparse.Namespace) -> int:
    engine = build_engine(options)

    from testbed.engine.calibration import CalibrationGrid
    from testbed.engine.loop import RunFailed
    from testbed.metrics.results import processor
    from testbed.sim.fitted import fit_latency, residuals, write_latency

    grid = CalibrationGrid(
        max_running=options.max_running,
        max_context=min(options.max_context, engine.model.context_tokens),
        chunk_size=options.chunk_size,
        page_size=options.page_size,
        policy=options.scheduler,
        seed=options.seed,
    )
    try:
        measured = _measure(engine, grid, options.passes)
    except MemoryError as error:
        raise ValueError(f"max_running={grid.max_running}: {error}") from error
    except RunFailed as failure:
        print(f"the run failed at {failure}")
        return 1
    latency = fit_latency(measured)
    found = residuals(latency, measured)
    hardware = engine.hardware or processor()
    file = options.output or latency_file(engine, hardware)
    facts = {
        "model": engine.model.name,
        "hardware": hardware,
        "dtype": options.dtype,
        "threads": options.threads,
        "share_prefixes": engine.share_prefixes,
        "grid": asdict(grid),
        "residuals": {kind: asdict(residual) for kind, residual in found.items()},
    }
    write_latency(file, latency, facts)
    print(f"{engine.model.name} ({options.dtype}) on {hardware}\n")
    print(residual_table(found))
    print(f"\nlatency model: {file}")
    return 0


def _measure(engine: Engine, grid: CalibrationGrid, passes: int) -> Columns:
    from testbed.core.records import joined
    from testbed.engine.calibration import measure_steps, num_requests, warm_up

    warm_up(engine, grid)
    total = num_requests(grid)
    with progress_bar(total * passes, "calibrate") as show:
        return joined(
            [measure_steps(engine, grid, after(number * total, show)) for number in range(passes)]
        )


def residual_table(found: Mapping[str, Residual]) -> str:
    """The residuals of a fit by kind of step."""
    lines = [
        "steps      count   mean ms   all together   single step (median)",
        "-------  -------  --------  -------------  --------------------",
    ]
    lines += [
        f"{kind:<7}  {row.steps:>7,}  {1e3 * row.mean_seconds:>8.2f}  {row.total_error:>+13.1%}  "
        f"{row.median_error:>20.1%}"
        for kind, row in found.items()
    ]
    return "\n".join([*lines, "\npredicted against measured seconds"])
