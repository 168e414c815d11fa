"""`testbed policy`: what there is to choose from."""

from __future__ import annotations

import argparse
from textwrap import shorten
from typing import Any, get_args


def add(commands: Any) -> None:
    """Add the command's parser."""
    policy = commands.add_parser("policy", help="what there is to choose from")
    listing = policy.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "list", help="list scheduling, eviction and routing policies"
    )
    listing.set_defaults(command=_list_policies)


def _list_policies(options: argparse.Namespace) -> int:
    from testbed.policies import registry

    for kind in get_args(registry.Kind):
        for name in registry.names(kind):
            purpose, _, _ = (registry.find(kind, name).__doc__ or "").partition("\n\n")
            print(f"{kind:<10}  {name:<12}  {shorten(purpose, 74, placeholder=' ...')}")
    return 0
