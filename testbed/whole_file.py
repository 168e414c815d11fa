"""whole_file: a file that appears with all its content or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """A binary stream whose content becomes the file at the end of the block.

    Until then, and after an error, what was there stays. Missing folders are made. A link is
    followed, and a device or a pipe is written to as it is. OSError names a path that cannot be
    written.
    """
    path = Path(path)
    target = check_writable(path)
    if target.exists() and not target.is_file():
        with target.open("wb") as stream:
            yield stream
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own, so that two writers at once do not write into one another's.
    descriptor, name = tempfile.mkstemp(
        prefix=f".{target.name}.", suffix=".partial", dir=target.parent
    )
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
        os.chmod(name, _mode(target))
        os.replace(name, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def check_writable(path: str | Path, inputs: Iterable[str | Path] = ()) -> Path:
    """The path with links followed; OSError if it is a folder, lies in a file, or is an input."""
    if not str(path) or not Path(path).name:
        raise OSError(f"output {str(path)!r}: the name of a file is needed")
    target = Path(path).resolve()
    if target.is_dir():
        raise IsADirectoryError(f"output {path}: it is a folder; the name of a file is needed")
    above = next(folder for folder in target.parents if folder.exists())
    if not above.is_dir():
        raise NotADirectoryError(f"output {path}: {above} is a file, not a folder")
    for source in inputs:
        if target.exists() and target.samefile(source):
            raise OSError(f"output {path}: it is the input, which would be lost; another is needed")
    return target


def _mode(target: Path) -> int:
    """Permissions: those of the file that is replaced, else what a new one would get."""
    if target.exists():
        return target.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
