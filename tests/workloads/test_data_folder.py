from __future__ import annotations

from pathlib import Path

import pytest

from testbed.workloads import data_folder, find_data_file


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory two folders deep, with no TESTBED_DATA set."""
    folder = tmp_path / "repo"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TESTBED_DATA", raising=False)
    return folder


def test_the_variable_comes_before_data_before_shared_data(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = home.parent / "shared" / "data"
    shared.mkdir(parents=True)
    assert data_folder() == shared
    (home / "data").mkdir()
    assert data_folder() == home / "data"
    monkeypatch.setenv("TESTBED_DATA", str(shared))
    assert data_folder() == shared


def test_a_variable_that_names_no_folder_is_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "data").mkdir()
    monkeypatch.setenv("TESTBED_DATA", str(home / "nowhere"))
    with pytest.raises(ValueError, match=r"TESTBED_DATA='.*nowhere'.*existing folder is needed"):
        data_folder()


def test_an_existing_path_wins_over_the_data_folder(home: Path) -> None:
    (home / "data").mkdir()
    for name in ("t.jsonl", "data/t.jsonl", "data/u.jsonl"):
        (home / name).write_text("")
    assert find_data_file("t.jsonl") == Path("t.jsonl")
    assert find_data_file("u.jsonl") == home / "data" / "u.jsonl"
    assert find_data_file(home / "t.jsonl") == home / "t.jsonl"


def test_a_missing_file_says_where_it_was_looked_for_and_what_to_set(home: Path) -> None:
    (home / "data").mkdir()
    with pytest.raises(FileNotFoundError) as error:
        find_data_file("mooncake/absent.jsonl")
    message = str(error.value)
    assert message.startswith("mooncake/absent.jsonl: no such file")
    assert str(home / "data" / "mooncake" / "absent.jsonl") in message
    assert "Set TESTBED_DATA" in message


def test_an_absolute_path_is_looked_for_in_one_place(home: Path) -> None:
    (home / "data").mkdir()
    absent = home / "absent.jsonl"
    with pytest.raises(FileNotFoundError, match="no such file") as error:
        find_data_file(absent)
    assert str(home / "data") not in str(error.value)
