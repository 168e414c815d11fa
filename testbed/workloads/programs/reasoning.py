"""Reasoning in branches: tree of thought, skeleton of thought, self-consistency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from testbed.core.program import Body, Branch, Fork, Join
from testbed.core.request import Tokens
from testbed.workloads.parameters import require_int
from testbed.workloads.programs.distribution import Distribution, max_tokens, require_tokens
from testbed.workloads.programs.family import (
    ProgramFamily,
    Script,
    SharedTexts,
    Turn,
    ask,
    fork_join,
)


class _Thought(NamedTuple):
    """A turn and the thoughts that branch off from its answer."""

    turn: Turn
    then: list[_Thought]


@dataclass(frozen=True)
class TreeOfThoughtPrograms(ProgramFamily):
    """A question, `branches` thoughts about it, as many about each of these, and so on.

    A level adds its instruction, common to all programs, to the whole path from the question on,
    and asks `branches` times. instruction_tokens: one a level, so that there are
    branches + branches**2 + ... requests, besides the hints.

    Defaults: plan, execute, reflect, conclude, two branches each, as
    benchmark/tree_of_thought_deep/bench_sglang.py in github.com/sgl-project/sglang; instructions
    estimated from its text. Questions of GSM8K (grade_school_math/data/test.jsonl in
    github.com/openai/grade-school-math): quartiles 45, 58, 74 in SmolLM2's tokens. Answers are
    assumed to be of 60-180 tokens; the benchmark allows 256.
    """

    branches: int = 2
    instruction_tokens: Sequence[int] = (75, 45, 40, 30)
    question_tokens: Distribution = (45, 58, 74)
    thought_tokens: Distribution = (60, 180)
    name: str = "tree_of_thought"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "branches", 1)
        levels = self.instruction_tokens
        if not levels or not all(isinstance(level, int) and level >= 1 for level in levels):
            raise ValueError(
                f"{type(self).__name__}.instruction_tokens={levels!r}: at least one whole number "
                "of at least 1 is needed, one a level"
            )
        require_tokens(self, "question_tokens", "thought_tokens")

    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """The instruction of each level."""
        return tuple(SharedTexts(1, level) for level in self.instruction_tokens)

    def own_tokens(self) -> int:
        """The question."""
        return max_tokens(self.question_tokens)

    def body(self, script: Script) -> Body:
        """Grow the tree."""
        question = script.text(self.question_tokens)
        first = self.texts[0][0]
        thoughts = self._thoughts(script, 0)
        yield from _grow(np.concatenate((first, question)), thoughts)

    def _thoughts(self, script: Script, level: int) -> list[_Thought]:
        """The tree below one node, drawn before any of it runs."""
        if level == len(self.instruction_tokens):
            return []
        # The first instruction stands before the question, so it is part of the context there.
        text = self.texts[level][0] if level else self.texts[0][0][:0]
        return [
            _Thought(script.turn(text, self.thought_tokens), self._thoughts(script, level + 1))
            for _ in range(self.branches)
        ]


def _grow(context: Tokens, thoughts: list[_Thought]) -> Body:
    """Think all thoughts of one node side by side, each with what follows from it."""
    if thoughts:
        asked = np.concatenate((context, thoughts[0].turn.text))
        yield from fork_join([_think(context, thought) for thought in thoughts], asked)


def _think(context: Tokens, thought: _Thought) -> Body:
    context, _ = yield from ask(context, thought.turn)
    yield from _grow(context, thought.then)


@dataclass(frozen=True)
class SkeletonOfThoughtPrograms(ProgramFamily):
    """Short points, one after the other; each is expanded by a request of its own meanwhile.

    A point's prompt is the outline so far. An expansion's is a template with examples, the topic
    and the point, as it was generated.

    Defaults: five tips for a topic, expanded into at most 128 tokens, as
    benchmark/tip_suggestion/bench_sglang.py in github.com/sgl-project/sglang; templates estimated
    from its text, the other lengths assumed within its limits.
    """

    points: int = 5
    outline_tokens: Distribution = 60
    expansion_tokens: Distribution = 310
    topic_tokens: Distribution = (3, 10)
    point_tokens: Distribution = (6, 16)
    paragraph_tokens: Distribution = (64, 128)
    name: str = "skeleton_of_thought"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "points", 1)
        require_tokens(
            self,
            "outline_tokens",
            "expansion_tokens",
            "topic_tokens",
            "point_tokens",
            "paragraph_tokens",
        )

    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """The two templates and what numbers the points."""
        return (
            SharedTexts(1, self.outline_tokens),
            SharedTexts(1, self.expansion_tokens),
            SharedTexts(self.points, 2),
        )

    def own_tokens(self) -> int:
        """The topic."""
        return max_tokens(self.topic_tokens)

    def body(self, script: Script) -> Body:
        """Sketch the points, expanding each as soon as it is there."""
        outline, expansion, numbers = self.texts
        topic = script.text(self.topic_tokens)
        context = np.concatenate((outline[0], topic))
        expansions: list[Branch] = []
        for point in range(self.points):
            sketch = script.turn(numbers[point], self.point_tokens)
            paragraph = script.turn(numbers[point][:0], self.paragraph_tokens)
            context, tip = yield from ask(context, sketch)
            prompt = np.concatenate((expansion[0], topic, tip))
            expansions += yield Fork([ask(prompt, paragraph)])
        yield Join(expansions)


@dataclass(frozen=True)
class SelfConsistencyPrograms(ProgramFamily):
    """One question answered `samples` times; the answers are voted on outside.

    Defaults: the eight examples of lm_eval/tasks/gsm8k/gsm8k-cot.yaml in
    github.com/EleutherAI/lm-evaluation-harness, 727 of SmolLM2's tokens; GSM8K's questions of 58,
    quartiles 45 and 74, and solutions of 117, quartiles 86 and 157
    (grade_school_math/data/test.jsonl in github.com/openai/grade-school-math); eight samples, an
    assumption.
    """

    samples: int = 8
    example_tokens: Distribution = 727
    question_tokens: Distribution = (45, 58, 74)
    answer_tokens: Distribution = (86, 117, 157)
    name: str = "self_consistency"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "samples", 1)
        require_tokens(self, "example_tokens", least=0)
        require_tokens(self, "question_tokens", "answer_tokens")

    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """The examples."""
        return (SharedTexts(1, self.example_tokens),)

    def own_tokens(self) -> int:
        """The question."""
        return max_tokens(self.question_tokens)

    def body(self, script: Script) -> Body:
        """Sample side by side."""
        (examples,) = self.texts
        prompt = np.concatenate((examples[0], script.text(self.question_tokens)))
        nothing = prompt[:0]
        samples = [script.turn(nothing, self.answer_tokens) for _ in range(self.samples)]
        yield from fork_join([ask(prompt, sample) for sample in samples], prompt)
