"""The slots of a prompt template: how long their pieces are, and how many different ones exist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.workloads.parameters import MAX_LENGTH, require_between, require_int, require_one_of
from testbed.workloads.zipf import zipf_draws

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TemplateSegment:
    """One slot: `pieces` pieces, drawn without repeats from `values` different ones.

    tokens: mean length of a piece; 0 leaves the segment out. sd: standard deviation of the
    (normal) lengths; a piece keeps its length. values: None makes every piece new. zipf_exponent:
    the k-th piece is drawn in proportion to k ** -zipf_exponent. per_tenant: each tenant has
    pieces of its own. arrangement of the pieces: `sorted` by falling popularity, as `drawn` (how a
    retriever ranks them), or `shuffled` in every prompt. jitter: the share of prompts in which one
    more whitespace token stands in front of the segment.
    """

    tokens: int = 0
    sd: float = 0.0
    values: int | None = 1
    pieces: int = 1
    zipf_exponent: float = 0.0
    per_tenant: bool = False
    arrangement: Literal["sorted", "drawn", "shuffled"] = "sorted"
    jitter: float = 0.0

    def __post_init__(self) -> None:
        require_int(self, "tokens", 0, MAX_LENGTH)
        require_between(self, "sd", 0, MAX_LENGTH)
        require_int(self, "pieces", 1)
        if self.values is not None:
            require_int(self, "values", 1)
            if self.pieces > self.values:
                raise ValueError(
                    f"TemplateSegment.pieces={self.pieces}: at most values={self.values} is needed"
                )
        require_between(self, "zipf_exponent", 0, 10)
        require_one_of(self, "arrangement", ("sorted", "drawn", "shuffled"))
        require_between(self, "jitter", 0, 1)
        if not isinstance(self.per_tenant, bool):
            raise ValueError(
                f"TemplateSegment.per_tenant={self.per_tenant!r}: true or false is needed"
            )


# The airline agent of tau-bench: a policy of 1,338 tokens and 14 tools of 2,669 together.
SYSTEM = TemplateSegment(1338)
TOOLS = TemplateSegment(191, values=14, pieces=14)
NO_EXAMPLES = TemplateSegment()
CONTEXT = TemplateSegment(512, values=116, pieces=3, zipf_exponent=1.0)
QUESTION = TemplateSegment(40, values=None)
TIMESTAMP = TemplateSegment(12, values=None)
NO_REQUEST_ID = TemplateSegment(values=None)
USER = TemplateSegment(8, values=50)


class Speakers(NamedTuple):
    """Whose draws requests use: unit[request], and the tenant of each unit, both int64."""

    unit: Ints
    tenant: Ints


class DrawnSegment(NamedTuple):
    """pieces: int64[requests, pieces], numbers of texts. lengths: int64[texts], tokens.

    spaced: bool[requests], where one more whitespace token stands in front.
    """

    pieces: Ints
    lengths: Ints
    spaced: npt.NDArray[np.bool_]

    @property
    def num_tokens(self) -> int:
        """Of all its texts, and one for the whitespace."""
        return int(self.lengths.sum()) + 1


def draw_segment(
    segment: TemplateSegment, speakers: Speakers, in_turn: bool, seeds: np.random.SeedSequence
) -> DrawnSegment:
    """What each request has in the segment.

    in_turn: the values follow each other over the requests, as dates do. Choices, lengths,
    shuffles and jitter have streams of their own: changing one leaves the others as they are.
    """
    choices, lengths, shuffles, jitter = (np.random.default_rng(s) for s in seeds.spawn(4))
    num_units, num_requests = len(speakers.tenant), len(speakers.unit)
    if segment.values is None:
        chosen = np.arange(num_units * segment.pieces).reshape(num_units, segment.pieces)
        num_texts = chosen.size
    else:
        num_texts = segment.values
        if in_turn:
            chosen = (np.arange(num_units) * segment.values // num_units)[:, None]
        else:
            chosen = zipf_draws(
                segment.values, segment.zipf_exponent, segment.pieces, num_units, choices
            )
        if segment.per_tenant:
            chosen = chosen + speakers.tenant[:, None] * segment.values
            num_texts *= int(speakers.tenant.max()) + 1
    if segment.arrangement == "sorted":
        chosen = np.sort(chosen, axis=1)
    pieces = chosen[speakers.unit]
    if segment.arrangement == "shuffled":
        pieces = shuffles.permuted(pieces, axis=1)
    drawn = segment.tokens + segment.sd * lengths.standard_normal(num_texts)
    return DrawnSegment(
        pieces,
        np.maximum(np.rint(drawn), 1).astype(np.int64),
        jitter.random(num_requests) < segment.jitter,
    )
