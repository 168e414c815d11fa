"""The lesson: 80 requests over 4 documents that show what prompt order costs a small cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import ClassVar, NamedTuple

import numpy as np

from testbed.core.request import Request, Tokens
from testbed.workloads.parameters import require_int
from testbed.workloads.tokens import output_tokens, prompt_tokens, require_vocab

NUM_REQUESTS = 80
NUM_DOCUMENTS = 4
BLOCK_TOKENS = 16
SYSTEM_TOKENS, TOOLS_TOKENS, DOCUMENT_TOKENS, QUESTION_TOKENS = 2000, 300, 500, 60
SEED = 1


class Segment(NamedTuple):
    """A piece of a prompt; equal segments of two prompts are equal tuples.

    first_token and first_block number its tokens and blocks among all that exist. A segment starts
    a block of its own: num_blocks is its length over BLOCK_TOKENS, rounded up.
    """

    name: str
    first_token: int
    num_tokens: int
    first_block: int
    num_blocks: int

    def block_ids(self) -> Tokens:
        """One id for each block, int32[num_blocks]: the segment in a cache that counts blocks."""
        return prompt_tokens(self.first_block, self.num_blocks, None, 0)


@dataclass(frozen=True)
class LessonWorkload:
    """System prompt, tools, one document of four, a question of its own; in that order or not.

    scrambled: system, tools and document are shuffled in every prompt; the question stays last.
    All requests arrive at 0 and generate one token. The draws are those of Python's
    random.Random(1), part of the definition; `vocab` maps tokens as in every workload.
    `segments` gives each prompt, in the order of the requests, for a cache driven segment by
    segment. As a Request a prompt is the segments' tokens without gaps, 2,860 of them.
    """

    scrambled: bool = False
    vocab: int | None = None
    seed: int = 0
    name: str = "lesson"
    skipped_lines: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not isinstance(self.scrambled, bool):
            raise ValueError(
                f"LessonWorkload.scrambled={self.scrambled!r}: true or false is needed"
            )
        require_vocab(self)
        require_int(self, "seed", 0)

    @cached_property
    def segments(self) -> tuple[tuple[Segment, ...], ...]:
        """Each prompt as its four segments, in serving order."""
        system, tools, *rest = _all_segments()
        documents, questions = rest[:NUM_DOCUMENTS], rest[NUM_DOCUMENTS:]
        random = Random(SEED)
        prompts = []
        for question in questions:
            context = [system, tools, documents[random.randrange(NUM_DOCUMENTS)]]
            if self.scrambled:
                random.shuffle(context)
            prompts.append((*context, question))
        random.shuffle(prompts)
        return tuple(prompts)

    def __len__(self) -> int:
        return NUM_REQUESTS

    def __iter__(self) -> Iterator[Request]:
        for i, prompt in enumerate(self.segments):
            pieces = [
                prompt_tokens(segment.first_token, segment.num_tokens, self.vocab, self.seed)
                for segment in prompt
            ]
            yield Request(
                id=i,
                prompt=np.concatenate(pieces),
                output=output_tokens(i, 1, self.vocab, self.seed),
            )


def _all_segments() -> list[Segment]:
    names = ["SYSTEM", "TOOLS"]
    names += [f"DOC_{j}" for j in range(NUM_DOCUMENTS)]
    names += [f"Q_{i}" for i in range(NUM_REQUESTS)]
    lengths = [SYSTEM_TOKENS, TOOLS_TOKENS]
    lengths += [DOCUMENT_TOKENS] * NUM_DOCUMENTS + [QUESTION_TOKENS] * NUM_REQUESTS
    segments: list[Segment] = []
    token = block = 0
    for name, num_tokens in zip(names, lengths, strict=True):
        num_blocks = -(-num_tokens // BLOCK_TOKENS)
        segments.append(Segment(name, token, num_tokens, block, num_blocks))
        token += num_tokens
        block += num_blocks
    return segments
