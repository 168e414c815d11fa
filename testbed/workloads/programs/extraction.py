"""Extraction of fields from a document as JSON."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.core.program import Body
from testbed.workloads.parameters import require_int
from testbed.workloads.programs.distribution import Distribution, max_tokens, require_tokens
from testbed.workloads.programs.family import ProgramFamily, Script, SharedTexts, ask


@dataclass(frozen=True)
class JsonPrograms(ProgramFamily):
    """A document, then a request for the value of each field; the keys between are given.

    That is how jump-forward decoding runs: what the grammar leaves no choice about is appended to
    the prompt, which is sent again.

    Defaults: a city's facts from an encyclopedia's page, in the shape of
    benchmark/json_jump_forward/bench_sglang.py in github.com/sgl-project/sglang. The instruction is
    estimated from its text; the number of fields, the page's and the values' lengths are
    assumptions.
    """

    fields: int = 8
    instruction_tokens: Distribution = 40
    document_tokens: Distribution = (400, 800)
    key_tokens: Distribution = (5, 10)
    value_tokens: Distribution = (2, 8)
    name: str = "json"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "fields", 1)
        require_tokens(self, "instruction_tokens", least=0)
        require_tokens(self, "document_tokens", "key_tokens", "value_tokens")

    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """The instruction and the keys."""
        return SharedTexts(1, self.instruction_tokens), SharedTexts(self.fields, self.key_tokens)

    def own_tokens(self) -> int:
        """The document."""
        return max_tokens(self.document_tokens)

    def body(self, script: Script) -> Body:
        """Ask field by field."""
        instruction, keys = self.texts
        context = np.concatenate((instruction[0], script.text(self.document_tokens)))
        for field in range(self.fields):
            context, _ = yield from ask(context, script.turn(keys[field], self.value_tokens))
