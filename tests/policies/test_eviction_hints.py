"""Priorities, pins and leases: what is kept, for how long, and that nobody waits for ever."""

from __future__ import annotations

from testbed.policies.eviction.hints import Pin, Priority, Ttl
from tests.policies.evicting import Served

A, B, C, D = (1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11, 12)


def test_the_lowest_priority_leaves_first() -> None:
    cache = Served(Priority(), 6)
    cache.serve(*A, priority=1)
    cache.serve(*B)
    cache.serve(*C, priority=1)
    assert (cache.kept(*A), cache.kept(*B), cache.kept(*C)) == (3, 0, 3)


def test_a_priority_is_raised_by_use_and_never_lowered() -> None:
    cache = Served(Priority(), 8)
    cache.serve(*A)
    cache.serve(*B, priority=1)
    assert cache.serve(*A, 20, priority=2) == 3
    cache.serve(*A, 21, priority=0)
    # [20] has 2, [21] has 0, A has 2.
    cache.serve(*D)
    assert (cache.kept(*A, 20), cache.kept(*B), cache.kept(*A, 21)) == (4, 1, 3)


def test_both_halves_of_a_split_keep_the_priority() -> None:
    cache = Served(Priority(), 8)
    cache.serve(*A, priority=2)
    cache.serve(*B, priority=1)
    cache.serve(1, 9)
    cache.serve(*D)
    # 9 has priority 0 and one page is free: the third page is one of B.
    assert (cache.kept(*A), cache.kept(*B), cache.kept(1, 9)) == (3, 2, 1)


def test_a_pin_keeps_a_prefix_and_no_more() -> None:
    cache = Served(Pin(), 6)
    cache.serve(*A, pin=2)
    cache.serve(*B)
    cache.serve(*C)
    assert (cache.kept(*A), cache.kept(*B), cache.kept(*C)) == (2, 1, 3)


def test_a_pin_ends_with_its_page() -> None:
    cache = Served(Pin(), 3, page_size=4)
    cache.serve(*range(8), pin=2)
    cache.serve(*range(20, 28))
    assert cache.kept(*range(8)) == 4


def test_pins_beyond_their_share_are_ignored() -> None:
    cache = Served(Pin(max_share=0.5), 6)
    cache.serve(*A, pin=3)
    cache.serve(*B, pin=3)
    cache.serve(*C)
    assert (cache.kept(*A), cache.kept(*B)) == (3, 0)


def test_a_pin_that_left_makes_room_for_another() -> None:
    cache = Served(Pin(max_share=0.5), 6)
    cache.serve(*A, pin=3)
    cache.serve(*range(20, 26))
    assert cache.kept(*A) == 0
    cache.serve(*B, pin=3)
    cache.serve(*C)
    cache.serve(*D)
    assert cache.kept(*B) == 3


def test_pins_of_everything_do_not_stop_admission() -> None:
    cache = Served(Pin(max_share=1.0), 6)
    for prompt in (A, B, C, D):
        cache.serve(*prompt, pin=3)
    assert [cache.kept(*prompt) for prompt in (A, B, C, D)] == [0, 0, 3, 3]


def test_a_later_use_may_pin_more() -> None:
    cache = Served(Pin(), 6)
    cache.serve(*A)
    cache.serve(*A, pin=3)
    cache.serve(*B)
    cache.serve(*C)
    assert cache.kept(*A) == 3


def test_a_lease_holds_until_it_lapses() -> None:
    cache = Served(Ttl(seconds=0.0), 6)
    cache.serve(*A, retain_for=10.0)
    cache.serve(*B)
    cache.serve(*C)
    assert (cache.kept(*A), cache.kept(*B)) == (3, 0)
    cache.now = 11.0
    cache.serve(*D)
    assert (cache.kept(*A), cache.kept(*C)) == (0, 3)


def test_a_use_prolongs_the_lease_of_the_whole_path() -> None:
    cache = Served(Ttl(seconds=5.0, max_share=1.0), 7)
    cache.serve(*A)
    cache.now = 5.0
    cache.serve(*A, 20)
    cache.now = 9.0
    # Until 11: A and [20] are leased, though the first lease of A would have lapsed at 6.
    cache.serve(*B, retain_for=0.5)
    cache.now = 10.6
    cache.serve(*C)
    assert (cache.kept(*A, 20), cache.kept(*B)) == (4, 0)
    cache.now = 12.0
    # A and [20] are no longer leased, C is.
    cache.serve(*D)
    assert (cache.kept(*A, 20), cache.kept(*C)) == (1, 3)


def test_a_path_is_leased_from_its_root_as_far_as_its_share_goes() -> None:
    cache = Served(Ttl(seconds=100.0, max_share=0.5), 6)
    cache.serve(*A)
    cache.serve(*A, 4)
    cache.serve(20, 21, 22)
    # A is leased, [4] and what came later no longer fit the share.
    assert (cache.kept(*A, 4), cache.kept(20, 21, 22)) == (3, 3)
    cache.serve(30, 31)
    assert (cache.kept(*A), cache.kept(20, 21, 22), cache.kept(30, 31)) == (3, 1, 2)


def test_leases_of_everything_do_not_stop_admission() -> None:
    cache = Served(Ttl(seconds=1000.0, max_share=1.0), 6)
    for prompt in (A, B, C, D):
        cache.serve(*prompt)
    assert [cache.kept(*prompt) for prompt in (A, B, C, D)] == [0, 0, 3, 3]
