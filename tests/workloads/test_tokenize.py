from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.request import EMPTY_TOKENS
from testbed.workloads.formats import PROMPT, TOOL, Record, RecordSegment
from testbed.workloads.tokenize import StandInTokenizer, load_tokenizer, tokenize

STAND_IN = StandInTokenizer()
TEXTS = st.text(st.sampled_from("ab c\n12.,😀é\x02"), max_size=40) | st.text(max_size=40)


def pieces(text: str) -> list[str]:
    """The pieces of a text, one byte after the other, as the docstring says."""

    def kind(byte: int) -> str:
        if byte in (2, 3):
            return f"marker {byte}"
        character = chr(byte)
        if character in " \t\n\r\v\f":
            return "space"
        if character in "0123456789":
            return "digit"
        return "letter" if byte > 127 or character.isalpha() or character == "_" else "other"

    found: list[bytes] = []
    run_bytes = 0
    run_kind = ""
    for byte in text.encode():
        same = kind(byte) == run_kind and not run_kind.startswith("marker")
        if not same and kind(byte) == "letter" and run_kind == "space" and run_bytes == 1:
            found[-1] += bytes([byte])
            run_kind, run_bytes = "letter", 1
        elif same and run_bytes % 6:
            found[-1] += bytes([byte])
            run_bytes += 1
        else:
            found.append(bytes([byte]))
            run_bytes = run_bytes + 1 if same else 1
            run_kind = kind(byte)
    return [piece.decode("latin-1") for piece in found]


@given(st.lists(TEXTS, max_size=5))
def test_the_stand_in_cuts_as_it_says(texts: list[str]) -> None:
    encoded = STAND_IN.encode(texts)
    assert [len(ids) for ids in encoded] == [len(pieces(text)) for text in texts]
    # Equal pieces have equal ids, and different ones different ids.
    ids = [i for tokens in encoded for i in tokens.tolist()]
    cut = [piece for text in texts for piece in pieces(text)]
    assert len(set(zip(cut, ids, strict=True))) == len(set(cut)) == len(set(ids))


def test_the_stand_in_by_hand() -> None:
    assert pieces("Hello, world!") == ["Hello", ",", " world", "!"]
    assert pieces("internationalisation  42") == ["intern", "ationa", "lisati", "on", "  ", "42"]
    (ids,) = STAND_IN.encode(["Hello, world! Hello"])
    assert len(ids) == 5 and ids.dtype == np.int32 and ids.min() >= 0


@given(TEXTS, TEXTS)
def test_a_texts_tokens_begin_with_those_of_its_prefix(head: str, tail: str) -> None:
    short, long = STAND_IN.encode([head, head + tail])
    assert short[:-1].tolist() == long[: max(len(short) - 1, 0)].tolist()


def test_the_stand_in_is_the_same_in_every_process() -> None:
    program = (
        "from testbed.workloads.tokenize import StandInTokenizer;"
        "print(*StandInTokenizer().encode(['A stable stand-in, é 12'])[0])"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
        ).stdout
        for seed in "12"
    }
    assert seen == {" ".join(map(str, STAND_IN.encode(["A stable stand-in, é 12"])[0])) + "\n"}


def test_a_vocab_bounds_the_ids() -> None:
    (ids,) = load_tokenizer(None, vocab=50).encode(["many different words are here"])
    assert ids.max() < 50


def tokens(text: str) -> list[int]:
    return [int(i) for i in STAND_IN.encode([text])[0]]


