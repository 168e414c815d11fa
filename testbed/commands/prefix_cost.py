"""`testbed prefix-cost`: the memory that a resident prefix takes, and what it displaces."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.sim.hardware import ModelShape


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
    parser.add_argument(
        "--model",
        help="one model, by its name or by its config.json from Hugging Face (default: all that "
        "are known by name)",
    )
    parser.add_argument("--hardware", default="h100", help="the accelerator (default h100)")
    parser.add_argument("--tp", type=int, default=1, help="cards that share the model (default 1)")
    measured = parser.add_argument_group("any other model, by what its engine reports")
    measured.add_argument(
        "--kv-bytes-per-token", type=int, metavar="BYTES", help="of keys and values, over all cards"
    )
    measured.add_argument(
        "--pool-tokens", type=int, metavar="N", help="tokens that the KV cache has room for"
    )
    parser.set_defaults(command=_prefix_cost)


def _prefix_cost(options: argparse.Namespace) -> int:
    from testbed.metrics.kv_footprint import MIB, PrefixFootprint

    for name in ("tokens", "own_tokens", "kv_bytes_per_token", "pool_tokens"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            shown = name.replace("_", "-")
            raise ValueError(f"{shown}={getattr(options, name)}: at least 1 is needed")
    pools, unfit, where = _pools(options)
    rows = []
    for name, kv_bytes, pool in pools:
        try:
            cost = PrefixFootprint(
                options.tokens, options.tokens + options.own_tokens, pool, kv_bytes
            )
        except ValueError as error:
            if len(pools) == 1:
                raise
            unfit.append(f"{name}: {error}")
            continue
        rows.append(
            [
                name,
                f"{kv_bytes / 1024:,.0f}",
                f"{cost.prefix_bytes / MIB:,.1f}",
                f"{cost.pool_share:.1%}",
                f"{cost.without_reuse:,}",
                f"{cost.sharing:,}",
                f"{cost.beside_idle:,}",
            ]
        )
    heads = [
        ["", "KiB a", "MiB of", "of the", "own copy", "all", "beside it,"],
        ["model", "token", "the prefix", "pool", "each", "sharing", "unused"],
    ]
    left = max(len(row[0]) for row in heads + rows)
    print(
        f"a prefix of {options.tokens:,} tokens resident {where}, and sequences of "
        f"{options.own_tokens:,} more tokens\n"
    )
    for row in heads + rows:
        print(row[0].ljust(left) + "".join(cell.rjust(12) for cell in row[1:]))
    for line in unfit:
        print(line)
    return 0


def _pools(options: argparse.Namespace) -> tuple[list[tuple[str, int, int]], list[str], str]:
    """Name, bytes a token and tokens of each model's pool; who does not fit, and why; and where."""
    from testbed.sim.hardware import MODELS, get_accelerator, kv_pool_tokens

    given = [options.kv_bytes_per_token, options.pool_tokens]
    if any(value is not None for value in given):
        if None in given or options.model is not None:
            raise ValueError(
                "--kv-bytes-per-token and --pool-tokens: both are needed, and no --model"
            )
        pool = ("as given", options.kv_bytes_per_token, options.pool_tokens)
        return [pool], [], f"in a pool of {options.pool_tokens:,}"
    accelerator = get_accelerator(options.hardware)
    models = MODELS.values() if options.model is None else [_model(options.model)]
    pools, unfit = [], []
    for model in models:
        try:
            tokens = kv_pool_tokens(model, accelerator, options.tp)
        except ValueError as error:
            if options.model is not None:
                raise
            unfit.append(str(error))
            continue
        pools.append((model.name, model.kv_bytes_per_token, tokens))
    return pools, unfit, f"on {options.tp} {options.hardware}" + ("s" if options.tp > 1 else "")


def _model(name: str) -> ModelShape:
    """A model by its name, or by a path."""
    from testbed.sim.hardware import MODELS
    from testbed.sim.model_config import read_model_shape

    path = Path(name)
    if name not in MODELS and (path.exists() or path.suffix == ".json"):
        return read_model_shape(path)
    if name not in MODELS:
        raise ValueError(
            f"model={name!r}: one of {', '.join(MODELS)}, or the path of a config.json, is needed"
        )
    return MODELS[name]
