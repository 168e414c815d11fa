"""`testbed advise`, from the file to the pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.cli import main
from tests.advisor import planted


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def dirty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = planted.rag(planted.invented(), planted.timestamp_first)
    return write(tmp_path_factory.mktemp("logs") / "dirty.jsonl", lines)


def test_the_page_and_its_json_and_markdown_say_the_same(
    dirty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, markdown = tmp_path / "advice.json", tmp_path / "advice.md"
    assert main(["advise", str(dirty), "--json", str(out), "--markdown", str(markdown)]) == 0
    page = capsys.readouterr().out
    assert "L1 Timestamp or id early in the prompt" in page
    assert "Recommended" in page
    assert all(len(line) <= 100 for line in page.splitlines())
    advice = json.loads(out.read_text(encoding="utf-8"))
    assert advice["choice"] == "cache_aware"
    assert [finding["rule"] for finding in advice["findings"]] == ["L1"]
    flat = " ".join(page.split())
    statements = [one for section in advice["sections"] for one in section["statements"]]
    for one in statements:
        assert " ".join(one["text"].split()) in flat
    rates = next(one["numbers"] for one in statements if "mended_half" in one["numbers"])
    assert rates["now"] < rates["mended"]
    for section in advice["sections"]:
        assert f"## {section['title']}" in markdown.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["advice.json", "advice.md"]


def test_nothing_is_recommended_below_the_fewest_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write(tmp_path / "few.jsonl", planted.rag(planted.invented(), count=199))
    assert main(["advise", str(log)]) == 0
    page = capsys.readouterr().out
    assert "No recommendation: 199 requests are too few, 200 are needed" in " ".join(page.split())
    assert "Rollout" not in page
    assert main(["advise", str(log), "--min-requests", "199"]) == 0
    assert "Recommended" in capsys.readouterr().out


def test_nothing_is_recommended_without_measured_sharing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"2023-11-16 18:17:{i % 60:02d}.0000000,{i + 1},5\n" for i in range(300))
    log = tmp_path / "azure.csv"
    log.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows, encoding="utf-8")
    assert main(["advise", str(log)]) == 0
    assert "the file has lengths alone" in capsys.readouterr().out


def test_prompts_without_anything_in_common_get_plain_prefix_caching(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = planted.WORDS
    lines = [{"prompt": f"{words[i % 70]} {i * 7919} {words[i * 3 % 70]} " * 9} for i in range(250)]
    assert main(["advise", str(write(tmp_path / "unique.jsonl", lines))]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "The traffic is prefix-light" in page
    assert "Recommended: plain prefix caching" in page
    # There is no beginning in common that could be made longer.
    assert "None found by the rules." in page
    assert "go on if latency and throughput are no worse" in page


def test_token_ids_are_advised_on_without_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"prompt_token_ids": [*range(64), 1000 + i, 2000 + i]} for i in range(220)]
    assert main(["advise", str(write(tmp_path / "ids.jsonl", lines))]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "Recommended: cache-aware serving" in page
    # 220 prompts of 66 ids.
    assert "14,520 token ids (no text) of prompts" in page
    assert "Not looked for: the log has no text." in page
    assert "Tokens are those of the file." in page


def test_a_sample_that_misses_what_the_log_repeats_recommends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 50 documents in turn: what repeats lies further apart than the 10 requests of a run.
    words = planted.WORDS
    documents = [" ".join(words[(i * j + j) % 90] for j in range(1, 80)) for i in range(2, 52)]
    lines = [{"prompt": f"{i % 50} {documents[i % 50]} {i}?"} for i in range(600)]
    log = write(tmp_path / "far.jsonl", lines)
    assert main(["advise", str(log), "--run-requests", "10"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "further apart than a run" in page and "Recommended" not in page
    assert "lever" not in page and "go on at" not in page
    assert main(["advise", str(log)]) == 0
    assert "Recommended: cache-aware serving" in " ".join(capsys.readouterr().out.split())


def test_bad_lines_stop_it_or_are_counted(
    dirty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "cut.jsonl"
    log.write_bytes(dirty.read_bytes() + b'{"messages": [{"role": "us')
    assert main(["advise", str(log), "--json", str(tmp_path / "out.json")]) == 2
    captured = capsys.readouterr()
    assert "line 241" in captured.err and "cut off" in captured.err
    assert captured.out == ""
    assert not (tmp_path / "out.json").exists()
    assert main(["advise", str(log), "--skip-bad-lines"]) == 0
    assert "1 bad line was skipped." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cache-tokens", "0"], "cache_tokens=0: at least 1 is needed"),
        (["--concurrency", "0"], "concurrency=0: at least 1 is needed"),
        (["--go", "0.2"], "no_go=0.3, go=0.2: 0 <= no_go <= go <= 1 is needed"),
        (["--run-requests", "0"], "run_requests=0: at least 1 is needed"),
        (["--min-prefix", "-1"], "min_prefix=-1: at least 0 is needed"),
        (["--hardware", "abacus"], "accelerator='abacus': one of"),
        (["--cache-tokens", "100"], "cache_tokens=100: none of the 240 requests fits"),
    ],
)
def test_a_mistake_is_one_line(
    dirty: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", str(dirty), *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""


def test_advice_is_the_same_every_time(dirty: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("one.json", "two.json"):
        assert main(["advise", str(dirty), "--json", str(tmp_path / name)]) == 0
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


def test_outputs_that_would_destroy_something_are_refused_before_reading(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Reading would fail on this line; the complaint must be about the output.
    log = tmp_path / "log.jsonl"
    log.write_text("not json\n", encoding="utf-8")
    link = tmp_path / "link.json"
    link.symlink_to(log)
    (tmp_path / "folder").mkdir()
    out = str(tmp_path / "out")
    for arguments, message in (
        (["--json", str(log)], "it is the input"),
        (["--markdown", str(link)], "it is the input"),
        (["--json", out, "--markdown", f"{tmp_path}/folder/../out"], "they are one file"),
        (["--json", str(tmp_path / "folder")], "it is a folder"),
        (["--json", str(log / "a.json")], "is a file, not a folder"),
    ):
        assert main(["advise", str(log), *arguments]) == 2
        captured = capsys.readouterr()
        assert message in captured.err and captured.err.count("\n") == 1
    assert log.read_text(encoding="utf-8") == "not json\n"
    assert not Path(out).exists()


def test_an_output_may_go_into_a_new_folder_and_through_a_link(
    dirty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, target, link = tmp_path / "a/b.json", tmp_path / "target.md", tmp_path / "link.md"
    target.write_text("old", encoding="utf-8")
    link.symlink_to(target)
    assert main(["advise", str(dirty), "--json", str(new), "--markdown", str(link)]) == 0
    assert json.loads(new.read_text(encoding="utf-8"))["choice"] == "cache_aware"
    assert link.is_symlink() and target.read_text(encoding="utf-8").startswith("# Advice")


def test_names_of_clients_cannot_drive_the_terminal_or_break_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = planted.rag(planted.invented(), count=210)
    for line in lines:
        line["user"] = "\x1b[31mred\n# [big](http://x)"
    markdown = tmp_path / "advice.md"
    log = write(tmp_path / "log.jsonl", lines)
    assert main(["advise", str(log), "--markdown", str(markdown)]) == 0
    page = capsys.readouterr().out
    assert "\x1b" not in page and "\\x1b[31mred # [big](http://x)" in page
    text = markdown.read_text(encoding="utf-8")
    assert "\x1b" not in text and r"\[big\](http://x)" in text
    assert "\n# " not in text[2:]
    assert "of 1 client were read" in page


def test_a_timestamp_that_makes_all_prompts_single_shots_does_not_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = planted.raw(planted.invented(), planted.timestamp_first)
    out = tmp_path / "advice.json"
    log = write(tmp_path / "log.jsonl", lines)
    assert main(["advise", str(log), "--json", str(out)]) == 0
    page = " ".join(capsys.readouterr().out.split())
    # Nothing is shared behind a new first line, and most of the prompt once it has moved.
    assert "Recommended as it is: plain prefix caching" in page
    assert "Recommended after the mends: cache-aware serving" in page
    assert json.loads(out.read_text(encoding="utf-8"))["choice"] == "cache_aware"
