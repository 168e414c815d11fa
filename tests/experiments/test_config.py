from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments.config import CARD_FIELDS, Choice, build_simulation, choices
from experiments.run import CONF, register_options
from experiments.simulation import Simulation
from testbed.core.config import PRESETS, CacheConfig, SchedulerConfig, with_preset
from testbed.policies import EvictionPolicy, RoutingPolicy, SchedulingPolicy
from testbed.workloads import Client

NEEDED = {
    ("arrivals", "poisson"): ["arrivals.rate=2"],
    ("arrivals", "gamma"): ["arrivals.rate=2", "arrivals.cv=3"],
    ("arrivals", "constant"): ["arrivals.rate=2"],
    ("arrivals", "closed_loop"): ["arrivals.concurrency=4"],
    ("model", "llama-3.1-70b"): ["hardware.tp=4"],
    ("workload", "file"): ["workload.path=mooncake/conversation_trace.jsonl"],
    ("workload", "fitted"): ["workload.path=fitted.json"],
}
"""What a choice cannot do without."""
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.fixture(autouse=True)
def composed(data: Path) -> Iterator[None]:
    register_options()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        yield


def options_of(*overrides: str) -> dict[str, Any]:
    config = compose("config", list(overrides))
    container: Any = OmegaConf.to_container(
        config, resolve=True, enum_to_str=True, throw_on_missing=True
    )
    return container


def build(*overrides: str) -> Simulation:
    return build_simulation(options_of(*overrides), partial(instantiate, _convert_="all"))


@pytest.mark.parametrize("choice", list(choices()), ids=lambda one: f"{one.group}={one.name}")
def test_every_choice_builds(choice: Choice) -> None:
    needed = NEEDED.get((choice.group, choice.name), [])
    simulation = build(f"{choice.group}={choice.name}", *needed)
    assert len(simulation.workload) > 0
    assert isinstance(simulation.policy(), SchedulingPolicy)
    assert isinstance(simulation.eviction(), EvictionPolicy)
    assert isinstance(simulation.routing(), RoutingPolicy)


def values_of(key: str, text: object) -> list[str]:
    """What a sweep over one option tries; a value may be a list of its own."""
    override = OverridesParser.create().parse_override(f"{key}={text}")
    if override.is_sweep_override():
        return list(override.sweep_string_iterator())
    return [str(text)]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_builds_what_it_sweeps(name: str) -> None:
    composed = compose("config", [f"experiment={name}"], return_hydra_config=True)
    swept = {key: values_of(key, text) for key, text in composed.hydra.sweeper.params.items()}
    for place in range(max(map(len, swept.values()))):
        overrides = [f"{key}={own[place % len(own)]}" for key, own in swept.items()]
        build(f"experiment={name}", *overrides)


@pytest.mark.parametrize("semantics", PRESETS)
def test_semantics_sets_the_switches_of_its_preset(semantics: str) -> None:
    # 64,000 tokens are whole pages of 1 and of 16.
    simulation = build(f"semantics={semantics}", "cache.tokens=64000")
    cache, scheduler = with_preset(semantics, CacheConfig(64000 // 16, 16), SchedulerConfig())
    assert simulation.cache == cache
    assert simulation.scheduler == scheduler


def test_an_option_wins_over_the_preset() -> None:
    simulation = build("semantics=sglang", "cache.page_size=4", "batching.batching=mixed")
    assert simulation.cache.page_size == 4
    assert simulation.scheduler.batching == "mixed"
    assert simulation.cache.granularity == "node"


def test_the_pool_is_what_the_weights_leave_free() -> None:
    # (0.9 * 80e9 - 3e9 - 16,060,522,496 bytes of weights) / 131,072 bytes a token = 403,896.9
    assert build().cache.num_pages == 403896 // 16
    assert build("cache.tokens=100000", "cache.page_size=32").cache.num_pages == 3125


def test_hardware_can_be_edited_part_by_part() -> None:
    plain, edited = options_of(), options_of("hardware.memory_bytes=40e9")
    plain, edited = plain["hardware"], edited["hardware"]
    different = {name for name in CARD_FIELDS if plain[name] != edited[name]}
    assert different == {"memory_bytes"}
    assert build("hardware.memory_bytes=40e9").cache.num_pages < build().cache.num_pages


def test_the_seed_reaches_workload_and_arrivals() -> None:
    options = options_of("seed=5", "arrivals=poisson", "arrivals.rate=1")
    assert options["workload"]["seed"] == 5
    assert options["arrivals"]["seed"] == 5


def test_clients_can_be_given_on_the_command_line() -> None:
    client = "{_target_:testbed.workloads.Client,name:a,rate:2,weight:3}"
    simulation = build("workload=fairness", f"workload.clients=[{client}]", "workload.duration=10")
    # vars: the workload behind the arrivals.
    assert vars(simulation.workload)["workload"].clients == (Client("a", rate=2.0, weight=3.0),)


@pytest.mark.parametrize("page_size", [0, 101])
def test_a_page_is_no_larger_than_the_pool(page_size: int) -> None:
    with pytest.raises(ValueError, match=rf"page_size={page_size}: 1 to cache.tokens=100"):
        build("cache.tokens=100", f"cache.page_size={page_size}")
