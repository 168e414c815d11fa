"""Expected hit rates, gaps and warnings, against what can be counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from testbed.advisor.fingerprint import fingerprint
from testbed.advisor.forecast import Forecast, Setting, forecast
from testbed.advisor.verdict import Thresholds, decide, decision, margin, warnings
from testbed.workloads.formats.record import PROMPT, Record, RecordSegment
from testbed.workloads.tokenize import StandInTokenizer


def record(line: int, words: list[str], client: str = "default") -> Record:
    # Each word is one token, with the space before it.
    text = " ".join(words)
    return Record(line, (RecordSegment(PROMPT, text),), client=client, output_length=1)


def forecast_of(records: list[Record], setting: Setting) -> Forecast:
    return forecast([records], [records], StandInTokenizer(), setting)


def alternating(count: int) -> list[Record]:
    """Two documents of 8 tokens in turn, each with a question of one token."""
    documents = (["aa"] * 8, ["bb"] * 8)
    return [record(i + 1, [*documents[i % 2], f"q{'abcdefgh'[i % 8]}"]) for i in range(count)]


def test_hit_rates_and_gaps_of_two_documents_in_turn() -> None:
    # 16 requests of 9 tokens ("qa" is one), pages of 4; each document is computed once if nothing
    # is evicted: 14 requests hit 8 tokens.
    found = forecast_of(alternating(16), Setting(cache_tokens=1000, concurrency=1, page_size=4))
    assert found.bound.hit_tokens == 14 * 8
    assert found.now.rate == pytest.approx(14 * 8 / (16 * 9))
    assert found.gaps.by_lever == pytest.approx({"template": 0, "capacity": 0, "scheduling": 0})
    # Three pages hold one request alone: in turn nothing is ever hit, depth first all there is.
    tight = forecast_of(alternating(16), Setting(cache_tokens=12, concurrency=1, page_size=4))
    assert tight.now.rate == 0
    assert tight.depth_first.rate == pytest.approx(14 * 8 / (16 * 9))
    assert tight.gaps.largest == "scheduling"


def test_clients_that_share_are_warned_about_isolation() -> None:
    records = [record(i + 1, ["aa"] * 8 + ["q"], f"client {i % 2}") for i in range(16)]
    found = forecast_of(records, Setting(cache_tokens=1000, concurrency=1, page_size=4))
    # One miss of the shared 8 tokens, or one for each client.
    assert (found.bound.hit_tokens, found.isolated_bound.hit_tokens) == (15 * 8, 14 * 8)
    assert [one.text.split(":")[0] for one in warnings(found)] == ["Isolation"]


def test_a_small_client_that_loses_its_hits_is_found() -> None:
    small = ["ss"] * 8
    records: list[Record] = []
    for _ in range(30):
        records.append(record(len(records) + 1, [*small, "q"], "small"))
        for j in range(30):
            records.append(
                record(len(records) + 1, [f"x{'abcdefghij'[j % 10]}"] * 8 + ["q"], "large")
            )
    found = forecast_of(records, Setting(cache_tokens=60, concurrency=1, page_size=4))
    starved = [one for one in warnings(found) if one.text.startswith("Starvation")]
    assert [one.numbers["name"] for one in starved] == ["small"]
    assert starved[0].numbers["kept"] == 0
    assert starved[0].numbers["could"] == pytest.approx(29 * 8 / (30 * 9))


def test_requests_that_never_fit_are_counted_and_left_out() -> None:
    records = [*alternating(4), record(5, ["cc"] * 100)]
    found = forecast_of(records, Setting(cache_tokens=40, concurrency=1, page_size=4))
    assert found.refused == 1
    assert len(found.now.tokens) == len(found.unlimited_hits) == 4
    # Of the four that fit, 9 tokens each, the second of each document finds its 8.
    for bound in (found.bound, found.mended_bound, found.isolated_bound):
        assert (bound.hit_tokens, bound.total_tokens) == (2 * 8, 4 * 9)
    assert found.gaps.by_lever == pytest.approx({"template": 0, "capacity": 0, "scheduling": 0})
    with pytest.raises(ValueError, match="cache_tokens=4: none of the 5 requests fits"):
        forecast_of(records, Setting(cache_tokens=4, concurrency=1, page_size=4))


def test_requests_that_only_fit_before_the_mends_are_left_out_of_both() -> None:
    records = alternating(4)
    longer = [*records[:3], record(4, ["bb"] * 8 + ["cc"] * 60)]
    setting = Setting(cache_tokens=40, concurrency=1, page_size=4)
    found = forecast([records], [longer], StandInTokenizer(), setting)
    assert found.refused == 1
    assert found.bound.total_tokens == found.mended_bound.total_tokens == 3 * 9


@pytest.mark.parametrize(
    ("rate", "half_width", "single_shot", "choice"),
    [
        (0.50, 0.05, False, "cache_aware"),
        (0.42, 0.05, False, "measure_both"),
        (0.35, 0.01, False, "measure_both"),
        (0.29, 0.05, False, "measure_both"),
        (0.20, 0.05, False, "plain"),
        (0.50, 0.05, True, "plain"),
        (0.50, math.nan, False, "cache_aware"),
    ],
)
def test_the_choice_follows_the_interval(
    rate: float, half_width: float, single_shot: bool, choice: str
) -> None:
    assert decide(rate, half_width, single_shot, Thresholds()) == choice


def test_thresholds_are_options_and_are_checked() -> None:
    assert decide(0.5, 0.0, False, Thresholds(go=0.6, no_go=0.2)) == "measure_both"
    with pytest.raises(ValueError, match=r"no_go=0.5, go=0.4: 0 <= no_go <= go <= 1 is needed"):
        Thresholds(no_go=0.5)
    with pytest.raises(ValueError, match="cache_tokens=8: at least page_size=16 is needed"):
        Setting(cache_tokens=8)


def test_all_starved_clients_are_counted_and_five_named() -> None:
    records: list[Record] = []
    for _ in range(20):
        for j in range(7):
            records.append(record(len(records) + 1, [f"s{'abcdefg'[j]}"] * 8 + ["q"], f"small {j}"))
            for k in range(20):
                words = [f"x{'abcdefghij'[k % 10]}{'abcdefg'[j]}"] * 8
                records.append(record(len(records) + 1, [*words, "q"], "large"))
    found = forecast_of(records, Setting(cache_tokens=60, concurrency=1, page_size=4))
    (said,) = [one for one in warnings(found) if one.text.startswith("Starvation")]
    assert said.numbers["count"] == 7
    assert said.text.count("small ") == 1 + 5 and ", ..." in said.text


def test_an_interval_that_tells_nothing_is_not_printed() -> None:
    found = forecast_of(alternating(16), Setting(cache_tokens=1000, concurrency=1, page_size=4))
    for half_width in (math.nan, 2.039):
        assert "%" not in margin(replace(found.now, half_width=half_width))
    assert margin(replace(found.now, half_width=0.0123)) == " ± 1.2%"


def test_where_order_wins_nothing_the_page_says_so() -> None:
    records = [record(i + 1, ["aa"] * 12 + [f"q{i}"]) for i in range(16)]
    found = forecast_of(records, Setting(cache_tokens=10_000, concurrency=1, page_size=4))
    seen = fingerprint([records], StandInTokenizer(), 4)
    choice, said = decision(16, seen, seen, found, Thresholds(min_requests=1))
    assert choice == "cache_aware"
    assert "wins next to nothing (at most 0.0%)" in said[-1].text
