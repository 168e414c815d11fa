"""What holds for every scheduling policy that ships, on worlds of any switches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings

from testbed.core.policy import SchedulingPolicy
from testbed.policies import registry
from tests.policies.hinted import hinted_worlds
from tests.sim.worlds import World, same

VARIANTS: dict[str, Callable[[], SchedulingPolicy]] = {
    **{name: partial(registry.scheduling, name) for name in registry.BUILT_IN["scheduling"]},
    "lpm aging": lambda: registry.scheduling("lpm", aging=0.5, on_misfit="skip"),
    "lpm aging and dedupe": lambda: registry.scheduling("lpm", aging=2.0, dedupe_check=2),
    "k_lpm 3": lambda: registry.scheduling("k_lpm", k=3),
    "preble 1": lambda: registry.scheduling("preble", slots=1),
    "routing_key client": lambda: registry.scheduling("routing_key", key="client"),
    "sjf_uncached skip": lambda: registry.scheduling("sjf_uncached", on_misfit="skip"),
    "srpt average": lambda: registry.scheduling("srpt", prediction="average", on_misfit="skip"),
    "srpt_oracle blurred": lambda: registry.scheduling("srpt_oracle", error=0.5, seed=3),
    "hrrn skip": lambda: registry.scheduling("hrrn", on_misfit="skip"),
    "priority aging": lambda: registry.scheduling("priority", first="lowest", aging=2.5),
    "preemptive aging": lambda: registry.scheduling(
        "preemptive_priority", threshold=0.5, aging=0.1, on_misfit="skip"
    ),
    "vtc hint": lambda: registry.scheduling("vtc", prediction="hint"),
    "vtc average": lambda: registry.scheduling("vtc", prediction="average", rule="artifact"),
    "vtc profiled": lambda: registry.scheduling(
        "vtc",
        prompt_weight=0.21,
        output_weight=0.1,
        product_weight=0.004,
        square_weight=0.0032,
        request_weight=1.1,
        prediction="declared",
    ),
    "vtc_oracle blurred": lambda: registry.scheduling("vtc_oracle", error=0.5),
    "mdrr small": lambda: registry.scheduling("mdrr", quantum=3, output_weight=0.7),
    "rpm refuse": lambda: registry.scheduling("rpm", limit=1, window=2.0),
    "rpm delay": lambda: registry.scheduling("rpm", limit=1, window=2.0, action="delay"),
    "token_bucket delay": lambda: registry.scheduling("token_bucket", rate=7.0, burst=40.0),
    "token_bucket refuse": lambda: registry.scheduling(
        "token_bucket", rate=7.0, burst=30.0, action="refuse"
    ),
    "justitia hint": lambda: registry.scheduling("justitia", prediction="hint"),
}


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=12)
@given(world=hinted_worlds())
def test_skipping_quiet_steps_changes_nothing(name: str, world: World) -> None:
    """What the policy declares by reacts_to_decoding, and by hearing of tokens in batches."""
    stepped = world.run(policy=VARIANTS[name], skip_quiet_steps=False)
    assert same(world.run(policy=VARIANTS[name]), stepped) == ""
    assert len(stepped.requests["request"]) == len(world.requests)
