"""Everything a policy author imports: the interface, the outcomes and the views."""

from testbed.core.cost import CostModel
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
from testbed.core.replica_view import ReplicaView
from testbed.core.token_tree import TokenTree, TreeNode
from testbed.core.views import (
    CacheView,
    ClientView,
    NodeView,
    OracleView,
    RequestView,
    SchedulerView,
    SequenceView,
    WaitingView,
)
from testbed.policies.registry import register

__all__ = [
    "NO_BUDGET",
    "NO_MEMORY",
    "Admitted",
    "CacheView",
    "ClientView",
    "CostModel",
    "Delay",
    "EvictionPolicy",
    "NodeView",
    "OracleView",
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
    "TokenTree",
    "TreeNode",
    "WaitingView",
    "register",
]
