"""What a policy author implements (three small abstract classes) and the views policies read.

Views are live, cheap to read (O(1) unless said) and read-only: assigning to a field raises
AttributeError. They never show a request's true output length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from testbed.core.request import Request, Sequence, Tokens


class Admitted(NamedTuple):
    """The proposed sequence runs: `cached` tokens were found, `extend` tokens must be computed."""

    cached: int
    extend: int


class _Misfit:
    """A falsy outcome: the proposed sequence stays in the queue."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return self.reason


NO_MEMORY = _Misfit("NO_MEMORY")
"""The pool cannot hold the sequence beside what already runs; another one may fit."""
NO_BUDGET = _Misfit("NO_BUDGET")
"""No batch slot or no prefill tokens are left in this step."""

Outcome: TypeAlias = Admitted | _Misfit


class Refuse(NamedTuple):
    """Returned by on_arrival: the request is turned away and counted as refused."""

    reason: str


class Delay(NamedTuple):
    """Returned by on_arrival: it is called again at `until` (seconds); the queue lacks it till then."""

    until: float


class SequenceView:
    """A policy's read-only sight of one sequence."""

    __slots__ = ("_sequence",)

    def __init__(self, sequence: Sequence) -> None:
        object.__setattr__(self, "_sequence", sequence)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"views are read-only: {name} of a sequence cannot be set")

    @property
    def id(self) -> int:
        """The request's id."""
        return self._sequence.request.id

    @property
    def index(self) -> int:
        """Arrival order on this replica, unique: the tie-breaker of every policy."""
        return self._sequence.index

    @property
    def client(self) -> str:
        """Whose request it is: the unit of fairness."""
        return self._sequence.request.client

    @property
    def weight(self) -> float:
        """The client's share relative to others."""
        return self._sequence.request.weight

    @property
    def priority(self) -> int:
        """The request's priority hint."""
        return self._sequence.request.priority

    @property
    def namespace(self) -> str:
        """Prefixes are shared inside a namespace only."""
        return self._sequence.request.namespace

    @property
    def program(self) -> str | None:
        """The program (session, agent run) the request belongs to."""
        return self._sequence.request.program

    @property
    def turn(self) -> int:
        """The request's place in its program, from 0."""
        return self._sequence.request.turn

    @property
    def arrival(self) -> float:
        """Seconds since the start of the run."""
        return self._sequence.request.arrival

    @property
    def tokens(self) -> Tokens:
        """What a prefill would have to hold: prompt and, after a preemption, generated tokens."""
        view = self._sequence.tokens.view()
        view.flags.writeable = False
        return view

    @property
    def num_tokens(self) -> int:
        """len(tokens)."""
        return len(self._sequence.tokens)

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self._sequence.num_prompt_tokens

    @property
    def num_matched_tokens(self) -> int:
        """While waiting: leading tokens that the cache holds now (whole pages, uncapped)."""
        return self._sequence.num_matched_tokens

    @property
    def match_node(self) -> NodeView | None:
        """While waiting: the radix-tree node where the match ends; None without a tree."""
        node = self._sequence.match_handle
        return getattr(node, "view", None)

    @property
    def num_generated_tokens(self) -> int:
        """Output tokens produced so far."""
        return self._sequence.num_generated_tokens

    @property
    def max_new_tokens(self) -> int:
        """The declared output limit, which is not the true output length."""
        return self._sequence.request.max_new_tokens

    @property
    def num_preemptions(self) -> int:
        """How often the sequence was thrown out of memory."""
        return self._sequence.num_preemptions

    def __repr__(self) -> str:
        return f"SequenceView({self._sequence!r})"


class NodeView(Protocol):
    """A policy's read-only sight of a radix-tree node; only `state` may be written."""

    state: Any
    """A slot of the eviction policy's own; a split leaves it on the lower half (see on_split)."""

    @property
    def num_tokens(self) -> int:
        """Tokens on the edge into this node."""

    @property
    def end(self) -> int:
        """Depth in tokens at the end of the edge."""

    @property
    def num_children(self) -> int:
        """Children; only a node without any can be evicted."""

    @property
    def parent(self) -> NodeView | None:
        """None for a root."""

    @property
    def locks(self) -> int:
        """Running sequences whose path passes here."""

    @property
    def last_access(self) -> int:
        """Step of the newest admission or insertion that passed."""

    @property
    def created(self) -> int:
        """Step of the insertion; both halves of a split keep it."""

    @property
    def hits(self) -> int:
        """Requests that passed since the insertion, the inserting one included."""

    @property
    def serial(self) -> int:
        """Insertion order; breaks ties between equal priorities."""

    @property
    def num_waiting(self) -> int:
        """Waiting sequences whose match ends here or below."""

    def children(self) -> Iterator[NodeView]:
        """The nodes below, by insertion order of their first token."""

    def waiting(self) -> Iterator[SequenceView]:
        """Waiting sequences whose match ends at or inside this node's edge, in no useful order."""


