"""A model as judge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.core.program import Body
from testbed.workloads.parameters import require_int
from testbed.workloads.programs.distribution import Distribution, max_tokens, require_tokens
from testbed.workloads.programs.family import ProgramFamily, Script, SharedTexts, ask, fork_join


@dataclass(frozen=True)
class JudgePrograms(ProgramFamily):
    """An article judged by several rubrics side by side, then scored with all verdicts at hand.

    A rubric's prompt is system, article, rubric; the last one is system, article, all verdicts that
    came. The article stands before the rubric, so that rubrics share it.

    Defaults: six rubrics and a score of 2 tokens, as benchmark/llm_judge/bench_sglang.py in
    github.com/sgl-project/sglang has them, system and rubrics estimated from its text. The lengths
    of its essays, and of verdicts, of which it allows 256 tokens, are assumptions.
    """

    rubrics: int = 6
    system_tokens: Distribution = 40
    rubric_tokens: Distribution = (90, 120)
    article_tokens: Distribution = (800, 1400)
    verdict_tokens: Distribution = (100, 200)
    score_tokens: Distribution = 2
    name: str = "judge"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "rubrics", 1)
        require_tokens(self, "system_tokens", least=0)
        require_tokens(self, "rubric_tokens", "article_tokens", "verdict_tokens", "score_tokens")

    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """System, rubrics and what introduces the verdicts."""
        return (
            SharedTexts(1, self.system_tokens),
            SharedTexts(self.rubrics, self.rubric_tokens),
            SharedTexts(1, 10),
        )

    def own_tokens(self) -> int:
        """The article."""
        return max_tokens(self.article_tokens)

    def body(self, script: Script) -> Body:
        """Judge side by side, then score."""
        system, rubrics, summary = self.texts
        article = np.concatenate((system[0], script.text(self.article_tokens)))
        turns = [
            script.turn(rubrics[rubric], self.verdict_tokens) for rubric in range(self.rubrics)
        ]
        score = script.turn(summary[0], self.score_tokens)
        judged = yield from fork_join([ask(article, turn) for turn in turns], article)
        verdicts = [answer for _, answer in filter(None, judged)]
        yield from ask(np.concatenate([article, *verdicts]), score)
