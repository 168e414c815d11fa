"""Request: what a client asks, immutable. Sequence: the life of one request on one replica."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from testbed.core.decode_set import DecodeSet
    from testbed.core.views import SequenceView

Tokens = npt.NDArray[np.int32]
EMPTY_TOKENS: Tokens = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a real model's next token is chosen.

    temperature: 0 takes the likeliest token. top_k: only so many likeliest; 0 for all. top_p: only
    the likeliest that together reach this probability. seed: of the request's own random draws.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, accepted in (
            ("temperature", 0 <= self.temperature < inf),
            ("top_k", self.top_k >= 0),
            ("top_p", 0 < self.top_p <= 1),
            ("seed", 0 <= self.seed < 2**63),
        ):
            if not accepted:
                limits = {"top_p": "in (0, 1]", "seed": "at least 0 and less than 2**63"}.get(
                    name, "at least 0"
                )
                raise ValueError(f"{name}={getattr(self, name)}: it must be {limits}")


GREEDY = SamplingParams()


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One prompt, what may be generated from it, and the hints that policies may use.

    prompt: int32 token ids. output: the tokens the model will produce where they are known in
    advance (traces, simulation); None where a real model decides. Policies never see it.
    max_new_tokens: the declared limit, at least 1; the default is the length of `output`.
    stop_tokens: a real model's output ends with the first of these. sampling: how it chooses.
    arrival: seconds since the start of the run. Namespaces never share cached pages.

    Hints, from whoever asks: client, weight and priority; the program and the turn in it;
    deadline: when the last token is due, in seconds since the start of the run. expected_output:
    the output tokens that somebody predicts. pin: so many leading prompt tokens are worth keeping.
    retain_for: seconds after the end for which what was cached is worth keeping. What becomes of a
    hint is up to the policies.
    """

    id: int
    prompt: Tokens
    output: Tokens | None = None
    max_new_tokens: int = 0
    stop_tokens: tuple[int, ...] = ()
    sampling: SamplingParams = GREEDY
    arrival: float = 0.0
    client: str = "default"
    weight: float = 1.0
    priority: int = 0
    namespace: str = ""
    program: str | None = None
    turn: int = 0
    deadline: float | None = None
    expected_output: int | None = None
    pin: int = 0
    retain_for: float = 0.0

    def __post_init__(self) -> None:
        for name, tokens in (("prompt", self.prompt), ("output", self.output)):
            if tokens is None:
                continue
            if len(tokens) == 0:
                raise ValueError(
                    f"request {self.id}: {name} is empty; at least one token is needed"
                )
            if tokens.dtype != np.int32 or tokens.ndim != 1:
                raise ValueError(
                    f"request {self.id}: {name} is {tokens.dtype} of shape {tokens.shape}; "
                    "a row of int32 token ids is needed"
                )
        if self.max_new_tokens == 0 and self.output is not None:
            object.__setattr__(self, "max_new_tokens", len(self.output))
        if self.max_new_tokens < 1:
            raise ValueError(
                f"request {self.id}: max_new_tokens is {self.max_new_tokens}; at least 1 is needed"
            )
        if not 0 < self.weight < inf:
            raise ValueError(f"request {self.id}: weight is {self.weight}; it must be positive")
        if not 0 <= self.arrival < inf:
            raise ValueError(f"request {self.id}: arrival is {self.arrival}; seconds from 0 on")
        if not 0 <= self.retain_for < inf:
            raise ValueError(f"request {self.id}: retain_for is {self.retain_for}; seconds from 0")
        if self.pin < 0:
            raise ValueError(f"request {self.id}: pin is {self.pin}; tokens from 0 on are needed")
        if self.deadline is not None and not 0 <= self.deadline < inf:
            raise ValueError(f"request {self.id}: deadline is {self.deadline}; seconds from 0 on")
        if self.expected_output is not None and self.expected_output < 1:
            raise ValueError(
                f"request {self.id}: expected_output is {self.expected_output}; at least 1 token"
            )


class State(Enum):
    """Where a sequence stands on its replica."""

    WAITING = "waiting"
    DELAYED = "delayed"
    RUNNING = "running"
    FINISHED = "finished"
    REFUSED = "refused"