class CacheView(Protocol):
    """A policy's read-only sight of a prefix cache."""

    @property
    def page_size(self) -> int:
        """Tokens a page holds."""

    @property
    def num_free_pages(self) -> int:
        """Pages that hold nothing."""

    @property
    def num_evictable_pages(self) -> int:
        """Cached pages that no running sequence locks."""

    @property
    def num_locked_pages(self) -> int:
        """Cached pages on the path of a running sequence."""

    def peek(self, tokens: Tokens, namespace: str = "") -> int:
        """Leading tokens that are cached, in whole pages; O(len(tokens)); changes nothing."""

    def evictable_leaves(self) -> Iterator[NodeView]:
        """The nodes that may be evicted now, in insertion order; O(nodes)."""

    def roots(self) -> Iterator[NodeView]:
        """The radix tree's roots, one a namespace; nothing without a tree."""


class ClientView(NamedTuple):
    """How many sequences of one client wait and run on this replica."""

    waiting: int
    running: int


class WaitingView(Protocol):
    """The queue: preempted sequences first, then by arrival. Safe to iterate while admitting."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[SequenceView]: ...


class SchedulerView(Protocol):
    """What a scheduling policy sees; one object for the whole run, always current."""

    @property
    def now(self) -> float:
        """Seconds; the instant of this pass."""

    @property
    def step(self) -> int:
        """Steps scheduled so far."""

    @property
    def waiting(self) -> WaitingView:
        """The queue."""

    @property
    def running(self) -> tuple[SequenceView, ...]:
        """Admitted sequences in admission order; O(running)."""

    @property
    def cache(self) -> CacheView:
        """The prefix cache."""

    @property
    def clients(self) -> Mapping[str, ClientView]:
        """Clients with waiting or running sequences, by name; O(waiting + running) to build."""


Proposals: TypeAlias = Generator[SequenceView, Outcome, None]


class SchedulingPolicy(ABC):
    """Proposes which waiting sequence to admit next, and hears what became of each proposal.

    One instance serves one replica for one run and may keep state. Hooks default to nothing.
    """

    reacts_to_decoding: ClassVar[bool] = True
    """Whether what candidates() would propose can change while nothing happens but decoding
    (counters moved by on_tokens; view.now). Only a False lets the simulator skip idle passes."""

    def on_start(self, view: SchedulerView) -> None:
        """Called once, before anything else."""

    @abstractmethod
    def candidates(self, view: SchedulerView) -> Proposals:
        """Yield sequences to admit, best first; each yield returns Admitted, NO_MEMORY or NO_BUDGET.

        Called once a step while sequences wait and batch slots are free, and closed when no more
        can be admitted. Proposing the same sequence twice in a pass, or one that is not waiting,
        raises PolicyError.
        """

    def on_arrival(self, sequence: SequenceView) -> Refuse | Delay | None:
        """A request arrived; None lets it wait in the queue."""

    def on_match(self, sequence: SequenceView) -> None:
        """The cached prefix of a waiting sequence grew or shrank."""

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """The sequence left the queue; called before its yield returns."""

    def on_tokens(self, sequence: SequenceView, count: int) -> None:
        """A running sequence produced `count` tokens (more than one where steps were skipped)."""

    def on_finish(self, sequence: SequenceView) -> None:
        """The sequence produced its last token."""

    def on_preempt(self, sequence: SequenceView) -> None:
        """The sequence lost its memory and waits again, at the front of the queue."""


class EvictionPolicy(ABC):
    """Says which unlocked leaf of the radix tree leaves first."""

    @abstractmethod
    def priority(self, node: NodeView, now: int) -> Any:
        """The node's rank; the smallest goes first, ties by insertion order. `now` is a step.

        May change when a hook below is called for the node, not with time alone.
        """

    def on_insert(self, node: NodeView) -> None:
        """A new node holds tokens that were just computed."""

    def on_touch(self, node: NodeView) -> None:
        """A request's path passes through the node (once a request)."""

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        """`lower` was cut; `upper` is new, carries its stamps and counts, and has state None."""

    def on_evict(self, node: NodeView) -> None:
        """The node's last page leaves."""

    def victims(self, view: CacheView, need: int) -> Iterator[NodeView] | None:
        """Override to name victims directly: evictable leaves, until `need` pages are freed."""
        return None


class ReplicaView(Protocol):
    """What a router sees of one replica."""

    @property
    def index(self) -> int:
        """The replica's number, from 0."""

    @property
    def num_waiting(self) -> int:
        """Sequences in its queue."""

    @property
    def num_running(self) -> int:
        """Sequences in its batch."""

    def peek(self, request: Request) -> int:
        """Leading prompt tokens that the replica has cached; O(prompt)."""


class RoutingPolicy(ABC):
    """Picks the replica that will serve a request."""

    @abstractmethod
    def choose(self, request: Request, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The index of the chosen replica."""


class PolicyError(Exception):
    """A policy proposed something impossible; the message names the sequence and the policy."""
