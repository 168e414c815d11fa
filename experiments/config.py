"""What an experiment can set: typed options in groups, and the frozen objects they become.

Options are mutable and checked by Hydra while a config is composed; `build_simulation` converts
them once, and nothing behind it knows Hydra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple

from experiments.schema import MISSING, schema_of, target_of
from experiments.simulation import Simulation
from testbed.core.config import PRESETS, CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.policies import registry
from testbed.sim.hardware import (
    EFFICIENCY,
    HARDWARE,
    MODELS,
    Accelerator,
    ModelShape,
    get_efficiency,
    kv_pool_tokens,
)
from testbed.sim.latency import Roofline
from testbed.workloads import (
    AllAtOnce,
    ConstantArrivals,
    DrawnLengthsWorkload,
    GammaArrivals,
    LessonWorkload,
    MooncakeTrace,
    MultiClientWorkload,
    PoissonArrivals,
    RagWorkload,
    Retimed,
    TraceArrivals,
)

Build = Callable[..., Any]
"""Builds an object from a mapping with `_target_`, as hydra.utils.instantiate does."""

CacheOptions = schema_of(
    CacheConfig, drop=("num_pages",), extra={"tokens": (int | None, None)}, instantiable=False
)
BatchingOptions = schema_of(SchedulerConfig, instantiable=False)
CARD_FIELDS = tuple(f.name for f in fields(Accelerator))


@dataclass
class RecordOptions:
    """What a run writes besides requests and summary. bounds: how far from what was possible."""

    steps: bool = True
    decisions: bool = False
    bounds: bool = True


@dataclass
class Options:
    """Every option of a run; the groups fill in what is `???`.

    cache.tokens: KV tokens of one replica; null takes what the weights leave free on the hardware.
    batching: the fields of SchedulerConfig. staleness: seconds between two looks of the router at
    loads and caches; 0 shows it everything live. check: balance the cache's books after every
    step that decides something, which is slow. output: the folder that runs are written to.
    """

    workload: Any = MISSING
    arrivals: Any = MISSING
    scheduler: Any = MISSING
    eviction: Any = MISSING
    routing: Any = MISSING
    hardware: Any = MISSING
    model: Any = MISSING
    semantics: str = MISSING
    cache: CacheOptions = field(default_factory=CacheOptions)  # type: ignore[valid-type]
    batching: BatchingOptions = field(default_factory=BatchingOptions)  # type: ignore[valid-type]
    record: RecordOptions = field(default_factory=RecordOptions)
    replicas: int = 1
    staleness: float = 0.0
    check: bool = False
    seed: int = 0
    output: str = "results"


class Choice(NamedTuple):
    """One value of a config group; `node` lands at `package`, by default at the group's name."""

    group: str
    name: str
    node: Any
    package: str | None = None


SEEDED = {"seed": "${seed}"}
"""An option named seed follows the run's."""

WORKLOADS: dict[str, tuple[type, dict[str, Any]]] = {
    "mooncake": (MooncakeTrace, {"path": "mooncake/conversation_trace.jsonl"}),
    "rag": (RagWorkload, {}),
    "lesson": (LessonWorkload, {}),
    "lengths": (DrawnLengthsWorkload, {}),
    "fairness": (MultiClientWorkload, {}),
}
ARRIVALS = {
    "trace": TraceArrivals,
    "poisson": PoissonArrivals,
    "gamma": GammaArrivals,
    "constant": ConstantArrivals,
    "all_at_once": AllAtOnce,
}
POLICY_GROUPS: dict[str, registry.Kind] = {
    "scheduler": "scheduling",
    "eviction": "eviction",
    "routing": "routing",
}
"""The kind of the policies that each group chooses from."""


def choices() -> Iterator[Choice]:
    """Every value of every group, policies of other packages' entry points included."""
    for name, (workload, defaults) in WORKLOADS.items():
        yield Choice("workload", name, schema_of(workload, defaults={**SEEDED, **defaults}))
    for name, arrivals in ARRIVALS.items():
        yield Choice("arrivals", name, schema_of(arrivals, defaults=SEEDED))
    for group, kind in POLICY_GROUPS.items():
        for name in registry.names(kind):
            yield policy_choice(group, name, registry.find(kind, name))
    for name, accelerator in HARDWARE.items():
        yield Choice("hardware", name, _hardware_options(accelerator))
    for name, model in MODELS.items():
        node = schema_of(ModelShape, defaults=asdict(model), instantiable=False)
        yield Choice("model", name, node)
    for name, switches in PRESETS.items():
        yield Choice("semantics", name, _preset(name, switches), "_global_")


def policy_choice(group: str, name: str, policy: type) -> Choice:
    """The policy class as a value of its group; its parameters are the options."""
    return Choice(group, name, schema_of(policy, defaults=SEEDED))


def build_simulation(options: Mapping[str, Any], build: Build) -> Simulation:
    """The simulation that composed options describe. ValueError names an impossible value."""
    hardware, model = options["hardware"], ModelShape(**options["model"])
    accelerator = Accelerator(**{name: hardware[name] for name in CARD_FIELDS})
    cache = dict(options["cache"])
    tokens = cache.pop("tokens")
    if tokens is None:
        tokens = kv_pool_tokens(
            model, accelerator, hardware["tp"], hardware["utilisation"], hardware["reserve_bytes"]
        )
    if tokens < 1:
        raise ValueError(f"cache.tokens={tokens}: at least 1 is needed")
    lru = target_of(registry.find("eviction", "lru"))
    if cache["kind"] == "block_hash" and options["eviction"]["_target_"] != lru:
        raise ValueError(
            f"eviction={options['eviction']['_target_']}: only lru goes with "
            "cache.kind=block_hash, whose free queue is its eviction order"
        )
    if not 1 <= cache["page_size"] <= tokens:
        raise ValueError(
            f"cache.page_size={cache['page_size']}: 1 to cache.tokens={tokens} is needed"
        )
    latency = Roofline(
        model, accelerator, get_efficiency(accelerator.name, hardware["engine"]), hardware["tp"]
    )
    cost = CostModel(
        latency.step_seconds, model.linear_flops_per_token, model.attention_flops_per_pair
    )
    return Simulation(
        workload=Retimed(build(options["workload"]), build(options["arrivals"])),
        cache=CacheConfig(num_pages=tokens // cache["page_size"], **cache),
        scheduler=SchedulerConfig(**options["batching"]),
        policy=partial(build, options["scheduler"]),
        eviction=partial(build, options["eviction"]),
        routing=partial(build, options["routing"]),
        latency=latency,
        cost=cost,
        kv_bytes_per_token=model.kv_bytes_per_token,
        replicas=options["replicas"],
        staleness=options["staleness"],
        record_decisions=options["record"]["decisions"],
        check_invariants=options["check"],
    )


def _hardware_options(accelerator: Accelerator) -> type:
    engines = [engine for card, engine in EFFICIENCY if card == accelerator.name]
    return schema_of(
        Accelerator,
        defaults=asdict(accelerator),
        extra={
            "engine": (str, engines[0]),
            "tp": (int, 1),
            "utilisation": (float, 0.9),
            "reserve_bytes": (float, 3e9),
        },
        instantiable=False,
    )


def _preset(name: str, switches: Mapping[str, Any]) -> dict[str, Any]:
    """The preset's switches, each under the option that it sets."""
    of_cache = {f.name for f in fields(CacheConfig)}
    return {
        "semantics": name,
        "cache": {key: value for key, value in switches.items() if key in of_cache},
        "batching": {key: value for key, value in switches.items() if key not in of_cache},
    }
