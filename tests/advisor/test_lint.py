"""Every planted fault is found, nothing is found in the clean twins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.advisor.lint import Lint, lint
from testbed.workloads.data_folder import data_folder
from testbed.workloads.formats.chat import chat_record
from testbed.workloads.formats.prompts import prompt_record
from testbed.workloads.tokenize import StandInTokenizer
from tests.advisor import planted

PLANTED = [
    pytest.param(app, fault, rule, id=f"{app.__name__}-{fault.__name__}")
    for app, faults in (
        (planted.rag, planted.RAG_FAULTS),
        (planted.chat, planted.CHAT_FAULTS),
        (planted.raw, planted.RAW_FAULTS),
    )
    for fault, rule in faults.items()
]


def linted(lines: list[planted.Chat], page_size: int = 16, min_prefix: int = 0) -> Lint:
    read = prompt_record if "prompt" in lines[0] else chat_record
    records = [read(i + 1, line) for i, line in enumerate(lines)]
    return lint(records, StandInTokenizer(), page_size, min_prefix)


def rules(found: Lint) -> list[str]:
    return [cost.finding.rule for cost in found.costs]


@pytest.fixture(scope="module")
def invented() -> planted.Material:
    return planted.invented()


@pytest.fixture(scope="module")
def real() -> planted.Material:
    folder = data_folder()
    if folder is None or not (folder / "agents").is_dir():
        pytest.skip("the data folder with tau-bench, MMLU and PEPs is not there")
    return planted.from_data(Path(folder))


@pytest.mark.parametrize(("app", "fault", "rule"), PLANTED)
def test_a_planted_fault_is_found_and_its_mend_wins_back_what_it_cost(
    app: Callable[..., list[planted.Chat]],
    fault: planted.Fault,
    rule: str,
    invented: planted.Material,
) -> None:
    found = linted(app(invented, fault, 120) if app is not planted.chat else app(invented, fault))
    assert rules(found) == [rule]
    assert found.costs[0].tokens_lost > 0
    assert found.mended.rate > found.now.rate


@pytest.mark.parametrize("app", [planted.rag, planted.chat, planted.raw])
def test_nothing_is_found_in_the_clean_twin(
    app: Callable[..., list[planted.Chat]], invented: planted.Material
) -> None:
    found = linted(app(invented))
    assert rules(found) == []
    assert found.mended == found.now


@pytest.mark.parametrize(
    ("fault", "rule"), [(f, r) for f, r in planted.CHAT_FAULTS.items() if r in ("L4", "L5")]
)
def test_sessions_that_the_log_does_not_name_are_found_by_what_they_repeat(
    fault: planted.Fault, rule: str, invented: planted.Material
) -> None:
    assert rules(linted(planted.chat(invented, fault, named=False))) == [rule]
    assert rules(linted(planted.chat(invented, None, named=False))) == []


@pytest.mark.slow
@pytest.mark.parametrize(("app", "fault", "rule"), PLANTED)
def test_a_fault_planted_in_real_texts_is_found(
    app: Callable[..., list[planted.Chat]], fault: planted.Fault, rule: str, real: planted.Material
) -> None:
    assert rules(linted(app(real, fault))) == [rule]


@pytest.mark.parametrize("app", [planted.rag, planted.chat, planted.raw])
def test_nothing_is_found_in_the_clean_twin_of_real_texts(
    app: Callable[..., list[planted.Chat]], real: planted.Material
) -> None:
    assert rules(linted(app(real))) == []


def test_faults_planted_together_are_all_found(invented: planted.Material) -> None:
    def several(turn: planted.Turn) -> None:
        planted.white_space(turn)
        planted.tools_shuffled(turn)
        planted.examples_sampled(turn)
        planted.chunks_by_relevance(turn)
        planted.user_field_first(turn)
        planted.timestamp_first(turn)

    found = linted(planted.rag(invented, several))
    assert {"L1", "L2", "L3", "L6", "L7", "L10"} == set(rules(found))


def prompts_of(shared: str, count: int = 60) -> list[planted.Chat]:
    return [{"prompt": f"{shared}{' '.join(planted.WORDS[i : i + 9])}?"} for i in range(count)]


def test_shared_text_that_ends_within_a_page_is_found() -> None:
    # Each word is a token with the space before it: 24 fill a page and a half of 16.
    ragged = prompts_of(" ".join(["go"] * 24) + "\n")
    found = linted(ragged)
    assert rules(found) == ["L8"]
    # All but the first request compute the half page of 8 anew.
    assert found.costs[0].tokens_lost == 59 * 8
    whole = prompts_of(" ".join(["go"] * 32) + "\n")
    assert rules(linted(whole)) == []
    assert rules(linted(ragged, page_size=8)) == []


def test_a_shared_prefix_below_what_is_cached_is_found() -> None:
    short = prompts_of("answer in one word\n")
    assert "L9" in rules(linted(short))
    long = prompts_of(" ".join(["go"] * 32) + "\n")
    assert rules(linted(long, min_prefix=1024)) == ["L9"]


def test_each_finding_names_its_place_and_mend(invented: planted.Material) -> None:
    found = linted(planted.rag(invented, planted.request_id_in_the_middle))
    finding = found.costs[0].finding
    here, there = finding.example
    # Four instruction lines stand before the identifier.
    before = sum(len(line) + 1 for line in invented.instructions[:4])
    assert (here.line, there.line) == (2, 1)
    assert here.character == there.character == before
    assert here.segment == "system message"
    assert here.text.startswith("Request: ") and here.text != there.text
    assert finding.requests == 240
    assert "move it behind the shared text" in finding.mend
