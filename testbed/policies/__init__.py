"""Everything a policy author imports: the interface, the outcomes and the views."""

from testbed.core.policy import (
    NO_BUDGET,
    NO_MEMORY,
    Admitted,
    Delay,
    EvictionPolicy,
    Outcome,
    PolicyError,
    Proposals,
    Refuse,
    RoutingPolicy,
    SchedulingPolicy,
)
from testbed.core.views import (
    CacheView,
    ClientView,
    NodeView,
    ReplicaView,
    RequestView,
    SchedulerView,
    SequenceView,
    WaitingView,
)

__all__ = [
    "NO_BUDGET",
    "NO_MEMORY",
    "Admitted",
    "CacheView",
    "ClientView",
    "Delay",
    "EvictionPolicy",
    "NodeView",
    "Outcome",
    "PolicyError",
    "Proposals",
    "Refuse",
    "ReplicaView",
    "RequestView",
    "RoutingPolicy",
    "SchedulerView",
    "SchedulingPolicy",
    "SequenceView",
    "WaitingView",
]
