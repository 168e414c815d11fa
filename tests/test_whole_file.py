"""Files appear whole, and nothing that was there is lost to a failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.whole_file import check_writable, whole_file


def write(path: Path, content: bytes) -> None:
    with whole_file(path) as stream:
        stream.write(content)


def test_a_file_appears_in_a_folder_that_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.csv"
    write(path, b"x,y\n")
    assert path.read_bytes() == b"x,y\n"
    assert os.listdir(path.parent) == ["file.csv"]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    write(path, b"old")
    with pytest.raises(RuntimeError), whole_file(path) as stream:
        stream.write(b"half of the n")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.csv"]


def test_two_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    with whole_file(path) as first:
        first.write(b"first ")
        with whole_file(path) as second:
            second.write(b"second")
        first.write(b"and last")
    assert path.read_bytes() == b"first and last"
    assert os.listdir(tmp_path) == ["file.csv"]


def test_permissions_are_those_of_any_new_file_or_of_the_old_one(tmp_path: Path) -> None:
    path, plain = tmp_path / "file", tmp_path / "plain"
    plain.touch()
    write(path, b"")
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o600)
    write(path, b"again")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_is_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(pipe, b"through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "output '': the name of a file is needed"),
        (".", "output '.': the name of a file is needed"),
        ("folder", "it is a folder; the name of a file is needed"),
        ("log/out", "is a file, not a folder"),
        ("log", "it is the input, which would be lost; another is needed"),
        ("link", "it is the input, which would be lost; another is needed"),
    ],
)
def test_what_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("log").write_text("precious")
    Path("link").symlink_to("log")
    with pytest.raises(OSError, match=message):
        check_writable(name, inputs=["log"])
    assert Path("log").read_text() == "precious"
