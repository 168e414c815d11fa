"""Policies by name: those that ship with the testbed, those of other packages, and any class.

Three ways lead here, and to the same options. An entry point of the group `testbed.policies` names
a class (its name is the policy's), or a module, whose classes marked with `@register` count. The
environment variable TESTBED_POLICIES lists further such modules, with commas. And
`package.module:Class` is found without any of it. A name that ships wins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import reduce
from importlib import import_module
from importlib.metadata import entry_points
from inspect import isabstract, signature
from types import MappingProxyType, ModuleType, UnionType
from typing import (
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from testbed.core.policy import EvictionPolicy, RoutingPolicy, SchedulingPolicy

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

    The latter are imported to learn their kind.
    """
    foreign = sorted(
        name
        for name, path in _foreign().items()
        if name not in BUILT_IN[kind] and issubclass(_load(path), BASES[kind])
    )
    return (*BUILT_IN[kind], *foreign)


def find(kind: Kind, name: str) -> type[Policy]:
    """The policy class of this name; ValueError says which names there are."""
    if name in BUILT_IN[kind]:
        found = _load(BUILT_IN[kind][name])
    elif ":" in name:
        found = _load(name)
    elif (path := _foreign().get(name)) is not None:
        found = _load(path)
    else:
        raise ValueError(
            f"unknown {kind} policy {name!r}: one of {', '.join(names(kind))}, "
            "or package.module:Class, is needed"
        )
    if not (isinstance(found, type) and issubclass(found, BASES[kind]) and not isabstract(found)):
        raise ValueError(f"{name}: {found!r} is no concrete {BASES[kind].__name__}")
    return found


def kinds(name: str) -> tuple[Kind, ...]:
    """The kinds that have a policy of this name; ValueError if there is none."""
    if ":" in name:
        return (kind_of(_load(name)),)
    found = tuple(kind for kind in get_args(Kind) if name in names(kind))
    if not found:
        every = ", ".join(dict.fromkeys(n for kind in get_args(Kind) for n in names(kind)))
        raise ValueError(
            f"unknown policy {name!r}: one of {every}, or package.module:Class, is needed"
        )
    return found


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


def check_parameters(policy: type[Policy], parameters: Mapping[str, Any], label: str) -> None:
    """ValueError for a parameter that the class does not take, or of another type than declared.

    Checked are scalars, Literal, None and unions of these; the class itself judges the rest.
    """
    accepted = signature(policy).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for parameter in parameters:
        if parameter not in accepted and not takes_any:
            listed = ", ".join(accepted) or "no parameters"
            raise ValueError(f"{label}: no parameter {parameter!r}; it takes {listed}")
    hints = get_type_hints(policy.__init__) if parameters else {}
    for parameter, value in parameters.items():
        choices = _choices(hints.get(parameter))
        if choices and not any(_fits(value, choice) for choice in choices):
            shown = [c.__name__ if isinstance(c, type) else str(c) for c in choices]
            # As it is written in YAML and at the command line.
            shown = ["null" if name == "None" else name for name in shown]
            needed = " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
            raise ValueError(f"{label}: {parameter}={value!r}: {needed} is needed")


def _choices(hint: Any) -> tuple[Any, ...]:
    """The scalar types and the values that a declaration accepts; empty if it accepts others."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        parts = [_choices(part) for part in get_args(hint)]
        return tuple(choice for part in parts for choice in part) if all(parts) else ()
    if hint is type(None):
        return (None,)
    return (hint,) if hint in (bool, int, float, str) else ()


def _fits(value: Any, choice: Any) -> bool:
    if choice is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(choice, type):
        return type(value) is choice
    return type(value) is type(choice) and bool(value == choice)


def _foreign() -> dict[str, str]:
    """`module:Class` by name, of entry points and of marked classes."""
    found: dict[str, str] = {}

    def add(name: str, path: str) -> None:
        known = found.setdefault(name, path)
        if known != path and _load(known) is not _load(path):
            raise ValueError(f"two policies are called {name!r}: {known} and {path}")

    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.attr:
            add(point.name, f"{point.module}:{point.attr}")
        else:
            for policy in _marked(_import(point.module)):
                add(*policy)
    for name in filter(None, os.environ.get(MODULES_VARIABLE, "").replace(" ", "").split(",")):
        for policy in _marked(_import(name)):
            add(*policy)
    return found


def _marked(module: ModuleType) -> list[tuple[str, str]]:
    """Name and path of each class in the module that `register` marked; subclasses do not inherit
    a mark."""
    return [
        (vars(value)[_MARK], f"{value.__module__}:{value.__qualname__}")
        for value in vars(module).values()
        if isinstance(value, type) and _MARK in vars(value)
    ]


def _import(module: str, asked: str = "") -> ModuleType:
    try:
        found = import_module(module)
    except ImportError as error:
        raise ValueError(f"{asked or module}: {error}") from error
    if hasattr(found, "__path__") and getattr(found, "__file__", None) is None:
        raise ValueError(
            f"{asked or module}: a folder of this name hides it; "
            f"run inside {module.replace('.', '/')}/src or pip install it"
        )
    return found


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return reduce(getattr, name.split("."), cast(Any, _import(module, path)))
    except AttributeError as error:
        raise ValueError(f"{path}: {error}") from error


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
