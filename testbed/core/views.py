"""What policies see: live, read-only, cheap (O(1) unless said).

Assigning to a field raises AttributeError. No view shows a request's true output length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.core.request import Request, Sequence, Tokens

if TYPE_CHECKING:
    from testbed.core.cost import CostModel
    from testbed.core.prefix_cache import PrefixCache
    from testbed.core.radix_tree import Node
    from testbed.core.scheduler import Scheduler
    from testbed.core.waiting_queue import WaitingQueue


class ReadOnly:
    """Makes assignment an error that names the field."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"views are read-only: {name} cannot be set")


class RequestView(ReadOnly):
    """A policy's read-only sight of a request."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        object.__setattr__(self, "_request", request)

    _request: Request

    @property
    def id(self) -> int:
        """The request's id."""
        return self._request.id

    @property
    def client(self) -> str:
        """Whose request it is: the unit of fairness."""
        return self._request.client

    @property
    def weight(self) -> float:
        """The client's share relative to others."""
        return self._request.weight

    @property
    def priority(self) -> int:
        """The request's priority hint."""
        return self._request.priority

    @property
    def namespace(self) -> str:
        """Prefixes are shared inside a namespace only."""
        return self._request.namespace

    @property
    def program(self) -> str | None:
        """The program (session, agent run) the request belongs to."""
        return self._request.program

    @property
    def turn(self) -> int:
        """The request's place in its program, from 0."""
        return self._request.turn

    @property
    def deadline(self) -> float | None:
        """When the last token is due, seconds since the start of the run; None if never."""
        return self._request.deadline

    @property
    def expected_output(self) -> int | None:
        """Output tokens as somebody predicts them; None if nobody does."""
        return self._request.expected_output

    @property
    def pin(self) -> int:
        """Leading prompt tokens that the client wants kept."""
        return self._request.pin

    @property
    def retain_for(self) -> float:
        """Seconds after its end for which the client wants its prefix kept."""
        return self._request.retain_for

    @property
    def arrival(self) -> float:
        """Seconds since the start of the run."""
        return self._request.arrival

    @property
    def prompt(self) -> Tokens:
        """The prompt, read-only."""
        return _read_only(self._request.prompt)

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self._request.prompt)

    @property
    def max_new_tokens(self) -> int:
        """The declared output limit, which is not the true output length."""
        return self._request.max_new_tokens


class SequenceView(RequestView):
    """A policy's read-only sight of one sequence: its request, and how far it is."""

    __slots__ = ("_sequence",)

    def __init__(self, sequence: Sequence) -> None:
        super().__init__(sequence.request)
        object.__setattr__(self, "_sequence", sequence)

    _sequence: Sequence

    @property
    def index(self) -> int:
        """Arrival order on this replica, unique: the tie-breaker of every policy."""
        return self._sequence.index

    @property
    def tokens(self) -> Tokens:
        """What a prefill would have to hold: prompt and, after a preemption, generated tokens."""
        return _read_only(self._sequence.tokens)

    @property
    def num_tokens(self) -> int:
        """len(tokens)."""
        return len(self._sequence.tokens)

    @property
    def num_matched_tokens(self) -> int:
        """While waiting: leading tokens that the cache holds now (whole pages, uncapped)."""
        return self._sequence.num_matched_tokens

    @property
    def match_node(self) -> NodeView | None:
        """While waiting: the radix-tree node where the match ends; None without a tree."""
        view: NodeView | None = getattr(self._sequence.match_handle, "view", None)
        return view

    @property
    def num_generated_tokens(self) -> int:
        """Output tokens produced so far."""
        return self._sequence.num_generated_tokens

    @property
    def num_preemptions(self) -> int:
        """How often the sequence was thrown out of memory."""
        return self._sequence.num_preemptions

    def __repr__(self) -> str:
        return f"SequenceView({self._sequence!r})"


class OracleView(SequenceView):
    """What a policy that declares itself an oracle sees of a sequence."""

    __slots__ = ()

    @property
    def num_output_tokens(self) -> int:
        """The true output length; ValueError if a real model decides it."""
        if self._sequence.generated is not None:
            raise ValueError(f"request {self.id}: an oracle needs requests with scripted outputs")
        return self._sequence.num_output_tokens


