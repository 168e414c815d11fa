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
from testbed.sim.fitted import read_latency
from testbed.sim.hardware import (
    EFFICIENCY,
    HARDWARE,
    MODELS,
    Accelerator,
    ModelShape,
    get_efficiency,
    kv_pool_tokens,
)
from testbed.sim.latency import LatencyModel, Roofline
from testbed.workloads import (
    AllAtOnce,
    ClosedLoopArrivals,
    ConstantArrivals,
    DrawnLengthsWorkload,
    FileWorkload,
    FittedWorkload,
    GammaArrivals,
    LessonWorkload,
    MooncakeTrace,
    MultiClientWorkload,
    PoissonArrivals,
    RagWorkload,
    Retimed,
    TemplateWorkload,
    TraceArrivals,
)
from testbed.workloads.programs import (
    ChatPrograms,
    ChoicePrograms,
    FewShotPrograms,
    GenerativeAgentPrograms,
    JsonPrograms,
    JudgePrograms,
    RagPrograms,
    ReActPrograms,
    SelfConsistencyPrograms,
    SingleShotPrograms,
    SkeletonOfThoughtPrograms,
    TreeOfThoughtPrograms,
    VoicePrograms,
)

Build = Callable[..., Any]
"""Builds an object from a mapping with `_target_`, as hydra.utils.instantiate does."""

CacheOptions = schema_of(
    CacheConfig, drop=("num_pages",), extra={"tokens": (int | None, None)}, instantiable=False
)
BatchingOptions = schema_of(SchedulerConfig, instantiable=False)
MAX_PAGES = 2**31 - 1
"""Page ids are int32."""
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
    loads and caches; 0 shows it everything live. latency: a file of step times that
    `testbed calibrate` wrote; null takes the roofline of hardware and model. check: balance the
    cache's books after every step that decides something, which is slow. output: the folder that
    runs are written to.
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
    latency: str | None = None
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

TOOL_AGENT = {
    "name": "tool_agent",
    "instruction_tokens": 4007,
    "question_tokens": [20, 27, 36],
    "steps": [7, 11, 16],
    "thought_tokens": [37, 55, 91],
    "observation_tokens": [16, 388],
}
"""Policy and 14 tools of tau-bench's airline, and the lengths of its 200 recorded trajectories
(historical_trajectories/gpt-4o-airline.json in github.com/sierra-research/tau-bench)."""

WORKLOADS: dict[str, tuple[type, dict[str, Any]]] = {
    "file": (FileWorkload, {}),
    "fitted": (FittedWorkload, {}),
    "mooncake": (MooncakeTrace, {"path": "mooncake/conversation_trace.jsonl"}),
    "rag": (RagWorkload, {}),
    "lesson": (LessonWorkload, {}),
    "template": (TemplateWorkload, {}),
    "lengths": (DrawnLengthsWorkload, {}),
    "fairness": (MultiClientWorkload, {}),
    "chat": (ChatPrograms, {}),
    "chat_long": (ChatPrograms, {"name": "chat_long", "answer_tokens": [256, 512]}),
    "choice": (ChoicePrograms, {}),
    "few_shot": (FewShotPrograms, {}),
    "generative_agents": (GenerativeAgentPrograms, {}),
    "json": (JsonPrograms, {}),
    "judge": (JudgePrograms, {}),
    "rag_programs": (RagPrograms, {}),
    "react": (ReActPrograms, {}),
    "self_consistency": (SelfConsistencyPrograms, {}),
    "single_shot": (SingleShotPrograms, {}),
    "skeleton_of_thought": (SkeletonOfThoughtPrograms, {}),
    "tool_agent": (ReActPrograms, TOOL_AGENT),
    "tree_of_thought": (TreeOfThoughtPrograms, {}),
    "voice": (VoicePrograms, {}),
}
ARRIVALS = {
    "trace": TraceArrivals,
    "poisson": PoissonArrivals,
    "gamma": GammaArrivals,
    "constant": ConstantArrivals,
    "all_at_once": AllAtOnce,
    "closed_loop": ClosedLoopArrivals,
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
        # `scripted` stays as it is: a simulation has no model to leave the answers to.
        node = schema_of(workload, drop=("scripted",), defaults={**SEEDED, **defaults})
        yield Choice("workload", name, node)
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
    if tokens // cache["page_size"] > MAX_PAGES:
        raise ValueError(
            f"cache.tokens={tokens}: at most {MAX_PAGES} pages of cache.page_size="
            f"{cache['page_size']} are needed"
        )
    latency: LatencyModel
    if options["latency"] is None:
        efficiency = get_efficiency(accelerator.name, hardware["engine"])
        latency = Roofline(
            model, accelerator, efficiency, hardware["tp"], hardware["shared_prefix_decode"]
        )
    else:
        latency, _ = read_latency(options["latency"])
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
            "shared_prefix_decode": (bool, False),
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
