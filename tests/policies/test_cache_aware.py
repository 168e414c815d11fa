"""LPM, its aging and deduplication, and k-LPM. Rows are peers' test cases."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.cache_aware import KLpm, Lpm
from tests.core.stepping import GREEDY, Stepper
from tests.policies.auditing import Audited, order
from tests.sim.worlds import World, worlds

COLD = range(5000, 5100)


def lpm(**parameters: Any) -> Lpm:
    return Lpm(on_misfit="skip", **parameters)


def order_of(
    policy: Lpm, prompts: list[list[int]], cached: list[list[int]], **switches: Any
) -> str:
    """The order of waiting prompts, as places in the list, after the cached ones were served."""
    stepper = Stepper(num_pages=20_000, policy=policy, **switches)
    for prompt in cached:
        stepper.add(prompt)
        stepper.run()
    first = len(cached)
    for prompt in prompts:
        stepper.add(prompt)
    return " ".join(str(id - first) for id in order(policy, stepper.scheduler._view))


def test_the_longest_match_goes_first() -> None:  # rows 90, 95
    prompts = [
        list(COLD),
        [*range(50), *COLD],
        [*range(99), *COLD],
        [*range(10), *COLD],
    ]
    assert order_of(lpm(), prompts, [list(range(100))]) == "2 1 3 0"


def test_ties_go_by_arrival() -> None:
    prompts = [[1, 2, 9], [5], [1, 2, 8], [6]]
    assert order_of(lpm(), prompts, [[1, 2]]) == "0 2 1 3"


def test_it_stays_lpm_however_long_the_queue() -> None:  # row 89, defect 17
    prompts = [[7000 + n] for n in range(300)] + [[1, 2, 3, 4]]
    assert order_of(lpm(), prompts, [[1, 2, 3]]).split()[:3] == ["300", "0", "1"]


@pytest.mark.parametrize(("waiting", "first"), [(10, 9), (128, 127), (129, 0)])
def test_sglang_goes_by_arrival_above_128(waiting: int, first: int) -> None:  # row 89
    prompts = [[7000 + n] for n in range(waiting - 1)] + [[1, 2, 3, 4]]
    policy = Lpm("skip", fcfs_above=128)
    assert order_of(policy, prompts, [[1, 2, 3]]).split()[0] == str(first)


def test_a_match_counts_in_whole_pages() -> None:
    prompts = [[*range(7), 99], [*range(8), 99], [*range(4), 99]]
    # 4, 8 and 4 tokens: what is matched beyond a page does not count.
    assert order_of(lpm(), prompts, [list(range(8))], page_size=4) == "1 0 2"


def shared(count: int, tail: int) -> list[int]:
    """A prompt of 70 tokens that shares its first `count` ones with all others."""
    return [*range(count), *range(100 * tail, 100 * tail + 70 - count)]


def test_deduplication_is_off_unless_asked_for() -> None:
    prompts = [shared(64, 1), shared(64, 2), list(COLD)]
    assert order_of(lpm(), prompts, []) == "0 1 2"


def test_duplicates_keep_their_order() -> None:  # row 96
    prompts = [shared(64, 1), list(COLD), shared(64, 2), shared(64, 3)]
    assert order_of(lpm(dedupe_check=32), prompts, []) == "0 1 2 3"


@pytest.mark.parametrize(("share", "expected"), [(64, "0 2 1 3"), (32, "0 2 1 3"), (31, "0 1 2 3")])
def test_a_cold_duplicate_waits_for_its_representative(share: int, expected: str) -> None:
    # rows 96, 97: a1, a2, b, a3 with a shared prefix of 64, 32 and 31 tokens.
    prompts = [shared(share, 1), shared(share, 2), list(COLD), shared(share, 3)]
    assert order_of(lpm(dedupe_check=32), prompts, []) == expected


@pytest.mark.parametrize(("cached", "expected"), [(33, "0 1 2"), (32, "0 2 1")])
def test_a_warm_one_is_no_duplicate(cached: int, expected: str) -> None:  # row 98
    prompts = [shared(64, 1), shared(64, 2), list(COLD)]
    found = order_of(lpm(dedupe_check=32), prompts, [list(range(cached))])
    assert found == expected


def test_a_duplicate_goes_last_even_with_a_match() -> None:  # row 91
    prompts = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 8], [1, 2, 50], [60]]
    found = order_of(lpm(dedupe_check=8, dedupe_share=6), prompts, [[1, 2, 3, 4]])
    assert found == "0 2 3 1"


@pytest.mark.parametrize(("share", "expected"), [(50, "0 1 2"), (64, "0 2 1"), (127, "0 2 1")])
def test_what_no_page_can_hold_is_not_shared(share: int, expected: str) -> None:  # issue 16
    prompts = [
        [*range(share), *range(1000, 1100)],
        [*range(share), *range(2000, 2100)],
        list(COLD),
    ]
    assert order_of(lpm(dedupe_check=32), prompts, [], page_size=64) == expected


def test_the_next_of_a_group_takes_its_place_in_the_next_pass() -> None:
    policy = lpm(dedupe_check=0, dedupe_share=2)
    stepper = Stepper(policy=policy, max_running=1)
    for prompt in ([1, 2, 3], [1, 2, 4], [9], [1, 2, 5]):
        stepper.add(prompt, output=1)
    view = stepper.scheduler._view
    assert order(policy, view) == [0, 2, 1, 3]
    # The first computes [1, 2] for all, who are warm from then on.
    stepper.step()
    assert order(policy, view) == [1, 3, 2]


def test_a_group_that_lost_its_first_one_has_a_next() -> None:
    policy = lpm(dedupe_check=8, dedupe_share=2)
    stepper = Stepper(policy=policy, max_running=1)
    for prompt in ([1, 2, 3], [1, 2, 4], [9], [1, 2, 5]):
        stepper.add(prompt, output=1)
    view = stepper.scheduler._view
    stepper.step()
    # Warm by 2 tokens, but no warmer than checked: the second now represents the third.
    assert order(policy, view) == [1, 2, 3]


def test_the_earliest_arrival_represents_its_group_even_after_a_preemption() -> None:
    policy = lpm(dedupe_check=8, dedupe_share=2)
    stepper = Stepper(num_pages=8, policy=policy, kind="none", max_running=2, **GREEDY)
    stepper.add([9, 9, 9], output=4)
    early = stepper.add([1, 2, 3], output=3)
    stepper.add([1, 2, 4], output=4)
    # Step 3 needs 2 pages of none, so that the second one waits again, beside the third.
    for _ in range(3):
        stepper.step()
    assert early.num_preemptions == 1
    assert order(policy, stepper.scheduler._view) == [1, 2]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"dedupe_check": -2}, "dedupe_check=-2, dedupe_share=32"),
        ({"dedupe_share": 0}, "dedupe_check=-1, dedupe_share=0"),
        ({"on_misfit": "x"}, "on_misfit='x'"),
        ({"aging": -1.0}, r"aging=-1\.0: a finite number of at least 0"),
    ],
)
def test_parameters_are_checked(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lpm(**parameters)


def longest(view: SchedulerView, left: list[SequenceView]) -> SequenceView:
    return min(left, key=lambda s: (-view.cache.peek(s.tokens, s.namespace), s.index))


@settings(max_examples=200)
@given(worlds(replicas=1), st.sampled_from(["stop", "skip"]))
def test_every_proposal_is_the_longest_match_of_all(world: World, on_misfit: Any) -> None:
    world.run(policy=lambda: Audited(Lpm(on_misfit), longest))


class DedupedOrder(Audited):
    """Compares the whole order at the start of each pass with the rule of deduplication."""

    def __init__(self, check: int, share: int) -> None:
        super().__init__(Lpm("skip", check, share), lambda view, left: left[0])
        self.check = check
        self.share = share

    def candidates(self, view: SchedulerView) -> Any:
        assert order(self.policy, view) == self.expected(view)
        return self.policy.candidates(view)

    def expected(self, view: SchedulerView) -> list[int]:
        page = view.cache.page_size
        share = -(-self.share // page) * page
        seen: set[tuple[str, bytes]] = set()
        ranked: list[tuple[Any, int]] = []
        for sequence in sorted(view.waiting, key=lambda s: s.index):
            match = view.cache.peek(sequence.tokens, sequence.namespace)
            last = False
            if match <= self.check and sequence.num_tokens >= share:
                key = (sequence.namespace, sequence.tokens[:share].tobytes())
                last = key in seen
                seen.add(key)
            ranked.append(((last, 0 if last else -match, sequence.index), sequence.id))
        return [id for _, id in sorted(ranked)]


@settings(max_examples=200)
@given(worlds(replicas=1), st.integers(0, 6), st.integers(1, 5))
def test_duplicates_are_those_that_share_with_an_earlier_cold_one(
    world: World, check: int, share: int
) -> None:
    world.run(policy=lambda: DedupedOrder(check, share))


@pytest.mark.parametrize(("aging", "passed_by"), [(0.0, 8), (2.0, 5), (2.6, 4), (100.0, 1)])
def test_a_cold_request_is_passed_by_those_only_that_come_soon_after(
    aging: float, passed_by: int
) -> None:
    stepper = Stepper(policy=Lpm(aging=aging), max_running=1)
    stepper.add(range(10))
    stepper.run()
    cold = stepper.add([50])
    # One with 10 cached tokens comes with the cold one and at every step: 10 > 2 * 4 but not 2 * 5.
    for number in range(8):
        stepper.add([*range(10), 60 + number])
        stepper.step()
    stepper.run()
    order_served = [row[3] for row in stepper.log.rows if row[2] == "admit"]
    assert order_served.index(cold.request.id) == 1 + passed_by


class Ages(Audited):
    """Notes the step of each arrival and picks by looking at everybody."""

    def __init__(self, aging: float, on_misfit: Any) -> None:
        super().__init__(Lpm(on_misfit, aging=aging), self.pick)
        self.aging = aging
        self.arrived: dict[int, int] = {}

    def on_start(self, view: SchedulerView) -> None:
        self.view = view
        super().on_start(view)

    def on_arrival(self, sequence: SequenceView) -> Any:
        self.arrived[sequence.index] = self.view.step
        return super().on_arrival(sequence)

    def pick(self, view: SchedulerView, left: list[SequenceView]) -> SequenceView:
        def grown(s: SequenceView) -> float:
            waited = view.step - self.arrived[s.index]
            return view.cache.peek(s.tokens, s.namespace) + self.aging * waited

        return min(left, key=lambda s: (-grown(s), s.index))


@settings(max_examples=150)
@given(worlds(replicas=1), st.sampled_from([0.5, 2.0, 64.0]), st.sampled_from(["stop", "skip"]))
def test_every_proposal_is_the_longest_grown_match(
    world: World, aging: float, on_misfit: str
) -> None:
    # Halves and whole numbers are summed up exactly.
    world.run(policy=lambda: Ages(aging, on_misfit))


def test_aging_lets_nobody_starve() -> None:
    assert Lpm().may_starve and Lpm(aging=1.0, dedupe_check=0).may_starve
    assert not Lpm(aging=1.0).may_starve


@pytest.mark.parametrize(
    ("k", "expected"), [(1, [1, 2, 3, 4, 5]), (2, [1, 4, 2, 5, 3]), (3, [1, 4, 5, 2, 3])]
)
def test_every_kth_pick_is_the_front_of_the_queue(k: int, expected: list[int]) -> None:
    policy = KLpm(k)
    stepper = Stepper(policy=policy, max_running=1)
    stepper.add(range(10))
    stepper.run()
    policy._picks = 0
    for prompt in ([50], [60], [70], [*range(9), 1], [*range(8), 1]):
        stepper.add(prompt)
    stepper.run()
    assert [row[3] for row in stepper.log.rows if row[2] == "admit"][1:] == expected


class Picks(Audited):
    """Counts picks, and takes the front or the longest match of everybody."""

    def __init__(self, k: int) -> None:
        super().__init__(KLpm(k), self.pick)
        self.k = k
        self.picks = 0

    def pick(self, view: SchedulerView, left: list[SequenceView]) -> SequenceView:
        return left[0] if self.picks % self.k == 0 else longest(view, left)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        self.picks += 1
        super().on_admit(sequence, cached, extend)


@settings(max_examples=100)
@given(worlds(replicas=1), st.integers(1, 4))
def test_every_proposal_is_the_front_or_the_longest_match(world: World, k: int) -> None:
    world.run(policy=lambda: Picks(k))


def test_k_is_checked() -> None:
    with pytest.raises(ValueError, match="k=0: at least 1 is needed"):
        KLpm(0)
