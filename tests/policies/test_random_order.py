"""Random order: seeded, fair, and fresh at every pass."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

from testbed.policies.scheduling.random_order import RandomOrder
from tests.core.stepping import Stepper
from tests.policies.auditing import order


def served(seed: int, count: int, max_running: int = 1) -> tuple[int, ...]:
    stepper = Stepper(policy=RandomOrder(seed), max_running=max_running)
    for number in range(count):
        stepper.add([number])
    return tuple(id for step in stepper.run() for id in step.finished)


def test_a_seed_repeats_its_order_and_another_does_not() -> None:
    assert served(1, 20) == served(1, 20)
    assert served(1, 20) != served(2, 20)
    assert sorted(served(1, 20, max_running=3)) == list(range(20))


def test_every_order_is_as_likely_as_the_others() -> None:
    orders = Counter(served(seed, 3) for seed in range(1200))
    assert set(orders) == set(permutations(range(3)))
    # 200 of each are expected, 13 the standard deviation.
    assert all(140 < count < 260 for count in orders.values())


def test_a_misfit_ends_the_pass_and_the_next_one_shuffles_anew() -> None:
    policy = RandomOrder()
    stepper = Stepper(policy=policy)
    for number in range(10):
        stepper.add([number])
    firsts = [order(policy, stepper.scheduler._view) for _ in range(50)]
    assert all(len(first) == 1 for first in firsts)
    assert len({first[0] for first in firsts}) > 5
