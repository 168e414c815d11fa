"""`testbed prefix-cost`: the memory that a resident prefix takes, and what it displaces."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "prefix-cost",
        help="print the memory that a resident prefix takes",
        description="What keeping a prefix in the KV cache costs: its size, and how many sequences "
        "fit when each holds its own copy, when all share it, and beside it while nobody uses it.",
    )
    parser.add_argument("tokens", type=int, metavar="TOKENS", help="length of the prefix")
    parser.add_argument(
        "--own-tokens",
        type=int,
        default=1000,
        metavar="N",
        help="a sequence's own tokens behind the prefix, output included (default 1000)",
    )
    parser.add_argument("--model", help="one model (default: all that are known)")
    parser.add_argument("--hardware", default="h100", help="the accelerator (default h100)")
    parser.add_argument("--tp", type=int, default=1, help="cards that share the model (default 1)")
    parser.set_defaults(command=_prefix_cost)


def _prefix_cost(options: argparse.Namespace) -> int:
    from testbed.metrics.kv_footprint import MIB, PrefixFootprint
    from testbed.sim.hardware import MODELS, get_accelerator, get_model, kv_pool_tokens

    for name in ("tokens", "own_tokens"):
        if getattr(options, name) < 1:
            shown = name.replace("_", "-")
            raise ValueError(f"{shown}={getattr(options, name)}: at least 1 is needed")
    accelerator = get_accelerator(options.hardware)
    models = MODELS.values() if options.model is None else [get_model(options.model)]
    rows, unfit = [], []
    for model in models:
        try:
            pool = kv_pool_tokens(model, accelerator, options.tp)
            cost = PrefixFootprint(
                options.tokens, options.tokens + options.own_tokens, pool, model.kv_bytes_per_token
            )
        except ValueError as error:
            if options.model is not None:
                raise
            unfit.append(str(error))
            continue
        rows.append(
            f"{model.name:<16}{model.kv_bytes_per_token / 1024:>10,.0f}"
            f"{cost.prefix_bytes / MIB:>12,.1f}{cost.pool_share:>9.1%}"
            f"{cost.without_reuse:>12,}{cost.sharing:>10,}{cost.beside_idle:>13,}"
        )
    cards = f"{options.tp} {options.hardware}" + ("s" if options.tp > 1 else "")
    print(
        f"a prefix of {options.tokens:,} tokens resident on {cards}, and sequences of "
        f"{options.own_tokens:,} more tokens\n\n"
        f"{'':<16}{'KiB a':>10}{'MiB of':>12}{'of the':>9}{'own copy':>12}{'all':>10}"
        f"{'beside it,':>13}\n"
        f"{'model':<16}{'token':>10}{'the prefix':>12}{'pool':>9}{'each':>12}{'sharing':>10}"
        f"{'unused':>13}"
    )
    print("\n".join(rows + unfit))
    return 0
