"""A driver that stays up: JSON requests come in line by line, answers go out likewise.

Import this first: whatever the driver's imports print from then on goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

_answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
os.dup2(2, 1)


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Say that the driver is ready, then answer until no more requests come."""
    print(json.dumps({}), file=_answers)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=_answers)