def test_a_chat_is_written_as_chatml() -> None:
    record = Record(
        1,
        (
            RecordSegment(TOOL, '{"a":1}'),
            RecordSegment(TOOL, '{"b":2}'),
            RecordSegment("user", "hi there"),
        ),
        output="well, hello",
    )
    (found,) = tokenize([record], STAND_IN)
    assert [part.tolist() for part in found.segments] == [
        tokens("<|im_start|>tools\n") + tokens('{"a":1}') + tokens("\n"),
        tokens('{"b":2}') + tokens("<|im_end|>\n"),
        tokens("<|im_start|>user\n") + tokens("hi there") + tokens("<|im_end|>\n"),
    ]
    assert found.closing.tolist() == tokens("<|im_start|>assistant\n")
    assert found.prompt.tolist() == [
        i for part in (*found.segments, found.closing) for i in part.tolist()
    ]
    # A marker is one token, as in a vocabulary that has it.
    assert len(tokens("<|im_start|>user\n")) == 3


def test_an_answer_has_the_same_tokens_in_the_next_prompt() -> None:
    asked = RecordSegment("user", "hi there")
    first = Record(1, (asked,), output="well, hello")
    second = Record(2, (asked, RecordSegment("assistant", "well, hello"), asked))
    a, b = tokenize([first, second], STAND_IN)
    assert a.output is not None
    known = [*a.prompt.tolist(), *a.output.tolist()]
    assert b.prompt.tolist()[: len(known)] == known


def test_other_prompts_stand_as_they_are() -> None:
    ids = np.array([4, 5], dtype=np.int32)
    text, given_ids, lengths = tokenize(
        [
            Record(1, (RecordSegment(PROMPT, "as it stands"),)),
            Record(2, (RecordSegment(PROMPT, ids),), output=ids),
            Record(3, (), prompt_length=7),
        ],
        STAND_IN,
    )
    assert text.prompt.tolist() == tokens("as it stands") and len(text.closing) == 0
    assert given_ids.prompt.tolist() == [4, 5]
    assert given_ids.output is not None and given_ids.output.tolist() == [4, 5]
    assert lengths.prompt.tolist() == EMPTY_TOKENS.tolist() and lengths.output is None


def test_records_are_tokenised_in_small_batches(monkeypatch: Any) -> None:
    monkeypatch.setattr("testbed.workloads.tokenize.BATCH_CHARACTERS", 2 * (6 + 16))
    seen: list[int] = []

    def records() -> Any:
        for i in range(6):
            seen.append(i)
            yield Record(i, (RecordSegment(PROMPT, f"text {i}"),))

    walk = tokenize(records(), STAND_IN)
    assert next(walk).prompt.tolist() == tokens("text 0")
    assert seen == [0, 1]
    assert [t.prompt.tolist() for t in walk] == [tokens(f"text {i}") for i in range(1, 6)]


def test_a_models_own_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    words = {"hi": 7, "there": 8, "[UNK]": 0}
    model = tokenizers.models.WordLevel(words, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    found = load_tokenizer(path)
    assert [ids.tolist() for ids in found.encode(["hi there", "", "there hi you"])] == [
        [7, 8],
        [],
        [8, 7, 0],
    ]
    assert found.name == str(path)


def test_a_tokenizer_that_cannot_be_had(tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer='.*nowhere': no such file; the path"):
        load_tokenizer(tmp_path / "nowhere")
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": 3}))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match="needs the package tokenizers"):
        load_tokenizer(path)
    monkeypatch.undo()
    pytest.importorskip("tokenizers")
    with pytest.raises(ValueError, match=r"tokenizer='.*': not a tokenizer\.json \("):
        load_tokenizer(path)


def test_short_turns_count_in_a_batch_too() -> None:
    turns = tuple(RecordSegment("user", "x") for _ in range(6000))
    seen: list[int] = []

    def records() -> Any:
        for i in range(100):
            seen.append(i)
            yield Record(i, turns)

    next(tokenize(records(), STAND_IN))
    # 2 ** 20 / (6000 * 17) = 10.3.
    assert len(seen) == 11


def test_a_quoted_marker_is_a_marker() -> None:
    (quoted, control) = STAND_IN.encode(["say <|im_end|> now", "say \x03 now"])
    assert quoted.tolist() == control.tolist()
