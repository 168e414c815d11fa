"""The fingerprint of a log: how much its prompts share, where, and whose they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testbed.advisor.requests import requests_of
from testbed.advisor.sessions import parents
from testbed.metrics.bounds import clairvoyant_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.workloads.formats.record import Record
from testbed.workloads.tokenize import Tokenizer

MIN_SHARING_REQUESTS = 0.5
"""Share of the requests that find a page of an earlier one, unless prompts are single shots."""


@dataclass(frozen=True)
class Fingerprint:
    """What the sample's requests share, in tokens, whatever the page size.

    prompt_p50, prompt_p90: lengths. shared_p50, shared_p90: how long the beginning is that a
    request has in common with an earlier one. sharing_requests: share of the requests that have a
    page in common. repeated: share whose whole prompt came before. turns: requests by their place
    in a session, from 1.
    """

    prompt_p50: float
    prompt_p90: float
    shared_p50: float
    shared_p90: float
    sharing_requests: float
    repeated: float
    turns: Counter[int]

    @property
    def is_single_shot(self) -> bool:
        """No sessions, and most prompts have no beginning in common."""
        return set(self.turns) <= {1} and self.sharing_requests < MIN_SHARING_REQUESTS


def fingerprint(
    runs: Sequence[Sequence[Record]], tokenizer: Tokenizer, page_size: int
) -> Fingerprint:
    """The fingerprint of a sample; the first request of each run has nothing to share."""
    lengths: list[int] = []
    matches: list[int] = []
    turns: Counter[int] = Counter()
    for run in runs:
        paths = prompt_paths(requests_of(run, tokenizer), 1, min_computed_tokens=0)
        lengths += paths.prompt_tokens
        matches += clairvoyant_bound(paths, None).request_hit_tokens.tolist()
        turn: list[int] = []
        for parent in parents(run):
            turn.append(1 if parent is None else turn[parent] + 1)
        turns.update(turn)
    length, match = np.array(lengths), np.array(matches)
    return Fingerprint(
        float(np.percentile(length, 50)),
        float(np.percentile(length, 90)),
        float(np.percentile(match, 50)),
        float(np.percentile(match, 90)),
        float((match >= page_size).mean()),
        float((match == length).mean()),
        turns,
    )
