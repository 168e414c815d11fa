"""Policies by name: those that ship with the testbed, those of the entry point group
`testbed.policies` (a name that ships wins), and any class as `package.module:Class`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract, signature
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

from testbed.core.policy import EvictionPolicy, RoutingPolicy, SchedulingPolicy

Kind: TypeAlias = Literal["scheduling", "eviction", "routing"]
Policy: TypeAlias = SchedulingPolicy | EvictionPolicy | RoutingPolicy

BASES: Mapping[str, type[Policy]] = MappingProxyType(
    {"scheduling": SchedulingPolicy, "eviction": EvictionPolicy, "routing": RoutingPolicy}
)
BUILT_IN: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "scheduling": MappingProxyType(
            {
                "fcfs": "testbed.policies.scheduling.arrival:Fcfs",
                "lpm": "testbed.policies.scheduling.cache_aware:Lpm",
                "dfs": "testbed.policies.scheduling.depth_first:Dfs",
                "dfs_weight": "testbed.policies.scheduling.depth_first:DfsWeight",
                "vtc": "testbed.policies.scheduling.fair:Vtc",
                "dlpm": "testbed.policies.scheduling.fair:Dlpm",
            }
        ),
        "eviction": MappingProxyType(
            {
                "lru": "testbed.policies.eviction.recency:Lru",
                "fifo": "testbed.policies.eviction.recency:Fifo",
                "lfu": "testbed.policies.eviction.frequency:Lfu",
            }
        ),
        "routing": MappingProxyType(
            {
                "round_robin": "testbed.policies.routing.load:RoundRobin",
                "least_loaded": "testbed.policies.routing.load:LeastLoaded",
            }
        ),
    }
)
ENTRY_POINT_GROUP = "testbed.policies"


def names(kind: Kind) -> tuple[str, ...]:
    """Every known policy of the kind: the built-in ones, then those of entry points by name.

    Entry points are loaded to learn their kind; one that fails to import raises its own error.
    """
    foreign = sorted(
        point.name for point in _foreign().values() if issubclass(point.load(), BASES[kind])
    )
    return (*BUILT_IN[kind], *foreign)


def find(kind: Kind, name: str) -> type[Policy]:
    """The policy class of this name; ValueError says which names there are."""
    if name in BUILT_IN[kind]:
        found = _load(BUILT_IN[kind][name])
    elif name in _foreign():
        found = _foreign()[name].load()
    elif ":" in name:
        found = _load(name)
    else:
        raise ValueError(
            f"unknown {kind} policy {name!r}: one of {', '.join(names(kind))}, "
            "or package.module:Class, is needed"
        )
    if not (isinstance(found, type) and issubclass(found, BASES[kind]) and not isabstract(found)):
        raise ValueError(f"{name}: {found!r} is no concrete {BASES[kind].__name__}")
    return found


def create(kind: Kind, name: str, **parameters: Any) -> Any:
    """A new policy; ValueError names a parameter that the class does not take or accept."""
    policy = find(kind, name)
    accepted = signature(policy).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for parameter in parameters:
        if parameter not in accepted and not takes_any:
            listed = ", ".join(accepted) or "no parameters"
            raise ValueError(f"{kind} policy {name}: no parameter {parameter!r}; it takes {listed}")
    return policy(**parameters)


def _foreign() -> dict[str, EntryPoint]:
    built_in = {name for named in BUILT_IN.values() for name in named}
    points = entry_points(group=ENTRY_POINT_GROUP)
    return {point.name: point for point in points if point.name not in built_in}


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error


def scheduling(name: str, **parameters: Any) -> SchedulingPolicy:
    """A new scheduling policy by name."""
    return cast(SchedulingPolicy, create("scheduling", name, **parameters))


def eviction(name: str, **parameters: Any) -> EvictionPolicy:
    """A new eviction policy by name."""
    return cast(EvictionPolicy, create("eviction", name, **parameters))


def routing(name: str, **parameters: Any) -> RoutingPolicy:
    """A new routing policy by name."""
    return cast(RoutingPolicy, create("routing", name, **parameters))
