"""What a policy author implements: three small abstract classes, and the outcomes they hear."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

from testbed.core.cost import CostModel
from testbed.core.replica_view import ReplicaView
from testbed.core.request import Tokens
from testbed.core.views import (
    CacheView,
    NodeView,
    RequestView,
    SchedulerView,
    SequenceView,
)


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
    """Returned by on_arrival: stay out of the queue; it is called again at `until` (seconds)."""

    until: float


Proposals: TypeAlias = Generator[SequenceView, Outcome, None] | Iterator[SequenceView]
"""A generator hears the outcome of each proposal as the value of its yield; an order that does not
depend on outcomes may be any iterator, for example iter(sorted(view.waiting, key=...))."""


class SchedulingPolicy(ABC):
    """Proposes which waiting sequence to admit next, and hears what became of each proposal.

    One instance serves one replica for one run and may keep state. Hooks default to nothing.
    """

    reacts_to_decoding: ClassVar[bool] = True
    """Whether what candidates() would propose can change while nothing happens but decoding
    (counters moved by on_tokens; view.now). Only a False lets the simulator skip idle passes."""

    oracle: ClassVar[bool] = False
    """Whether it must know true output lengths: its sequences are OracleViews, and reports say so.
    Only requests whose output is scripted can be served."""

    may_starve: bool = False
    """Whether some request may wait for ever while later ones pass it. Set on the class, or on the
    instance where it depends on a parameter; the conformance kit looks for what is not declared."""

    def on_start(self, view: SchedulerView) -> None:
        """Called once, before anything else."""

    @abstractmethod
    def candidates(self, view: SchedulerView) -> Proposals:
        """Propose sequences to admit, best first; a generator's yield returns the Outcome.

        Called once a step while sequences wait and batch slots are free, and closed when no more
        can be admitted. Proposing the same sequence twice in a pass, or one that is not waiting,
        raises PolicyError.
        """

    def preemptions(self, view: SchedulerView) -> Iterable[SequenceView]:
        """Override to name running sequences that leave before this step's admissions.

        They lose their memory and wait again, at the front of the queue. Called once a step while
        sequences wait.
        """
        return ()

    def on_arrival(self, sequence: SequenceView) -> Refuse | Delay | None:
        """A request arrived; None lets it wait in the queue."""

    def on_match(self, sequence: SequenceView) -> None:
        """The cached prefix of a waiting sequence grew, shrank, or ends in another node now."""

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """The sequence left the queue; called before its yield returns."""

    def on_tokens(self, sequence: SequenceView, count: int) -> None:
        """A running sequence produced `count` tokens (more than one where steps were skipped)."""

    def on_finish(self, sequence: SequenceView) -> None:
        """The sequence produced its last token."""

    def on_preempt(self, sequence: SequenceView) -> None:
        """The sequence lost its memory and waits again, at the front of the queue."""


class EvictionPolicy(ABC):
    """Says which unlocked leaf of the radix tree leaves first.

    One instance serves one replica for one run. Hooks default to nothing.
    """

    oracle: ClassVar[bool] = False
    """Whether it must know the future: on_future is called before the run, and reports say so.
    Only a simulation can tell."""

    def on_start(self, view: SchedulerView) -> None:
        """Called once, before anything else; the view stays current."""

    def on_future(self, requests: Sequence[RequestView]) -> None:
        """For an oracle: every request of the run, in arrival order."""

    @abstractmethod
    def priority(self, node: NodeView, now: int) -> Any:
        """The node's rank; the smallest goes first, ties by insertion order. `now` is a step.

        May change when a hook below is called for the node. If it changes otherwise, override
        `reranked`; if an eviction that only shortens the leaf changes it, override `tail_pages`.
        """

    def reranked(self) -> Iterable[NodeView]:
        """Override to name, before each eviction, the nodes whose priority changed with no hook."""
        return ()

    def tail_pages(self, node: NodeView) -> int | None:
        """Override where a leaf's pages differ in rank: how many at its end share the priority.

        The rest of the leaf is ranked anew once they have left. None stands for all.
        """
        return None

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        """A new node holds tokens that were just computed for the sequence."""

    def on_touch(self, node: NodeView, sequence: SequenceView) -> None:
        """The sequence's path passes through the node (once a request)."""

    def on_release(self, node: NodeView, sequence: SequenceView) -> None:
        """The sequence leaves (it finished or was preempted); its path ends in the node."""

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        """`lower` was cut; `upper` is new, carries its stamps and counts, and has state None."""

    def on_evict(self, node: NodeView) -> None:
        """The node's last page leaves."""

    def victims(self, view: CacheView, need: int) -> Iterable[NodeView] | None:
        """Override to name victims directly: evictable leaves, until `need` pages are freed."""
        return None


class RoutingPolicy(ABC):
    """Picks the replica that will serve a request.

    One instance serves the whole fleet for one run. Hooks default to nothing and cost nothing
    unless overridden. A router sees its own requests come and go when they do (on_first_token,
    on_finish); what the replicas report (ReplicaView, on_store, on_trim) may be stale.
    """

    reads_cache: ClassVar[bool] = True
    """Whether choose() calls ReplicaView.peek. False saves the index over all caches, and peek
    raises PolicyError."""

    def on_start(self, replicas: tuple[ReplicaView, ...], cost: CostModel) -> None:
        """Called once, before anything else; choose() gets the same views."""

    @abstractmethod
    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The index of the replica that gets the request; it is dispatched at once."""

    def on_first_token(self, request: RequestView, replica: int, now: float) -> None:
        """The replica produced the request's first token: its prefill is over."""

    def on_finish(self, request: RequestView, replica: int, output_tokens: int, now: float) -> None:
        """The request left the replica with so many tokens; 0 if it was refused."""

    def on_store(self, replica: int, run: int, namespace: str, tokens: Tokens, start: int) -> None:
        """The replica has cached all of `tokens` (whole pages); what lies beyond depth `start` is
        new, and is from now on that replica's run of this number."""

    def on_trim(self, replica: int, run: int, end: int) -> None:
        """The replica dropped the run's tail: it ends at depth `end` (tokens) now, or is gone."""


class PolicyError(Exception):
    """A policy proposed something impossible; the message names the sequence and the policy."""
