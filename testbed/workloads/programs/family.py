"""ProgramFamily: what all ready programs have in common. Script: one program's texts and draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import numpy as np

from testbed.core.program import Body, Fork, Gen, Join, Operation, Program
from testbed.core.request import Tokens
from testbed.workloads.parameters import require_between, require_int
from testbed.workloads.programs.distribution import (
    Distribution,
    draw_seconds,
    draw_tokens,
    max_tokens,
)
from testbed.workloads.tokens import (
    output_tokens,
    prompt_tokens,
    require_token_space,
    require_vocab,
)
from testbed.workloads.zipf import zipf_draws

_SHARED, _PROGRAMS, _SALTS = 0, 1, 2
"""Streams of random numbers under a seed."""
_ANSWERS_PER_PROGRAM = 1 << 20
MAX_TOPICS = _ANSWERS_PER_PROGRAM
"""Answers that programs share are numbered below it, each program's own ones above."""


class Turn(NamedTuple):
    """What a request adds to its context, and its answer.

    answer: None where a model decides, for at most `limit` tokens. salt: one token in place of the
    prompt's first, so that the prompt matches no other (vLLM's cache_salt does the same to hashes).
    """

    text: Tokens
    answer: Tokens | None
    limit: int
    salt: Tokens | None

    def gen(self, context: Tokens) -> Gen:
        """The request in this context."""
        prompt = np.concatenate((context, self.text))
        if self.salt is not None:
            prompt[:1] = self.salt
        return Gen(prompt, self.answer, self.limit)


def ask(context: Tokens, turn: Turn) -> Generator[Gen, Tokens, tuple[Tokens, Tokens]]:
    """Have the turn answered; returns the context, text and answer appended, and the answer."""
    answer = yield turn.gen(context)
    return np.concatenate((context, turn.text, answer)), answer


def fork_join(bodies: Sequence[Body], prefix: Tokens) -> Generator[Operation, Any, list[Any]]:
    """Run bodies whose prompts begin with `prefix` side by side; returns what each returned.

    None stands for a body that ended because its request was refused.
    """
    branches = yield Fork(bodies, prefix)
    returned: list[Any] = yield Join(branches)
    return returned


class SharedTexts(NamedTuple):
    """`number` texts that programs share; length: of each, in tokens."""

    number: int
    length: Distribution


class Texts:
    """Distinct texts of given lengths, numbered one after the other from `first`."""

    def __init__(self, lengths: list[int], first: int, vocab: int | None, seed: int) -> None:
        self._starts = list(accumulate(lengths, initial=first))
        self._vocab = vocab
        self._seed = seed

    @property
    def end(self) -> int:
        """The number of the first token after them."""
        return self._starts[-1]

    def __getitem__(self, index: int) -> Tokens:
        first, end = self._starts[index], self._starts[index + 1]
        return prompt_tokens(first, end - first, self._vocab, self._seed)


class Script:
    """One program's own texts, answers and random draws: a function of (seed, program) alone.

    Only a program's root body draws, ahead of what it forks: branches run in an order that depends
    on the backend. first: the number of the program's first own token.
    """

    def __init__(self, family: ProgramFamily, program: int, first: int) -> None:
        self.program = program
        self.random = np.random.default_rng([family.seed, _PROGRAMS, program])
        # Apart, so that nothing else changes with the share of them.
        self._salts = np.random.default_rng([family.seed, _SALTS, program])
        self._family = family
        self._next = first
        self._answer = (program + 1) * _ANSWERS_PER_PROGRAM

    def tokens(self, distribution: Distribution) -> int:
        """A drawn length."""
        return draw_tokens(distribution, self.random)

    def seconds(self, distribution: Distribution) -> float:
        """A drawn time."""
        return draw_seconds(distribution, self.random)

    def popular(self, count: int, exponent: float, picks: int = 1) -> list[int]:
        """So many different of 0..count - 1, the k-th by popularity ~ (k + 1) ** -exponent."""
        drawn: list[int] = zipf_draws(count, exponent, picks, 1, self.random)[0].tolist()
        return drawn

    def text(self, distribution: Distribution) -> Tokens:
        """A text that occurs nowhere else."""
        count = self.tokens(distribution)
        self._next += count
        family = self._family
        return prompt_tokens(self._next - count, count, family.vocab, family.seed)

    def turn(self, text: Tokens, answer: Distribution, topic: int | None = None) -> Turn:
        """A text and its scripted answer, which is like no other unless it has a topic.

        topic: a number below MAX_TOPICS; answers on one topic begin alike, in every program.
        """
        family = self._family
        length = self.tokens(answer)
        self._answer += 1
        scripted = salt = None
        if family.scripted:
            scripted = self._answer_text(self._answer if topic is None else topic, length)
        if self._salts.random() < family.unshared:
            # Negative numbers are no answer's.
            salt = self._answer_text(-self._answer, 1)
        return Turn(text, scripted, length, salt)

    def _answer_text(self, number: int, count: int) -> Tokens:
        return output_tokens(number, count, self._family.vocab, self._family.seed)


@dataclass(frozen=True)
class ProgramFamily(ABC):
    """Programs of one shape, each with texts and lengths of its own.

    hints: a Fork's common prefix is sent ahead. unshared: share of the requests (hints excepted)
    whose first token is replaced by one of their own, as if an id or the time stood in front:
    nothing of them is ever shared. scripted: what is answered is known in advance, as a simulation
    needs; false leaves it to a model, up to the same length.

    Lengths are in tokens, times in seconds; each is a Distribution. All programs arrive at 0: give
    them other times, or a closed loop, with Retimed. What they say does not depend on when they
    run.
    """

    num_programs: int = 100
    hints: bool = True
    unshared: float = 0.0
    scripted: bool = True
    vocab: int | None = None
    seed: int = 0
    name: str = "programs"
    skipped_lines: ClassVar[int] = 0

    def __post_init__(self) -> None:
        require_int(self, "num_programs", 1)
        require_between(self, "unshared", 0, 1)
        require_vocab(self)
        require_int(self, "seed", 0)
        for name in ("hints", "scripted"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"{type(self).__name__}.{name}={getattr(self, name)!r}: true or false is needed"
                )
        self.check()
        shared = sum(texts.number * max_tokens(texts.length) for texts in self.shared_texts())
        require_token_space(self, shared + self.num_programs * self.own_tokens())

    def __len__(self) -> int:
        return self.num_programs

    def __iter__(self) -> Iterator[Program]:
        for program in range(self.num_programs):
            yield Program(program, partial(self._start, program), self.name)

    @cached_property
    def texts(self) -> tuple[Texts, ...]:
        """The shared texts themselves, in the order of shared_texts()."""
        texts: list[Texts] = []
        for place, shared in enumerate(self.shared_texts()):
            generator = np.random.default_rng([self.seed, _SHARED, place])
            lengths = [draw_tokens(shared.length, generator) for _ in range(shared.number)]
            first = texts[-1].end if texts else 0
            texts.append(Texts(lengths, first, self.vocab, self.seed))
        return tuple(texts)

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError, naming the field, for parameters that make no program."""

    @abstractmethod
    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """What programs share, in the order in which `texts` has it."""

    @abstractmethod
    def own_tokens(self) -> int:
        """The most tokens of text that one program has to itself; answers do not count."""

    @abstractmethod
    def body(self, script: Script) -> Body:
        """One program."""

    def _start(self, program: int) -> Body:
        first = self.texts[-1].end if self.texts else 0
        return self.body(Script(self, program, first + program * self.own_tokens()))
