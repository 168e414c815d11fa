"""Retrieval-augmented generation, one retrieval or several."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.core.program import Body, Sleep
from testbed.workloads.parameters import require_between, require_int
from testbed.workloads.programs.distribution import (
    Distribution,
    max_tokens,
    require_seconds,
    require_tokens,
)
from testbed.workloads.programs.family import ProgramFamily, Script, SharedTexts, ask


@dataclass(frozen=True)
class RagPrograms(ProgramFamily):
    """An instruction with worked examples, retrieved passages, a question.

    passages: the size of the corpus; the k-th most popular is retrieved in proportion to
    k ** -zipf_exponent, retrieved_passages at a time, put in order of popularity. hops: how often
    is retrieved; each time the prompt goes on with what was answered and with new passages.
    retrieval_seconds: what that takes.

    Defaults are assumptions in the shape of DSPy's introductory program, which SGLang's paper runs
    (benchmark/dspy/bench_dspy_intro.py in github.com/sgl-project/sglang): four worked examples with
    their passages, three passages of an encyclopedia, one hop.
    """

    instruction_tokens: Distribution = 2000
    passages: int = 300
    passage_tokens: Distribution = (80, 160)
    retrieved_passages: int = 3
    zipf_exponent: float = 1.0
    question_tokens: Distribution = (20, 60)
    answer_tokens: Distribution = (30, 100)
    hops: int = 1
    retrieval_seconds: Distribution = 0.05
    name: str = "rag_programs"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "passages", 1)
        require_int(self, "hops", 1)
        require_int(self, "retrieved_passages", 1, self.passages)
        require_between(self, "zipf_exponent", 0, 10)
        require_tokens(self, "instruction_tokens", least=0)
        require_tokens(self, "passage_tokens", "question_tokens", "answer_tokens")
        require_seconds(self, "retrieval_seconds")

    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """The instruction and the corpus."""
        return SharedTexts(1, self.instruction_tokens), SharedTexts(
            self.passages, self.passage_tokens
        )

    def own_tokens(self) -> int:
        """The question of each hop."""
        return self.hops * max_tokens(self.question_tokens)

    def body(self, script: Script) -> Body:
        """Retrieve and ask, hop by hop."""
        instruction, passages = self.texts
        context = instruction[0]
        for _ in range(self.hops):
            yield Sleep(script.seconds(self.retrieval_seconds))
            drawn = script.popular(self.passages, self.zipf_exponent, self.retrieved_passages)
            retrieved = [passages[passage] for passage in sorted(drawn)]
            turn = script.turn(script.text(self.question_tokens), self.answer_tokens)
            context, _ = yield from ask(np.concatenate([context, *retrieved]), turn)
