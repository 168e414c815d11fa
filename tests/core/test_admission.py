"""The three reserves, by hand and against walking through time token by token."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from testbed.core.admission import (
    FullReserve,
    PeakReserve,
    RatioReserve,
    build_reserve,
    lifetime_pages,
)
from testbed.core.config import SchedulerConfig
from testbed.core.page_pool import PagePool
from testbed.core.prefix_cache import NoCache
from testbed.core.request import Sequence
from tests.core.building import make_request, radix_driver


def sequence_of(prompt: int, max_new: int, generated: int = 0) -> Sequence:
    sequence = Sequence(make_request(0, range(prompt), max_new), 0)
    sequence.num_joined_generated = generated
    return sequence


def no_cache(num_pages: int, page_size: int = 1) -> NoCache:
    return NoCache(PagePool(num_pages), page_size)


@pytest.mark.parametrize(
    ("prompt", "max_new", "page", "pages"),
    [(5, 4, 4, 2), (5, 5, 4, 3), (1, 1, 16, 1), (16, 1, 16, 1), (16, 2, 16, 2), (3, 4, 1, 6)],
)
def test_a_lifetime_leaves_the_last_token_out(
    prompt: int, max_new: int, page: int, pages: int
) -> None:
    assert lifetime_pages(sequence_of(prompt, max_new), page) == pages


def test_full_keeps_every_declared_output() -> None:
    cache = no_cache(10)
    reserve = FullReserve(cache)
    running = sequence_of(3, 4)
    cache.take(3)
    running.num_pages = 3
    reserve.on_admit(running)
    # 7 free, 3 promised: a lifetime of 4 fits, one of 5 does not.
    assert reserve.fits(sequence_of(2, 3), 0, [running])
    assert not reserve.fits(sequence_of(3, 3), 0, [running])
    cache.take(1)
    running.num_pages = 4
    reserve.on_take(1)
    assert reserve.fits(sequence_of(2, 3), 0, [running])
    assert not reserve.fits(sequence_of(3, 3), 0, [running])
    reserve.on_leave(running)
    assert reserve.fits(sequence_of(3, 4), 0, [])
    assert not reserve.fits(sequence_of(4, 4), 0, [])


def test_a_newcomer_s_own_cached_prefix_is_neither_needed_nor_room() -> None:
    driver = radix_driver(num_pages=10)
    driver.serve([1, 2, 3, 4])
    reserve = FullReserve(driver.cache)
    # 6 free, 4 evictable, all of those its own prefix: a lifetime of 4 + 6 fits, 4 + 7 does not.
    for max_new, fits in ((5, True), (6, False)):
        newcomer = driver.wait([1, 2, 3, 4, 5, 6], output=max_new)
        assert reserve.fits(newcomer, 4, []) is fits
    stranger = driver.wait([9, 8], output=9)
    assert reserve.fits(stranger, 0, [])


def test_ratio_keeps_a_share_of_what_remains() -> None:
    cache = no_cache(300)
    cache.take(100)
    reserve = RatioReserve(cache, SchedulerConfig(reserve="ratio"))
    running = [sequence_of(10, 100, generated=40), sequence_of(10, 40)]
    # Remaining 60 + 40, of which 70 are kept: 130 of the 200 free pages are left.
    assert reserve.fits(sequence_of(100, 31), 0, running)
    assert not reserve.fits(sequence_of(100, 32), 0, running)
    assert reserve.fits(sequence_of(100, 200), 0, []) is False
    assert reserve.fits(sequence_of(100, 101), 0, [])


def test_ratio_clips_long_outputs() -> None:
    reserve = RatioReserve(no_cache(4105), SchedulerConfig(reserve="ratio"))
    assert reserve.fits(sequence_of(10, 100_000), 0, [])
    assert not reserve.fits(sequence_of(11, 100_000), 0, [])
    cache = no_cache(5000)
    reserve = RatioReserve(cache, SchedulerConfig(reserve="ratio", reserve_ratio=1.0))
    running = [sequence_of(10, 100_000)]
    assert reserve.fits(sequence_of(904, 1), 0, running)
    assert not reserve.fits(sequence_of(905, 1), 0, running)


def test_ratio_decays_to_its_floor_and_starts_anew_when_idle() -> None:
    reserve = RatioReserve(no_cache(10), SchedulerConfig(reserve="ratio"))
    assert reserve.ratio == 0.7
    reserve.on_decode_steps(300)
    assert reserve.ratio == pytest.approx(0.7 - 0.301)
    reserve.on_decode_steps(299)
    assert reserve.ratio == pytest.approx(0.098 + 0.602 / 600)
    reserve.on_decode_steps(1000)
    assert reserve.ratio == 0.098
    reserve.fits(sequence_of(1, 1), 0, [])
    assert reserve.ratio == 0.7


def test_ratio_decays_in_the_steps_of_row_115() -> None:
    config = SchedulerConfig(
        reserve="ratio", reserve_ratio=0.7, reserve_ratio_floor=0.1, reserve_decay_steps=3
    )
    reserve = RatioReserve(no_cache(10), config)
    seen = []
    for _ in range(5):
        seen.append(reserve.ratio)
        reserve.on_decode_steps(1)
    assert seen == pytest.approx([0.7, 0.5, 0.3, 0.1, 0.1])


@pytest.mark.parametrize(  # row 116
    ("running", "estimate"),
    [
        ([(5, 100), (3, 50)], 48 / 151),
        ([(200, 10)], 1.0),
        ([(0, 1000), (0, 1000)], 0.098),
        ([], 0.098),
    ],
)
def test_ratio_is_estimated_anew_after_a_preemption(
    running: list[tuple[int, int]], estimate: float
) -> None:
    reserve = RatioReserve(no_cache(10), SchedulerConfig(reserve="ratio"))
    reserve.on_decode_steps(17)
    reserve.on_preempt([sequence_of(1, declared, generated) for generated, declared in running])
    assert reserve.ratio == pytest.approx(estimate)
    reserve.on_decode_steps(100)
    assert reserve.ratio == pytest.approx(max(0.098, estimate - 100 * 0.602 / 600))


def test_peak_by_hand() -> None:
    cache = no_cache(20)
    reserve = PeakReserve(cache, SchedulerConfig(reserve="peak"))
    running = sequence_of(4, 8, generated=3)
    cache.take(7)
    running.num_pages = 7
    # It grows by 4 to 11. A newcomer of 3 that grows by 2 peaks when it ends: 9 + 5 = 14;
    # one of 6 that grows by 6 peaks when the running one ends: 11 + 10 = 21.
    assert reserve.fits(sequence_of(3, 3), 0, [running])
    assert not reserve.fits(sequence_of(6, 7), 0, [running])
    assert reserve.fits(sequence_of(5, 7), 0, [running])


def test_a_prefix_that_is_cached_takes_no_page_at_the_peak() -> None:
    driver = radix_driver(num_pages=8)
    driver.serve([1, 2, 3, 4])
    reserve = PeakReserve(driver.cache, SchedulerConfig(reserve="peak"))
    assert reserve.fits(driver.wait([1, 2, 3, 4, 5], output=4), 4, [])
    assert not reserve.fits(driver.wait([1, 2, 3, 4, 5], output=5), 4, [])


runs = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 8)), min_size=0, max_size=4
)


@given(runs, st.integers(1, 9), st.integers(1, 9), st.integers(1, 60))
def test_peak_is_the_worst_moment_to_come(
    started: list[tuple[int, int, int]], prompt: int, max_new: int, num_pages: int
) -> None:
    running = [sequence_of(p, m, min(g, m - 1)) for p, m, g in started]
    held = [s.num_prompt_tokens + s.num_generated_tokens for s in running]
    assume(sum(held) <= num_pages)
    cache = no_cache(num_pages)
    cache.take(sum(held))
    for sequence, pages in zip(running, held, strict=True):
        sequence.num_pages = pages
    newcomer = sequence_of(prompt, max_new)
    everyone = [*zip(running, held, strict=True), (newcomer, prompt)]
    # All produce a token a step; one that holds its last page leaves before the others go on.
    lives = [(p, lifetime_pages(s, 1) - p) for s, p in everyone]
    moments = range(max(growth for _, growth in lives) + 1)
    worst = max(sum(p + t for p, growth in lives if t <= growth) for t in moments)
    assert PeakReserve(cache, SchedulerConfig(reserve="peak")).fits(newcomer, 0, running) is (
        worst <= num_pages
    )


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 4, 16]))
def test_what_an_empty_pool_can_hold_always_fits_when_nothing_runs(
    prompt: int, max_new: int, page: int
) -> None:  # issue 9
    newcomer = sequence_of(prompt, max_new)
    for reserve in ("full", "ratio", "peak"):
        cache = no_cache(lifetime_pages(newcomer, page), page)
        config = SchedulerConfig(reserve=reserve)
        assert build_reserve(config, cache).fits(newcomer, 0, [])


def test_the_config_names_the_reserve() -> None:
    kinds = {"full": FullReserve, "ratio": RatioReserve, "peak": PeakReserve}
    for name, kind in kinds.items():
        config = SchedulerConfig(reserve=name)  # type: ignore[arg-type]
        assert type(build_reserve(config, no_cache(1))) is kind


def test_without_reserve_newcomer_a_prompt_is_room_enough() -> None:  # vLLM
    # 8 pages, a prompt of 8 and an output of 5: only with its output it does not fit.
    for counted, fits in ((True, False), (False, True)):
        config = SchedulerConfig(reserve="ratio", reserve_newcomer=counted)
        assert RatioReserve(no_cache(8), config).fits(sequence_of(8, 5), 0, []) is fits