class Sequence:
    """The state of one request on one replica; only the Scheduler and the PrefixCache write to it.

    The page table, and who owns what in it::

        pages:  | tree's, locked by us | ours, not yet published | unused |
                0              num_tree_pages              num_pages

    `num_computed_tokens` counts tokens whose KV exists. While decoding it is one less than the
    number of known tokens: the newest token's KV is computed when it is fed back.
    """

    __slots__ = (
        "admitted_step",
        "admitted_time",
        "cache_handle",
        "chunk_reread_tokens",
        "decode_set",
        "decode_spans",
        "finish_due",
        "finish_time",
        "first_token_time",
        "generated",
        "index",
        "joined_clock",
        "lost_tokens",
        "match_handle",
        "num_cached_tokens",
        "num_joined_computed",
        "num_joined_generated",
        "num_matched_tokens",
        "num_output_tokens",
        "num_pages",
        "num_preemptions",
        "num_prompt_tokens",
        "num_recomputed_tokens",
        "num_rehit_tokens",
        "num_shared_pages",
        "num_tree_pages",
        "page_due",
        "pages",
        "queue_next",
        "queue_previous",
        "refusal",
        "request",
        "routed_match_tokens",
        "span_start",
        "state",
        "tokens",
        "view",
    )

    request: Request
    index: int
    """Arrival order on this replica; breaks every tie."""
    state: State
    view: SequenceView
    tokens: Tokens
    """What a prefill must compute: the prompt, after a preemption also what was generated."""
    generated: list[int] | None
    """Token ids that a real model chose; None where request.output is the script."""
    num_prompt_tokens: int
    num_output_tokens: int
    """When to stop: the scripted length where there is one, else max_new_tokens."""
    num_joined_generated: int
    """Tokens generated before it joined its decode set; in all, if it is in none."""
    num_joined_computed: int
    """Tokens computed before it joined its decode set; in all, if it is in none."""
    num_cached_tokens: int
    """Prompt tokens found in the cache at the first admission: the numerator of the hit rate."""
    num_rehit_tokens: int
    """Tokens found in the cache at re-admissions after preemption; never part of the hit rate."""
    num_recomputed_tokens: int
    """Tokens whose KV was computed again after a preemption threw it away."""
    chunk_reread_tokens: int
    """Sum over continuing chunks of the tokens that earlier chunks of this prefill computed."""
    routed_match_tokens: int
    """What the router's replica had cached for the prompt when the request was dispatched."""
    num_matched_tokens: int
    """While waiting: how many leading tokens the cache holds now, in whole pages, uncapped."""
    num_pages: int
    num_tree_pages: int
    num_shared_pages: int
    """Pages that the newest admission found in the cache."""
    num_preemptions: int
    lost_tokens: int
    """Tokens whose KV the newest preemption dropped."""
    decode_set: DecodeSet | None
    """While decoding: the set whose clock counts its tokens."""
    joined_clock: int
    page_due: int
    """While decoding: the clock at which its last page is full."""
    finish_due: int
    """While decoding: the clock at which it has produced its last token."""
    pages: npt.NDArray[np.int32]
    cache_handle: Any
    match_handle: Any
    admitted_step: int
    admitted_time: float
    first_token_time: float
    finish_time: float
    decode_spans: list[tuple[int, int]]
    """(first, last) step of each unbroken run of token production; one unless preempted."""
    span_start: int
    """First step of the run that is going on; -1 if none is."""
    refusal: str | None
    queue_next: Sequence | None
    queue_previous: Sequence | None

    def __init__(self, request: Request, index: int) -> None:
        self.request = request
        self.index = index
        self.state = State.WAITING
        self.tokens = request.prompt
        self.num_prompt_tokens = len(request.prompt)
        if request.output is None:
            self.generated = []
            self.num_output_tokens = request.max_new_tokens
        else:
            self.generated = None
            self.num_output_tokens = min(len(request.output), request.max_new_tokens)
        self.num_joined_generated = 0
        self.num_joined_computed = 0
        self.num_cached_tokens = 0
        self.num_rehit_tokens = 0
        self.num_recomputed_tokens = 0
        self.chunk_reread_tokens = 0
        self.routed_match_tokens = 0
        self.num_matched_tokens = 0
        self.num_pages = 0
        self.num_tree_pages = 0
        self.num_shared_pages = 0
        self.num_preemptions = 0
        self.lost_tokens = 0
        self.decode_set = None
        self.joined_clock = 0
        self.page_due = 0
        self.finish_due = 0
        self.pages = EMPTY_TOKENS
        self.cache_handle = None
        self.match_handle = None
        self.admitted_step = -1
        self.admitted_time = -1.0
        self.first_token_time = -1.0
        self.finish_time = -1.0
        self.decode_spans = []
        self.span_start = -1
        self.refusal = None
        self.queue_next = None
        self.queue_previous = None

    @property
    def num_generated_tokens(self) -> int:
        """Output tokens produced so far."""
        if self.decode_set is None:
            return self.num_joined_generated
        return self.num_joined_generated + self.decode_set.clock - self.joined_clock

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV exists."""
        if self.decode_set is None:
            return self.num_joined_computed
        return self.num_joined_computed + self.decode_set.clock - self.joined_clock

    def output_tokens(self) -> Tokens:
        """The tokens generated so far, int32[num_generated_tokens]."""
        if self.generated is not None:
            return np.array(self.generated, dtype=np.int32)
        assert self.request.output is not None
        return self.request.output[: self.num_generated_tokens]

    def __repr__(self) -> str:
        return (
            f"Sequence(request={self.request.id}, {self.state.value}, "
            f"{self.num_prompt_tokens} prompt + {self.num_generated_tokens} generated tokens)"
        )
