"""Where the data files lie that are read but never shipped."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "TESTBED_DATA"


def data_folder() -> Path | None:
    """The folder named by TESTBED_DATA, else data/ or ../shared/data, else None.

    The last two are looked for beside the working directory, then beside the checkout. A
    TESTBED_DATA that names no folder raises ValueError rather than falling back to another one.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_dir():
            raise ValueError(f"{VARIABLE}={named!r}: the path of an existing folder is needed")
        return Path(named)
    return next((folder for folder in _default_folders() if folder.is_dir()), None)


def find_data_file(path: str | Path) -> Path:
    """The file at `path`, or at `path` inside the data folder; FileNotFoundError if neither is."""
    given = Path(path)
    if given.is_file():
        return given
    if given.exists():
        what = "a folder" if given.is_dir() else "no regular file, and is read more than once"
        raise FileNotFoundError(f"{given}: it is {what}; the name of a file is needed")
    looked_at = [given]
    if not given.is_absolute():
        folder = data_folder()
        looked_at += [inside / given for inside in ([folder] if folder else _default_folders())]
        if looked_at[-1].is_file():
            return looked_at[-1]
    raise FileNotFoundError(
        f"{given}: no such file; looked at {', '.join(str(place) for place in looked_at)}. "
        f"Set {VARIABLE} to the folder that holds the data"
    )


def _default_folders() -> list[Path]:
    checkout = Path(__file__).resolve().parents[2]
    bases = [Path.cwd()]
    if (checkout / "pyproject.toml").is_file() and checkout != bases[0]:
        bases.append(checkout)
    return [folder for base in bases for folder in (base / "data", base.parent / "shared" / "data")]
