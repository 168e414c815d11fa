"""Policies by name: those that ship with the testbed, those of other packages, and any class.

Three ways lead here, and to the same options. An entry point of the group `testbed.policies` names
a class (its name is the policy's), or a module, whose classes marked with `@register` count. The
environment variable TESTBED_POLICIES lists further such modules, with commas. And
`package.module:Class` is found without any of it. A name that ships wins. What is broken among
other packages is left out with a warning, and is an error once it is chosen.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache, reduce
from importlib import import_module
from importlib.metadata import entry_points
from inspect import isabstract
from types import MappingProxyType, ModuleType
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    overload,
)

from testbed.core.policy import EvictionPolicy, RoutingPolicy, SchedulingPolicy
from testbed.policies.parameters import check_parameters, check_signature, reason

Kind: TypeAlias = Literal["scheduling", "eviction", "routing"]
Policy: TypeAlias = SchedulingPolicy | EvictionPolicy | RoutingPolicy
P = TypeVar("P", bound=Policy)

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
                "k_lpm": "testbed.policies.scheduling.cache_aware:KLpm",
                "preble": "testbed.policies.scheduling.groups:Preble",
                "routing_key": "testbed.policies.scheduling.groups:RoutingKey",
                "lof": "testbed.policies.scheduling.size:Lof",
                "sjf": "testbed.policies.scheduling.size:Sjf",
                "sjf_uncached": "testbed.policies.scheduling.size:SjfUncached",
                "srpt": "testbed.policies.scheduling.size:Srpt",
                "srpt_oracle": "testbed.policies.scheduling.size:SrptOracle",
                "hrrn": "testbed.policies.scheduling.hrrn:Hrrn",
                "random": "testbed.policies.scheduling.random_order:RandomOrder",
                "priority": "testbed.policies.scheduling.priority:Priority",
                "preemptive_priority": "testbed.policies.scheduling.priority:PreemptivePriority",
                "vtc": "testbed.policies.scheduling.vtc:Vtc",
                "vtc_oracle": "testbed.policies.scheduling.vtc:VtcOracle",
                "lcf": "testbed.policies.scheduling.vtc:Lcf",
                "dlpm": "testbed.policies.scheduling.fair:Dlpm",
                "locality_fair": "testbed.policies.scheduling.locality_fair:LocalityFair",
                "mdrr": "testbed.policies.scheduling.fair:Mdrr",
                "rpm": "testbed.policies.scheduling.limits:RpmLimit",
                "token_bucket": "testbed.policies.scheduling.limits:TokenBucket",
                "justitia": "testbed.policies.scheduling.programs:Justitia",
            }
        ),
        "eviction": MappingProxyType(
            {
                "lru": "testbed.policies.eviction.recency:Lru",
                "mru": "testbed.policies.eviction.recency:Mru",
                "fifo": "testbed.policies.eviction.recency:Fifo",
                "filo": "testbed.policies.eviction.recency:Filo",
                "lfu": "testbed.policies.eviction.frequency:Lfu",
                "slru": "testbed.policies.eviction.frequency:Slru",
                "slru_decay": "testbed.policies.eviction.frequency:SlruDecay",
                "sieve": "testbed.policies.eviction.lazy_promotion:Sieve",
                "s3_fifo": "testbed.policies.eviction.lazy_promotion:S3Fifo",
                "gdsf": "testbed.policies.eviction.cost:Gdsf",
                "pgdsf": "testbed.policies.eviction.cost:Pgdsf",
                "marconi": "testbed.policies.eviction.cost:Marconi",
                "tail_lru": "testbed.policies.eviction.next_turn:TailOptimizedLru",
                "reuse_probability": "testbed.policies.eviction.next_turn:ReuseProbability",
                "priority": "testbed.policies.eviction.hints:Priority",
                "pin": "testbed.policies.eviction.hints:Pin",
                "ttl": "testbed.policies.eviction.hints:Ttl",
                "look_ahead": "testbed.policies.eviction.look_ahead:LookAhead",
                "belady": "testbed.policies.eviction.oracle:Belady",
            }
        ),
        "routing": MappingProxyType(
            {
                "round_robin": "testbed.policies.routing.load:RoundRobin",
                "least_loaded": "testbed.policies.routing.load:LeastLoaded",
                "random": "testbed.policies.routing.load:RandomChoice",
                "power_of_two": "testbed.policies.routing.load:PowerOfTwo",
                "session_affinity": "testbed.policies.routing.affinity:SessionAffinity",
                "prefix_hash": "testbed.policies.routing.affinity:PrefixHash",
                "cache_aware": "testbed.policies.routing.cache_aware:CacheAware",
                "preble_e2": "testbed.policies.routing.preble:PrebleE2",
                "precise_prefix": "testbed.policies.routing.precise:PrecisePrefix",
                "dynamo": "testbed.policies.routing.precise:Dynamo",
                "d2lpm": "testbed.policies.routing.d2lpm:D2lpm",
            }
        ),
    }
)
ENTRY_POINT_GROUP = "testbed.policies"
MODULES_VARIABLE = "TESTBED_POLICIES"
NAME = re.compile("[a-z][a-z0-9_]*")
"""What a policy may be called; `fullmatch`."""

_MARK = "__testbed_policy__"


@overload
def register(named: type[P], /) -> type[P]: ...
@overload
def register(named: str, /) -> Callable[[type[P]], type[P]]: ...
def register(named: type[P] | str, /) -> type[P] | Callable[[type[P]], type[P]]:
    """Name a policy class: `@register("my_policy")`, or `@register` for its own name in snake case.

    The class is only marked. It is found when its module is an entry point's or is listed in
    TESTBED_POLICIES. ValueError for a name that is none, or is one of a policy that ships.
    """
    if not isinstance(named, str):
        return register(_snake_case(named.__name__))(named)
    if not NAME.fullmatch(named):
        raise ValueError(f"policy name {named!r}: lower-case letters, digits and _ are needed")

    def mark(policy: type[P]) -> type[P]:
        if named in BUILT_IN[kind_of(policy)]:
            raise ValueError(f"policy name {named!r} is taken by one that ships; another is needed")
        setattr(policy, _MARK, named)
        return policy

    return mark


def names(kind: Kind) -> tuple[str, ...]:
    """Every known policy of the kind: the built-in ones, then those of others by name.

    The latter are imported to learn their kind. One line on standard error for each broken one.
    """
    foreign = _foreign()
    for broken in foreign.broken.values():
        _warn(f"warning: {broken}; left out")
    of_kind = (name for name, policy in foreign.found.items() if issubclass(policy, BASES[kind]))
    return (*BUILT_IN[kind], *sorted(set(of_kind) - set(BUILT_IN[kind])))


def is_path(name: str) -> bool:
    """Whether it is written as the path of a class, not as a name."""
    return ":" in name or "." in name


def broken() -> Mapping[str, str]:
    """What is wrong with policies and modules of other packages, by the name of each."""
    return _foreign().broken


def find(kind: Kind, name: str) -> type[Policy]:
    """The policy class of this name or at `package.module:Class` (or `package.module.Class`).

    ValueError says which names there are, or what is wrong with the class.
    """
    if name in BUILT_IN[kind]:
        return cast(type[Policy], _load(BUILT_IN[kind][name]))
    foreign = _Foreign({}, {}) if ":" in name else _foreign()
    if name in foreign.broken:
        raise ValueError(foreign.broken[name])
    found: Any = foreign.found.get(name)
    if found is None and not is_path(name):
        raise ValueError(
            f"unknown {kind} policy {name!r}: one of {', '.join(names(kind))}, "
            "or package.module:Class, is needed"
        )
    found = found or _at(name)
    if not (isinstance(found, type) and issubclass(found, BASES[kind]) and not isabstract(found)):
        raise ValueError(f"{name}: {found!r} is no concrete {BASES[kind].__name__}")
    try:
        return _usable(found)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def kinds(name: str) -> tuple[Kind, ...]:
    """The kinds that have a policy of this name; ValueError if there is none."""
    found = tuple(kind for kind in get_args(Kind) if name in BUILT_IN[kind])
    foreign = _Foreign({}, {}) if ":" in name else _foreign()
    if name in foreign.found and (kind := kind_of(foreign.found[name])) not in found:
        found = (*found, kind)
    if found:
        return found
    if name in foreign.broken:
        raise ValueError(foreign.broken[name])
    if is_path(name):
        return (kind_of(_at(name)),)
    every = ", ".join(dict.fromkeys(n for kind in get_args(Kind) for n in names(kind)))
    raise ValueError(f"unknown policy {name!r}: one of {every}, or package.module:Class, is needed")


def kind_of(policy: Any) -> Kind:
    """Which kind a class is of; ValueError if it is no policy class."""
    for kind in get_args(Kind):
        if isinstance(policy, type) and issubclass(policy, BASES[kind]):
            return cast(Kind, kind)
    raise ValueError(f"{policy!r} is no class of scheduling, eviction or routing policies")


def create(kind: Kind, name: str, **parameters: Any) -> Any:
    """A new policy; ValueError names a parameter that the class does not take or accept."""
    policy = find(kind, name)
    check_parameters(policy, parameters, f"{kind} policy {name}")
    return policy(**parameters)


class _Foreign(NamedTuple):
    """Policies of other packages, and what is wrong with the others of them, by name."""

    found: dict[str, type[Policy]]
    broken: dict[str, str]


def _foreign() -> _Foreign:
    """What entry points and TESTBED_POLICIES lead to; only sound classes are `found`."""
    found: dict[str, type[Policy]] = {}
    broken: dict[str, str] = {}

    def add(name: str, path: str, origin: str) -> None:
        try:
            policy = _usable(_load(path))
        except ValueError as error:
            broken[name] = f"policy {name} of {origin}: {error}"
            return
        known = found.setdefault(name, policy)
        if known is not policy:
            both = " and ".join(f"{p.__module__}:{p.__qualname__}" for p in (known, policy))
            broken[name] = f"two policies are called {name!r}: {both}"

    def add_marked(name: str, module: str, label: str, origin: str) -> None:
        try:
            marked = _marked(_import(module))
        except ValueError as error:
            broken[name] = f"{label}: {error}"
            return
        for policy, path in marked:
            add(policy, path, origin)

    for point in entry_points(group=ENTRY_POINT_GROUP):
        origin = f"entry point {point.value}"
        if point.attr:
            add(point.name, f"{point.module}:{point.attr}", origin)
        else:
            add_marked(point.name, point.module, f"policy {point.name} of {origin}", origin)
    for name in filter(None, os.environ.get(MODULES_VARIABLE, "").replace(" ", "").split(",")):
        label = f"{MODULES_VARIABLE}={name}"
        add_marked(name, name, label, label)
    return _Foreign({name: p for name, p in found.items() if name not in broken}, broken)


@cache
def _warn(line: str) -> None:
    """Once, however often the names are asked for."""
    print(line, file=sys.stderr)


def _usable(policy: Any) -> type[Policy]:
    """The class itself; ValueError unless it is concrete and its signature makes sense."""
    kind_of(policy)
    if isabstract(policy):
        lacks = ", ".join(sorted(policy.__abstractmethods__))
        raise ValueError(f"{policy.__qualname__} is abstract, it lacks {lacks}")
    check_signature(policy)
    return cast(type[Policy], policy)


def _marked(module: ModuleType) -> list[tuple[str, str]]:
    """Name and path of each class in the module that `register` marked; subclasses do not inherit
    a mark."""
    return [
        (vars(value)[_MARK], f"{value.__module__}:{value.__qualname__}")
        for value in vars(module).values()
        if isinstance(value, type) and _MARK in vars(value)
    ]


def _at(name: str) -> Any:
    """What lies at `module:Class` or `module.Class`."""
    path = name if ":" in name else ":".join(name.rpartition(".")[::2])
    module, _, qualified = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *qualified.split("."))):
        raise ValueError(f"{name!r}: package.module:Class is needed")
    try:
        return _load(path)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _import(module: str) -> ModuleType:
    """The module; ValueError for whatever it raises, an exit included."""
    try:
        found = import_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(reason(error)) from error
    if hasattr(found, "__path__") and getattr(found, "__file__", None) is None:
        raise ValueError(
            "a folder of this name hides it; "
            f"run inside {module.replace('.', '/')}/src or pip install it"
        )
    return found


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return reduce(getattr, name.split("."), cast(Any, _import(module)))
    except AttributeError as error:
        raise ValueError(str(error)) from error


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def scheduling(name: str, **parameters: Any) -> SchedulingPolicy:
    """A new scheduling policy by name."""
    return cast(SchedulingPolicy, create("scheduling", name, **parameters))


def eviction(name: str, **parameters: Any) -> EvictionPolicy:
    """A new eviction policy by name."""
    return cast(EvictionPolicy, create("eviction", name, **parameters))


def routing(name: str, **parameters: Any) -> RoutingPolicy:
    """A new routing policy by name."""
    return cast(RoutingPolicy, create("routing", name, **parameters))
