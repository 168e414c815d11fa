"""Parts whose process ends in ways of its own; a module, as another process imports it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import sleep
from typing import Any


def run_all(names: list[str], folder: Path, begun: Any) -> None:
    """Leave a file for each part that begins."""
    for name in names:
        begun.value += 1
        (folder / name).touch()
        if name == "crash":
            os.abort()
        while name == "hang":
            sleep(1)
    sys.exit(1 if "wrong" in names else 0)
