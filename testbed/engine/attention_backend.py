"""What the executor tells an attention backend of a step."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from testbed.core.page_pool import Pages
from testbed.engine.model import AttentionStep
from testbed.engine.shared_prefix import Indices


class StepRows(NamedTuple):
    """The rows of one step: `num_decodes` with one new token each, then prefill chunks.

    starts: int64, position of each row's first new token. counts: int64, its new tokens. tables:
    its page ids, which cover start + count tokens.
    """

    num_decodes: int
    starts: Indices
    counts: Indices
    tables: list[Pages]


class AttentionBackend(Protocol):
    """Makes the object that attends to one step's rows in every layer."""

    def plan(self, rows: StepRows) -> AttentionStep:
        """Prepare whatever all layers share."""
        ...
