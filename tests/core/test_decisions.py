"""The decision log: what is in it, and how two of them are told apart."""

from __future__ import annotations

from testbed.core.records import DECISION_COLUMNS, DECISION_KINDS
from tests.core.building import make_request
from tests.core.stepping import GREEDY, Stepper


def busy_run(num_pages: int = 8, output: int = 3) -> Stepper:
    """Two sequences of which one is preempted, a cached page that is evicted, and a refusal."""
    stepper = Stepper(num_pages=num_pages, **GREEDY)
    stepper.add([1, 2, 3], output=4)
    stepper.add([11, 12, 13], output=output)
    stepper.add(range(50))
    stepper.run()
    return stepper


def test_every_decision_by_hand() -> None:
    rows = [row[1:6] for row in busy_run().log.rows]
    assert rows == [
        (0, "refuse", 2, 50, 0),
        (1, "admit", 0, 0, 3),
        (1, "admit", 1, 0, 3),
        (1, "batch", -1, 6, 2),
        (2, "batch", -1, 2, 2),
        (3, "preempt", 1, 4, 0),
        (3, "batch", -1, 1, 1),
        (4, "evict", -1, 1, 0),
        (4, "batch", -1, 1, 1),
        (4, "finish", 0, 4, 0),
        (5, "admit", 1, 2, 3),
        (5, "evict", -1, 3, 0),
        (5, "batch", -1, 3, 1),
        (5, "finish", 1, 3, 0),
    ]
    assert {row[1] for row in rows} == set(DECISION_KINDS)


def test_equal_runs_have_equal_logs() -> None:
    first, second = busy_run().log, busy_run().log
    assert first == second
    assert first.hexdigest() == second.hexdigest()
    assert hash(first) == hash(second)
    assert first.first_difference(second) is None


def test_the_first_difference_is_named() -> None:
    first, second = busy_run().log, busy_run(num_pages=20).log
    assert first != second
    found = first.first_difference(second)
    assert found is not None and found.startswith("decision 5: (0, 3, 'preempt', 1,")
    assert " here, (0, 3, 'batch'," in found
    shorter = busy_run().log
    last = shorter.rows.pop()
    assert first.first_difference(shorter) == f"decision 13: {last} only here"
    assert shorter.first_difference(first) == f"decision 13: {last} only there"
    assert first.hexdigest() != shorter.hexdigest()
    shorter.rows.append((*last[:6], last[6] + 1))
    assert first != shorter


def test_a_log_differs_from_other_things() -> None:
    assert busy_run().log != []


def test_columns_are_the_documented_ones() -> None:
    log = busy_run().log
    columns = log.columns()
    assert list(columns) == list(DECISION_COLUMNS)
    assert columns["kind"].tolist() == [row[2] for row in log.rows]
    assert columns["digest"].tolist() == [row[6] for row in log.rows]
    assert columns["digest"].dtype == "uint32"


def test_digests_tell_pages_and_rows_apart() -> None:
    def digests(*prompts: list[int]) -> list[int]:
        stepper = Stepper()
        for number, prompt in enumerate(prompts):
            stepper.submit(make_request(number, prompt))
        stepper.run()
        return [row[6] for row in stepper.log.rows if row[2] == "batch"]

    same_size = digests([1, 2], [3])
    assert same_size == digests([5, 6], [7])
    assert same_size != digests([1], [2, 3])
