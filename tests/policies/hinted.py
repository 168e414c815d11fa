"""Random small worlds whose requests carry the hints that policies look at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tests.sim.worlds import World, worlds


@st.composite
def hinted_worlds(draw: st.DrawFn) -> World:
    """One replica; priorities, programs and predicted outputs, each missing on some requests."""
    world = draw(worlds(replicas=1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    requests = []
    for request in world.requests:
        program = ("p", "q", None)[rng.integers(3)]
        expected = int(rng.integers(0, 14)) or None
        priority = int(rng.integers(-2, 3)) * int(rng.choice([1, 10]))
        requests.append(
            replace(request, priority=priority, program=program, expected_output=expected)
        )
    return replace(world, requests=tuple(requests))
