"""Few-shot classification: examples that all questions share, once or on two levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from testbed.core.program import Body, Fork, Join
from testbed.core.request import Tokens
from testbed.workloads.parameters import require_int, require_one_of
from testbed.workloads.programs.family import ProgramFamily, Script, Shelf, ask
from testbed.workloads.programs.spread import Spread, most, require_tokens


@dataclass(frozen=True)
class FewShotPrograms(ProgramFamily):
    """One question after its subject's examples, answered in a word (MMLU).

    order: `grouped` asks all questions of one subject before the next, as the data set lists them;
    `shuffled` draws each question's subject.

    Defaults: MMLU's 14,042 questions, 57 subjects and five examples. Examples and questions are as
    long as BIG-Bench Hard's questions: 85 tokens, quartiles 40 and 159.
    """

    num_programs: int = 14042
    subjects: int = 57
    shots: int = 5
    shot_tokens: Spread = (40, 85, 159)
    question_tokens: Spread = (40, 85, 159)
    answer_tokens: Spread = 1
    order: Literal["grouped", "shuffled"] = "grouped"
    name: str = "few_shot"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "subjects", 1)
        require_int(self, "shots", 1)
        require_tokens(self, "shot_tokens", "question_tokens", "answer_tokens")
        require_one_of(self, "order", ("grouped", "shuffled"))

    def shelves(self) -> tuple[Shelf, ...]:
        """The examples, subject by subject."""
        return (Shelf(self.subjects * self.shots, self.shot_tokens),)

    def own_tokens(self) -> int:
        """The question."""
        return most(self.question_tokens)

    def body(self, script: Script) -> Body:
        """Ask once."""
        subject = script.program * self.subjects // self.num_programs
        if self.order == "shuffled":
            subject = int(script.random.integers(self.subjects))
        (shots,) = self.library
        examples = [shots[subject * self.shots + shot] for shot in range(self.shots)]
        turn = script.turn(script.text(self.question_tokens), self.answer_tokens)
        yield from ask(np.concatenate(examples), turn)


@dataclass(frozen=True)
class ChoicePrograms(ProgramFamily):
    """The likeliest ending of a story: all share the examples, endings their story (HellaSwag).

    Each ending is a request of its own, as SGLang's `select` sends them; its answer, one token,
    stands for the ending's likelihood.

    Defaults: the paper's 20 examples and HellaSwag's four endings; lengths are assumptions.
    """

    shots: int = 20
    shot_tokens: Spread = (60, 110)
    story_tokens: Spread = (40, 80)
    endings: int = 4
    ending_tokens: Spread = (15, 40)
    name: str = "choice"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "shots", 1)
        require_int(self, "endings", 1)
        require_tokens(self, "shot_tokens", "story_tokens", "ending_tokens")

    def shelves(self) -> tuple[Shelf, ...]:
        """The examples."""
        return (Shelf(self.shots, self.shot_tokens),)

    def own_tokens(self) -> int:
        """The story and its endings."""
        return most(self.story_tokens) + self.endings * most(self.ending_tokens)

    def body(self, script: Script) -> Body:
        """Try all endings side by side."""
        (shots,) = self.library
        examples = [shots[shot] for shot in range(self.shots)]
        context: Tokens = np.concatenate([*examples, script.text(self.story_tokens)])
        endings = [script.turn(script.text(self.ending_tokens), 1) for _ in range(self.endings)]
        branches = yield Fork([ask(context, ending) for ending in endings], context)
        yield Join(branches)