class NodeView:
    """A policy's read-only sight of a radix-tree node; only `state` may be written."""

    __slots__ = ("_node",)

    _node: Node

    def __init__(self, node: Node) -> None:
        object.__setattr__(self, "_node", node)

    def __setattr__(self, name: str, value: object) -> None:
        if name != "state":
            raise AttributeError(f"views are read-only: {name} of a node cannot be set")
        object.__setattr__(self, name, value)

    @property
    def state(self) -> Any:
        """The eviction policy's own slot; a split leaves it on the lower half (see on_split)."""
        return self._node.state

    @state.setter
    def state(self, value: Any) -> None:
        self._node.state = value

    @property
    def num_tokens(self) -> int:
        """Tokens on the edge into this node."""
        return len(self._node.tokens)

    @property
    def tokens(self) -> Tokens:
        """The tokens on the edge, read-only."""
        return _read_only(self._node.tokens)

    @property
    def end(self) -> int:
        """Depth in tokens at the end of the edge."""
        return self._node.end

    @property
    def num_children(self) -> int:
        """Children; only a node without any can be evicted."""
        return len(self._node.children)

    @property
    def parent(self) -> NodeView | None:
        """None for a root."""
        parent = self._node.parent
        return None if parent is None else parent.view

    @property
    def locks(self) -> int:
        """Running sequences whose path passes here."""
        return self._node.locks

    @property
    def last_access(self) -> int:
        """Step of the newest admission or insertion that passed."""
        return self._node.last_access

    @property
    def created(self) -> int:
        """Step of the insertion; both halves of a split keep it."""
        return self._node.created

    @property
    def hits(self) -> int:
        """Requests that passed since the insertion, the inserting one included."""
        return self._node.hits

    @property
    def serial(self) -> int:
        """Insertion order; breaks ties between equal priorities."""
        return self._node.serial

    @property
    def num_waiting(self) -> int:
        """Waiting sequences whose match ends here or below."""
        return self._node.num_waiting

    def children(self) -> Iterator[NodeView]:
        """The nodes below, by insertion order of their first token."""
        return (child.view for child in self._node.children.values())

    def __repr__(self) -> str:
        node = self._node
        return f"NodeView(tokens {node.start}..{node.end}, locks {node.locks}, hits {node.hits})"


class CacheView(ReadOnly):
    """A policy's read-only sight of a prefix cache."""

    __slots__ = ("_cache",)

    def __init__(self, cache: PrefixCache) -> None:
        object.__setattr__(self, "_cache", cache)

    _cache: PrefixCache

    @property
    def page_size(self) -> int:
        """Tokens a page holds."""
        return self._cache.page_size

    @property
    def num_free_pages(self) -> int:
        """Pages that hold nothing."""
        return self._cache.num_free_pages

    @property
    def num_evictable_pages(self) -> int:
        """Cached pages that no running sequence locks."""
        return self._cache.num_evictable_pages

    @property
    def num_locked_pages(self) -> int:
        """Cached pages on the path of a running sequence."""
        return self._cache.num_locked_pages

    def peek(self, tokens: Tokens, namespace: str = "") -> int:
        """Leading tokens that are cached, in whole pages; O(len(tokens)); changes nothing."""
        return self._cache.peek(tokens, namespace)

    def evictable_leaves(self) -> Iterator[NodeView]:
        """The nodes that may be evicted now, in insertion order; O(nodes)."""
        return self._cache.evictable_leaves()

    def roots(self) -> Iterator[NodeView]:
        """The radix tree's roots, one a namespace; nothing without a tree."""
        return self._cache.roots()


class ClientView(NamedTuple):
    """How many sequences of one client wait and run on this replica."""

    waiting: int
    running: int


class WaitingView(ReadOnly):
    """The queue: preempted sequences first, then by arrival. Safe to iterate while admitting."""

    __slots__ = ("_queue",)

    def __init__(self, queue: WaitingQueue) -> None:
        object.__setattr__(self, "_queue", queue)

    _queue: WaitingQueue

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[SequenceView]:
        return (sequence.view for sequence in self._queue)


class SchedulerView(ReadOnly):
    """What a scheduling policy sees; one object for the whole run, always current."""

    __slots__ = ("_cache_view", "_cost", "_scheduler", "_waiting_view")

    def __init__(self, scheduler: Scheduler, cost: CostModel) -> None:
        object.__setattr__(self, "_scheduler", scheduler)
        object.__setattr__(self, "_cost", cost)
        object.__setattr__(self, "_cache_view", CacheView(scheduler.cache))
        object.__setattr__(self, "_waiting_view", WaitingView(scheduler.waiting))

    _scheduler: Scheduler
    _cost: CostModel
    _cache_view: CacheView
    _waiting_view: WaitingView

    @property
    def now(self) -> float:
        """Seconds; the instant of this pass."""
        return self._scheduler.now

    @property
    def step(self) -> int:
        """Steps scheduled so far."""
        return self._scheduler.step

    @property
    def waiting(self) -> WaitingView:
        """The queue."""
        return self._waiting_view

    @property
    def running(self) -> tuple[SequenceView, ...]:
        """Admitted sequences in admission order; O(running)."""
        return tuple(sequence.view for sequence in self._scheduler.running)

    @property
    def num_free_slots(self) -> int:
        """Sequences that may still join the running batch: max_running less those that run."""
        return self._scheduler.config.max_running - len(self._scheduler.running)

    @property
    def cache(self) -> CacheView:
        """The prefix cache."""
        return self._cache_view

    @property
    def cost(self) -> CostModel:
        """What a prefill or a decode step costs on this replica."""
        return self._cost

    @property
    def clients(self) -> Mapping[str, ClientView]:
        """Clients with waiting or running sequences, by name; O(waiting + running) to build."""
        waiting = Counter(sequence.request.client for sequence in self._scheduler.waiting)
        running = Counter(sequence.request.client for sequence in self._scheduler.running)
        names = sorted(waiting.keys() | running.keys())
        return {name: ClientView(waiting[name], running[name]) for name in names}


def _read_only(tokens: Tokens) -> Tokens:
    view = tokens.view()
    view.flags.writeable = False
    return view
