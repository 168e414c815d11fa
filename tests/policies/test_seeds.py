"""A negative seed would draw what its positive twin draws, so it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from testbed.policies import registry

SEEDED: list[tuple[Callable[..., Any], str]] = [
    (registry.scheduling, "random"),
    (registry.scheduling, "srpt_oracle"),
    (registry.scheduling, "vtc_oracle"),
    (registry.routing, "random"),
    (registry.routing, "power_of_two"),
    (registry.routing, "precise_prefix"),
    (registry.routing, "dynamo"),
]


@pytest.mark.parametrize(("build", "name"), SEEDED)
def test_a_negative_seed_is_refused(build: Callable[..., Any], name: str) -> None:
    build(name, seed=0)
    with pytest.raises(ValueError, match="seed=-1: at least 0 is needed"):
        build(name, seed=-1)
