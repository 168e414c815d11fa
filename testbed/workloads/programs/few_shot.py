"""Few-shot classification: examples that all questions share, once or on two levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from testbed.core.program import Body
from testbed.core.request import Tokens
from testbed.workloads.parameters import require_int, require_one_of
from testbed.workloads.programs.distribution import Distribution, max_tokens, require_tokens
from testbed.workloads.programs.family import ProgramFamily, Script, SharedTexts, ask, fork_join


@dataclass(frozen=True)
class FewShotPrograms(ProgramFamily):
    """One question after its subject's examples, answered in a word (MMLU).

    order: `grouped` asks all questions of one subject before the next, as the data set lists them;
    `shuffled` draws each question's subject.

    Defaults: MMLU's 14,042 questions, 57 subjects and five examples. Lengths are from
    lm_eval/tasks/mmlu/flan_cot_fewshot/_cot_prompts.json in
    github.com/EleutherAI/lm-evaluation-harness, whose examples reason before they answer, in tokens
    of SmolLM2's tokenizer: a subject's examples together are 809, quartiles 630 and 1,118, and
    their questions 78 each, 55 and 110. A subject's examples are alike there but drawn apart here,
    so shot_tokens varies more than one example does: so much that five together come close to that.
    """

    num_programs: int = 14042
    subjects: int = 57
    shots: int = 5
    shot_tokens: Distribution = (67, 121, 221)
    question_tokens: Distribution = (55, 78, 110)
    answer_tokens: Distribution = 1
    order: Literal["grouped", "shuffled"] = "grouped"
    name: str = "few_shot"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "subjects", 1)
        require_int(self, "shots", 1)
        require_tokens(self, "shot_tokens", "question_tokens", "answer_tokens")
        require_one_of(self, "order", ("grouped", "shuffled"))

    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """The examples, subject by subject."""
        return (SharedTexts(self.subjects * self.shots, self.shot_tokens),)

    def own_tokens(self) -> int:
        """The question."""
        return max_tokens(self.question_tokens)

    def body(self, script: Script) -> Body:
        """Ask once."""
        subject = script.program * self.subjects // self.num_programs
        if self.order == "shuffled":
            subject = int(script.random.integers(self.subjects))
        (shots,) = self.texts
        examples = [shots[subject * self.shots + shot] for shot in range(self.shots)]
        turn = script.turn(script.text(self.question_tokens), self.answer_tokens)
        yield from ask(np.concatenate(examples), turn)


@dataclass(frozen=True)
class ChoicePrograms(ProgramFamily):
    """The likeliest ending of a story: all share the examples, endings their story (HellaSwag).

    Each ending is a request of its own, as SGLang's `select` sends them; its answer, one token,
    stands for the ending's likelihood.

    Defaults: the 20 examples and four endings of benchmark/hellaswag/bench_sglang.py in
    github.com/sgl-project/sglang, which reads data/hellaswag_val.jsonl of
    github.com/rowanz/hellaswag. Lengths are assumptions.
    """

    shots: int = 20
    shot_tokens: Distribution = (60, 110)
    story_tokens: Distribution = (40, 80)
    endings: int = 4
    ending_tokens: Distribution = (15, 40)
    name: str = "choice"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "shots", 1)
        require_int(self, "endings", 1)
        require_tokens(self, "shot_tokens", "story_tokens", "ending_tokens")

    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """The examples."""
        return (SharedTexts(self.shots, self.shot_tokens),)

    def own_tokens(self) -> int:
        """The story and its endings."""
        return max_tokens(self.story_tokens) + self.endings * max_tokens(self.ending_tokens)

    def body(self, script: Script) -> Body:
        """Try all endings side by side."""
        (shots,) = self.texts
        examples = [shots[shot] for shot in range(self.shots)]
        context: Tokens = np.concatenate([*examples, script.text(self.story_tokens)])
        endings = [script.turn(script.text(self.ending_tokens), 1) for _ in range(self.endings)]
        yield from fork_join([ask(context, ending) for ending in endings], context)
