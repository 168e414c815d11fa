"""A model as judge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.core.program import Body, Fork, Join
from testbed.core.request import Tokens
from testbed.workloads.parameters import require_int
from testbed.workloads.programs.family import ProgramFamily, Script, Shelf, ask
from testbed.workloads.programs.spread import Spread, most, require_tokens


@dataclass(frozen=True)
class JudgePrograms(ProgramFamily):
    """An article judged by several rubrics side by side, then scored with all verdicts at hand.

    A rubric's prompt is system, article, rubric; the last one is system, article, all verdicts that
    came. The article stands before the rubric, so that rubrics share it.

    Defaults: SGLang's benchmark llm_judge: six rubrics, verdicts of at most 256 tokens, a score of
    2; system and rubrics estimated from its text. Its essays' length is an assumption.
    """

    rubrics: int = 6
    system_tokens: int = 40
    rubric_tokens: Spread = (90, 120)
    article_tokens: Spread = (800, 1400)
    verdict_tokens: Spread = (100, 200)
    score_tokens: Spread = 2
    name: str = "judge"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "rubrics", 1)
        require_int(self, "system_tokens", 0)
        require_tokens(self, "rubric_tokens", "article_tokens", "verdict_tokens", "score_tokens")

    def shelves(self) -> tuple[Shelf, ...]:
        """System, rubrics and what introduces the verdicts."""
        return Shelf(1, self.system_tokens), Shelf(self.rubrics, self.rubric_tokens), Shelf(1, 10)

    def own_tokens(self) -> int:
        """The article."""
        return most(self.article_tokens)

    def body(self, script: Script) -> Body:
        """Judge side by side, then score."""
        system, rubrics, summary = self.library
        article = np.concatenate((system[0], script.text(self.article_tokens)))
        turns = [
            script.turn(rubrics[rubric], self.verdict_tokens) for rubric in range(self.rubrics)
        ]
        score = script.turn(summary[0], self.score_tokens)
        branches = yield Fork([ask(article, turn) for turn in turns], article)
        judged: list[Tokens | None] = yield Join(branches)
        verdicts = [
            context[len(article) + len(turn.text) :]
            for context, turn in zip(judged, turns, strict=True)
            if context is not None
        ]
        yield from ask(np.concatenate([article, *verdicts]), score)
