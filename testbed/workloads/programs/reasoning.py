"""Reasoning in branches: tree of thought, skeleton of thought, self-consistency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from testbed.core.program import Body, Branch, Fork, Join
from testbed.core.request import Tokens
from testbed.workloads.parameters import require_int
from testbed.workloads.programs.family import ProgramFamily, Script, Shelf, Turn, ask
from testbed.workloads.programs.spread import Spread, most, require_tokens


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

    Defaults: SGLang's benchmark tree_of_thought_deep: plan, execute, reflect, conclude, two
    branches each; instructions estimated from its text; questions of GSM8K (quartiles 45, 58, 74).
    Answers are assumed to be of 60-180 tokens; the benchmark allows 256.
    """

    branches: int = 2
    instruction_tokens: Sequence[int] = (75, 45, 40, 30)
    question_tokens: Spread = (45, 58, 74)
    thought_tokens: Spread = (60, 180)
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

    def shelves(self) -> tuple[Shelf, ...]:
        """The instruction of each level."""
        return tuple(Shelf(1, level) for level in self.instruction_tokens)

    def own_tokens(self) -> int:
        """The question."""
        return most(self.question_tokens)

    def body(self, script: Script) -> Body:
        """Grow the tree."""
        question = script.text(self.question_tokens)
        first = self.library[0][0]
        thoughts = self._thoughts(script, 0)
        yield from _grow(np.concatenate((first, question)), thoughts)

    def _thoughts(self, script: Script, level: int) -> list[_Thought]:
        """The tree below one node, drawn before any of it runs."""
        if level == len(self.instruction_tokens):
            return []
        # The first instruction stands before the question, so it is part of the context there.
        text = self.library[level][0] if level else self.library[0][0][:0]
        return [
            _Thought(script.turn(text, self.thought_tokens), self._thoughts(script, level + 1))
            for _ in range(self.branches)
        ]


def _grow(context: Tokens, thoughts: list[_Thought]) -> Body:
    """Think all thoughts of one node side by side, each with what follows from it."""
    if thoughts:
        asked = np.concatenate((context, thoughts[0].turn.text))
        yield Join((yield Fork([_think(context, thought) for thought in thoughts], asked)))


def _think(context: Tokens, thought: _Thought) -> Body:
    context = yield from ask(context, thought.turn)
    yield from _grow(context, thought.then)


@dataclass(frozen=True)
class SkeletonOfThoughtPrograms(ProgramFamily):
    """Short points, one after the other; each is expanded by a request of its own meanwhile.

    A point's prompt is the outline so far. An expansion's is a template with examples, the topic
    and the point, as it was generated.

    Defaults: SGLang's benchmark tip_suggestion: five tips for a topic, expanded into at most 128
    tokens; templates estimated from its text.
    """

    points: int = 5
    outline_tokens: int = 60
    expansion_tokens: int = 310
    topic_tokens: Spread = (3, 10)
    point_tokens: Spread = (6, 16)
    paragraph_tokens: Spread = (64, 128)
    name: str = "skeleton_of_thought"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        for name in ("points", "outline_tokens", "expansion_tokens"):
            require_int(self, name, 1)
        require_tokens(self, "topic_tokens", "point_tokens", "paragraph_tokens")

    def shelves(self) -> tuple[Shelf, ...]:
        """The two templates and what numbers the points."""
        return (
            Shelf(1, self.outline_tokens),
            Shelf(1, self.expansion_tokens),
            Shelf(self.points, 2),
        )

    def own_tokens(self) -> int:
        """The topic."""
        return most(self.topic_tokens)

    def body(self, script: Script) -> Body:
        """Sketch the points, expanding each as soon as it is there."""
        outline, expansion, numbers = self.library
        topic = script.text(self.topic_tokens)
        context = np.concatenate((outline[0], topic))
        expansions: list[Branch] = []
        for point in range(self.points):
            sketch = script.turn(numbers[point], self.point_tokens)
            paragraph = script.turn(numbers[point][:0], self.paragraph_tokens)
            before = len(context) + len(sketch.text)
            context = yield from ask(context, sketch)
            prompt = np.concatenate((expansion[0], topic, context[before:]))
            expansions += yield Fork([ask(prompt, paragraph)])
        yield Join(expansions)


@dataclass(frozen=True)
class SelfConsistencyPrograms(ProgramFamily):
    """One question answered `samples` times; the answers are voted on outside.

    Defaults: GSM8K with the eight examples of its chain-of-thought prompt
    (lm-evaluation-harness), 727 tokens; questions of 58, quartiles 45 and 74, solutions of 117,
    quartiles 86 and 157; eight samples, an assumption.
    """

    samples: int = 8
    example_tokens: int = 727
    question_tokens: Spread = (45, 58, 74)
    answer_tokens: Spread = (86, 117, 157)
    name: str = "self_consistency"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "samples", 1)
        require_int(self, "example_tokens", 0)
        require_tokens(self, "question_tokens", "answer_tokens")

    def shelves(self) -> tuple[Shelf, ...]:
        """The examples."""
        return (Shelf(1, self.example_tokens),)

    def own_tokens(self) -> int:
        """The question."""
        return most(self.question_tokens)

    def body(self, script: Script) -> Body:
        """Sample side by side."""
        (examples,) = self.library
        prompt = np.concatenate((examples[0], script.text(self.question_tokens)))
        nothing = prompt[:0]
        samples = [script.turn(nothing, self.answer_tokens) for _ in range(self.samples)]
        yield Join((yield Fork([ask(prompt, sample) for sample in samples], prompt)))
