"""Who is let in, refused or delayed, and when a pass is not worth making."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.core.policy import NO_BUDGET, NO_MEMORY, Delay, Proposals, Refuse
from testbed.core.request import State
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.arrival import Fcfs
from testbed.policies.scheduling.cache_aware import Lpm
from tests.core.stepping import Stepper


class Curious(Fcfs):
    """FCFS that goes on after a misfit and notes what it heard, pass by pass."""

    def __init__(self) -> None:
        super().__init__("skip")
        self.passes: list[list[tuple[int, str]]] = []

    def candidates(self, view: SchedulerView) -> Proposals:
        heard: list[tuple[int, str]] = []
        self.passes.append(heard)
        for sequence in view.waiting:
            outcome = yield sequence
            heard.append((sequence.id, repr(outcome)))


def test_a_policy_hears_what_became_of_each_proposal() -> None:
    policy = Curious()
    stepper = Stepper(num_pages=20, policy=policy, chunk_size=16)
    stepper.add(range(8), output=3)
    stepper.add(range(100, 111), output=1)
    stepper.add(range(200, 208), output=2)
    stepper.add(range(300, 309), output=1)
    stepper.step()
    admitted = "Admitted(cached=0, extend=8)"
    # 20 pages hold the first (10) and the third (9); the second fits the budget of 8 in part.
    assert policy.passes == [[(0, admitted), (1, "NO_MEMORY"), (2, admitted), (3, "NO_BUDGET")]]
    assert (bool(NO_MEMORY), bool(NO_BUDGET)) == (False, False)


def test_a_pass_ends_when_the_batch_is_full() -> None:
    policy = Curious()
    stepper = Stepper(policy=policy, max_running=1)
    for start in (0, 10):
        stepper.add([start])
    stepper.step()
    # The generator was closed before it heard of the admission.
    assert policy.passes == [[]]
    assert stepper.sequences[0].state is State.FINISHED
    assert stepper.sequences[1].state is State.WAITING


def test_fcfs_stops_at_a_misfit_and_skip_goes_on() -> None:
    for on_misfit, admitted in (("stop", [0]), ("skip", [0, 2])):
        stepper = Stepper(num_pages=12, policy=Fcfs(on_misfit))  # type: ignore[arg-type]
        for start, length in ((0, 6), (100, 10), (200, 3)):
            stepper.add(range(start, start + length), output=2)
        step = stepper.step()
        assert step is not None
        assert [row[0] for row in step.prefills] == admitted


@pytest.mark.parametrize(
    ("prompt", "max_new", "page", "needs"),
    [(11, 1, 1, 11), (8, 4, 1, 11), (34, 8, 4, 11), (41, 1, 4, 11)],
)
def test_what_can_never_fit_is_refused_at_once(
    prompt: int, max_new: int, page: int, needs: int
) -> None:
    stepper = Stepper(num_pages=10, page_size=page)
    refused = stepper.add(range(prompt), output=1, max_new_tokens=max_new)
    assert refused.state is State.REFUSED
    assert refused.refusal == f"needs {needs} pages, the pool has 10"
    assert stepper.scheduler.schedule(0.0) is None
    assert stepper.log.rows == [(0, 0, "refuse", 0, prompt, 0, 0)]


@pytest.mark.parametrize("reserve", ["full", "ratio", "peak"])
@pytest.mark.parametrize(("prompt", "max_new", "page"), [(7, 4, 1), (37, 4, 4), (40, 1, 4)])
def test_what_just_fits_an_empty_pool_runs(
    reserve: str, prompt: int, max_new: int, page: int
) -> None:
    stepper = Stepper(num_pages=10, page_size=page, reserve=reserve)  # issue 9
    sequence = stepper.add(range(prompt), output=max_new)
    stepper.run()
    assert (sequence.state, sequence.num_preemptions) == (State.FINISHED, 0)


def test_a_full_pool_of_cached_pages_gives_way_to_a_newcomer() -> None:
    stepper = Stepper(num_pages=10)
    stepper.add(range(10))
    stepper.run()
    newcomer = stepper.add(range(100, 110))
    stepper.run()
    assert newcomer.state is State.FINISHED
    assert stepper.log.rows[-3][:6] == (0, 2, "evict", -1, 10, 0)


def test_a_newcomer_waits_for_what_running_ones_declared() -> None:
    stepper = Stepper(num_pages=10)
    stepper.add(range(3), output=2, max_new_tokens=6)
    stepper.add(range(100, 103))
    steps = stepper.run()
    # 3 + 5 pages are spoken for until the first leaves, which is sooner than it declared.
    assert [step.finished for step in steps] == [[], [0], [1]]


class Gate(Fcfs):
    """Answers arrivals from a list; once that is empty, lets everybody in."""

    def __init__(self, *verdicts: Refuse | Delay | None) -> None:
        super().__init__()
        self.verdicts = list(verdicts)
        self.asked: list[int] = []

    def on_arrival(self, sequence: SequenceView) -> Refuse | Delay | None:
        self.asked.append(sequence.id)
        return self.verdicts.pop(0) if self.verdicts else None


def test_a_policy_may_refuse() -> None:
    stepper = Stepper(policy=Gate(Refuse("over quota")))
    refused, served = stepper.add([1]), stepper.add([2])
    assert (refused.state, refused.refusal) == (State.REFUSED, "over quota")
    stepper.run()
    assert served.state is State.FINISHED
    assert [row[2:4] for row in stepper.log.rows if row[2] == "refuse"] == [("refuse", 0)]


def test_a_delayed_request_arrives_again_when_its_time_has_come() -> None:
    policy = Gate(Delay(2.0), None, Delay(3.5))
    stepper = Stepper(policy=policy)
    scheduler = stepper.scheduler
    delayed = stepper.add([1])
    stepper.add([2, 3], output=6)
    stepper.step()
    assert (delayed.state, scheduler.next_release) == (State.DELAYED, 2.0)
    assert len(scheduler.waiting) == 0
    stepper.step()
    stepper.step()
    # Asked again at 2.0 and delayed once more, until the first step that begins at 3.5 or later.
    assert (policy.asked, scheduler.next_release) == ([0, 1, 0], 3.5)
    stepper.step()
    assert delayed.admitted_time == -1.0
    stepper.step()
    assert (delayed.admitted_time, scheduler.next_release) == (4.0, None)


def test_a_delay_until_the_very_instant_of_a_step_is_over() -> None:
    stepper = Stepper(policy=Gate(Delay(1.0)))
    delayed = stepper.add([1])
    assert stepper.step() is None
    stepper.now = 1.0
    stepper.step()
    assert delayed.admitted_time == 1.0


def test_delayed_requests_are_released_by_time_then_by_arrival() -> None:
    stepper = Stepper(policy=Gate(Delay(3.0), Delay(2.0), Delay(2.0)), max_running=1)
    for token in range(3):
        stepper.add([token])
    assert stepper.step() is None
    stepper.now = 5.0
    assert [step.finished for step in stepper.run()] == [[1], [2], [0]]


def test_a_delayed_request_can_be_refused_in_the_end() -> None:
    stepper = Stepper(policy=Gate(Delay(1.0), Refuse("too late")))
    delayed = stepper.add([1])
    stepper.now = 1.0
    assert stepper.step() is None
    assert (delayed.state, delayed.refusal) == (State.REFUSED, "too late")


class Watchful(Fcfs):
    """FCFS that does not promise its passes repeat: a pass at every step."""

    reacts_to_decoding = True


@pytest.mark.parametrize("insert_at", ["commit", "schedule"])
def test_pages_freed_by_adoption_let_a_waiting_request_in(insert_at: str) -> None:
    def admitted_step(policy: Fcfs) -> int:
        stepper = Stepper(num_pages=28, policy=policy, insert_at=insert_at)
        for _ in range(2):
            stepper.add(range(8), output=6)
        stepper.add(range(100, 104), output=2)
        stepper.run()
        return stepper.sequences[2].admitted_step

    # Once the two siblings share their 8 pages, 28 hold 8 + 2 * 5 + 5.
    assert admitted_step(Fcfs()) == admitted_step(Watchful()) <= 2


def test_a_match_that_shrinks_while_others_decode_lets_the_next_best_in() -> None:
    stepper = Stepper(num_pages=20, policy=Lpm())
    for prompt in ([1, 2, 3, 4, 5, 6], [9, 8]):
        stepper.add(prompt)
        stepper.run()
    grower = stepper.add([50, 51], output=16)
    stepper.step()
    small = stepper.add([9, 8, 7])
    stepper.add([1, 2, 3, 4, 5, 6, *range(60, 70)])
    stepper.run()
    # The last one matches best and does not fit; 14 decodes take 10 free pages and then 4 of its 6
    # cached ones, so that one step before the end the small one matches as well, and came first.
    assert grower.decode_spans == [(3, 18)]
    assert small.admitted_step == 17


@pytest.mark.parametrize("reserve", ["full", "ratio", "peak"])
@pytest.mark.parametrize("policy", [Fcfs, Watchful])
def test_shrinking_memory_lets_nobody_wait_for_ever(reserve: str, policy: type[Fcfs]) -> None:
    stepper = Stepper(num_pages=12, policy=policy(), reserve=reserve)
    for number in range(6):
        stepper.add(range(10 * number, 10 * number + 5), output=1 + number)
    stepper.run()
    assert all(s.state is State.FINISHED for s in stepper.sequences.values())


def test_two_schedulers_share_nothing() -> None:
    first, second = Stepper(), Stepper()
    first.add([1, 2, 3])
    first.run()
    other: Any = second.add([1, 2, 3])
    assert (other.num_matched_tokens, other.index) == (0, 0)
