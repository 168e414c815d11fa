"""Subject: the policy under examination, and what goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.core.policy import Delay, EvictionPolicy, Refuse, RoutingPolicy, SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies import registry
from testbed.policies.eviction.recency import Lru
from testbed.policies.routing.load import RoundRobin
from testbed.policies.scheduling.arrival import Fcfs


@dataclass(frozen=True)
class Subject:
    """A policy class and its parameters; every run makes new instances."""

    kind: registry.Kind
    policy: type[Any]
    parameters: Mapping[str, Any]

    @property
    def name(self) -> str:
        """`module:Class`."""
        return f"{self.policy.__module__}:{self.policy.__qualname__}"

    @property
    def call(self) -> str:
        """The class and its parameters, as source."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        return f"{self.policy.__name__}, {given}" if given else self.policy.__name__

    def make(self, policy: type[Any] | None = None) -> Any:
        """A new instance, of a subclass if one is given."""
        return (policy or self.policy)(**self.parameters)


@dataclass(frozen=True)
class Company:
    """One class of each kind: the one under examination, and plain ones."""

    scheduling: type[SchedulingPolicy] = Fcfs
    eviction: type[EvictionPolicy] = Lru
    routing: type[RoutingPolicy] = RoundRobin


class Gate(Fcfs):
    """First come, first served; delays every third request by 20 ms and refuses every seventh."""

    def on_start(self, view: SchedulerView) -> None:
        """Keep the view, for its clock."""
        self._view = view

    def on_arrival(self, sequence: SequenceView) -> Refuse | Delay | None:
        """By index."""
        if sequence.index % 7 == 6:
            return Refuse("every seventh is refused")
        due = sequence.arrival + 0.02
        return Delay(due) if sequence.index % 3 == 2 and self._view.now < due else None
