"""Extraction of fields from a document as JSON."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.core.program import Body
from testbed.workloads.parameters import require_int
from testbed.workloads.programs.family import ProgramFamily, Script, Shelf, ask
from testbed.workloads.programs.spread import Spread, most, require_tokens


@dataclass(frozen=True)
class JsonPrograms(ProgramFamily):
    """A document, then a request for the value of each field; the keys between are given.

    That is how jump-forward decoding runs: what the grammar leaves no choice about is appended to
    the prompt, which is sent again.

    Defaults: SGLang's benchmark json_jump_forward: a city's facts from an encyclopedia's page,
    values of 2-8 tokens; eight fields and the page's length are assumptions.
    """

    fields: int = 8
    instruction_tokens: int = 40
    document_tokens: Spread = (400, 800)
    key_tokens: Spread = (5, 10)
    value_tokens: Spread = (2, 8)
    name: str = "json"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "fields", 1)
        require_int(self, "instruction_tokens", 0)
        require_tokens(self, "document_tokens", "key_tokens", "value_tokens")

    def shelves(self) -> tuple[Shelf, ...]:
        """The instruction and the keys."""
        return Shelf(1, self.instruction_tokens), Shelf(self.fields, self.key_tokens)

    def own_tokens(self) -> int:
        """The document."""
        return most(self.document_tokens)

    def body(self, script: Script) -> Body:
        """Ask field by field."""
        instruction, keys = self.library
        context = np.concatenate((instruction[0], script.text(self.document_tokens)))
        for field in range(self.fields):
            context = yield from ask(context, script.turn(keys[field], self.value_tokens))
