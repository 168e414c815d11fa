"""Every planted fault is found, nothing is found in the clean twins."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.advisor.lint import Lint, lint
from testbed.advisor.segment_order import order_statements
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


def real_prompts(real: planted.Material, shared_tokens: int) -> list[planted.Chat]:
    """A beginning of the airline's policy of so many tokens, before 60 scraps of PEPs."""
    policy = " ".join(" ".join(real.instructions).split())
    beginnings = (policy[:end] for end in range(2 * shared_tokens, len(policy)))
    shared = next(b for b in beginnings if len(StandInTokenizer().encode([b])[0]) == shared_tokens)
    scraps = [chunk.split()[at : at + 12] for chunk in real.chunks for at in range(0, 100, 5)]
    # Some PEPs quote the same sentences.
    unlike = {scrap[0].lower()[:3]: " ".join(scrap) for scrap in scraps}
    # The line break is a token with what follows it.
    return [{"prompt": f"{shared}\n{scrap}"} for scrap in unlike.values()]


def test_real_shared_text_that_ends_within_a_page_is_found(real: planted.Material) -> None:
    assert rules(linted(real_prompts(real, 2 * 16 + 8))) == ["L8"]
    assert rules(linted(real_prompts(real, 3 * 16))) == []


def test_a_real_prefix_below_what_is_cached_is_found(real: planted.Material) -> None:
    assert rules(linted(real_prompts(real, 48 * 16), min_prefix=1024)) == ["L9"]
    assert rules(linted(real_prompts(real, 65 * 16), min_prefix=1024)) == []


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


def rag_prompts(
    write: Callable[[int, list[str], str], str], shuffled: bool = False, count: int = 160
) -> list[planted.Chat]:
    """Prompts of three of twelve chunks each, as `write(number, chunks, question)` writes them."""
    material = planted.invented()
    rules_text = "\n".join(material.instructions)
    lines = []
    for number in range(count):
        rng = random.Random(number)
        chosen = sorted(rng.sample(range(12), 3) if number % 4 == 0 else rng.sample(range(4), 3))
        if shuffled:
            rng.shuffle(chosen)
        words = " ".join(rng.choice(planted.WORDS) for _ in range(9))
        chunks = [material.chunks[i] for i in chosen]
        user = write(number, chunks, f"Question: {words} {number}?")
        lines.append(
            {
                "messages": [
                    {"role": "system", "content": rules_text},
                    {"role": "user", "content": user},
                ]
            }
        )
    return lines


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda n, c, q: "\n---\n".join(c) + "\n\n" + q, id="rules"),
        pytest.param(lambda n, c, q: "\n".join([*c, q]), id="lines"),
        pytest.param(
            lambda n, c, q: "\n".join(
                [*(f'<doc id="{len(one)}">\n{one}\n\nEnd.\n</doc>' for one in c), q]
            ),
            id="tags",
        ),
        pytest.param(
            lambda n, c, q: "\n\n".join(
                [*(one.replace(". ", ".\n\n").replace("\n\n", "\n", 1) for one in c), q]
            ),
            id="paragraphs",
        ),
    ],
)
def test_chunks_in_another_order_are_found_however_they_are_set_off(
    write: Callable[[int, list[str], str], str],
) -> None:
    found = linted(rag_prompts(write, shuffled=True))
    assert rules(found) == ["L6"]
    # The mend is as good as having sent them in the order of their ids, but for rare chunks.
    clean = linted(rag_prompts(write))
    assert rules(clean) == []
    assert found.mended.rate == pytest.approx(clean.now.rate, abs=0.03)


def test_a_question_ahead_of_chunks_moves_behind_them() -> None:
    first = linted(rag_prompts(lambda n, c, q: "\n\n".join([q, *c])))
    last = linted(rag_prompts(lambda n, c, q: "\n\n".join([*c, q])))
    assert rules(first) == ["L11"]
    assert rules(last) == []
    assert first.mended.rate == pytest.approx(last.now.rate, abs=0.03)


def test_a_date_of_few_values_on_the_first_line_is_found(invented: planted.Material) -> None:
    def dated(turn: planted.Turn) -> None:
        turn.system = f"Today is 2026-03-{1 + turn.number // 24:02d}.\n" + turn.system

    found = linted(planted.raw(invented, dated, 120))
    clean = linted(planted.raw(invented, None, 120))
    assert rules(found) == ["L1"]
    assert found.mended.rate == pytest.approx(clean.now.rate, abs=0.02)


def test_two_new_lines_that_only_win_together_are_moved_together(
    invented: planted.Material,
) -> None:
    def two(turn: planted.Turn) -> None:
        key = turn.rng.getrandbits(128)
        turn.system = f"Request-ID: {key:032x}\nuser_id: u{turn.number}\n" + turn.system

    found = linted(planted.rag(invented, two, 120))
    assert set(rules(found)) == {"L1", "L2"}
    assert found.mended.rate > 0.9 * linted(planted.rag(invented, None, 120)).now.rate


def test_single_shots_have_no_shared_text_that_could_be_padded() -> None:
    words = planted.WORDS
    lines = [{"prompt": f"Tell me {words[i % 90]} {words[i * 7 % 89]} {i * 31}"} for i in range(90)]
    # They have two tokens in common, by chance, and no page.
    assert rules(linted(lines)) == []


def test_a_time_that_is_written_anew_into_earlier_turns_is_named(
    invented: planted.Material,
) -> None:
    def stamped(turn: planted.Turn) -> None:
        now = f"2026-03-04T10:{turn.number // 60:02d}:{turn.number % 60:02d}Z"
        turn.history = [f"fetched_at: {now} {text}" for text in turn.history]

    found = linted(planted.chat(invented, stamped))
    assert rules(found) == ["L5"]
    assert "sent again with another time or id in it" in found.costs[0].finding.problem
    assert "write a time or id into a message once" in found.costs[0].finding.mend


def test_other_orders_are_told_where_they_win_and_turns_stay_in_theirs(
    invented: planted.Material,
) -> None:
    def statements(lines: list[planted.Chat]) -> list[str]:
        records = [chat_record(i + 1, line) for i, line in enumerate(lines)]
        found = lint(records, StandInTokenizer(), 16, 0)
        return [one.text for one in order_statements(found, records, StandInTokenizer(), 16)]

    assert statements(planted.chat(invented)) == []
    assert statements(planted.rag(invented, count=120)) == []
