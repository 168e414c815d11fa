"""Routing by a global tree of recent prompts and the load that they cause: Preble's E2."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from testbed.core.cost import CostModel
from testbed.core.replica_view import ReplicaView
from testbed.core.token_tree import TokenTree, TreeNode
from testbed.core.views import RequestView
from testbed.policies.routing.load import CountingRouter

ARTIFACT_TPOT_S = 0.15
ARTIFACT_OUTPUT_TOKENS = 45
"""What Preble's artifact assumes before it has seen anything."""
REQUESTS_BEFORE_REBALANCING = 50
"""For each replica, as in the artifact."""


class _Part:
    """A node's share in the recent past. `load`, in seconds, is booked on each of `weighed`."""

    __slots__ = ("load", "misses", "replicas", "requests", "weighed")

    def __init__(self, replicas: dict[int, None], requests: int) -> None:
        self.replicas = replicas
        self.requests = requests
        self.misses = 0
        self.load = 0.0
        self.weighed: tuple[int, ...] = ()


class _Recent(NamedTuple):
    """One request in the window."""

    time: float
    leaf: TreeNode
    important: TreeNode
    missed: bool


class _PromptTree(TokenTree):
    def new_state(self) -> _Part:
        return _Part({}, 0)

    def divide_state(self, lower: _Part, depth: int) -> _Part:
        return _Part(dict(lower.replicas), lower.requests)


class _Mean:
    """The mean of what was added, starting from one observation of `first`."""

    def __init__(self, first: float) -> None:
        self._sum = first
        self._count = 1

    def add(self, value: float) -> None:
        self._sum += value
        self._count += 1

    @property
    def value(self) -> float:
        return self._sum / self._count


class PrebleE2(CountingRouter):
    """Preble's E2, exploit or explore (arXiv 2407.00023; artifact WukLab/preble,
    global_scheduler_with_time.py).

    A global tree holds the prompts of the last `window` seconds, each node with the replicas they
    went to. If more of the prompt is in the tree than is new, exploit: the least loaded of the
    replicas of the deepest node matched. Else explore: the least loaded of all. A replica's load in
    seconds is the sum over its important nodes of misses in the window * prefill time of the node /
    replicas of the node, plus requests in flight * mean output * mean time per output token. The
    important node of a request is the deepest one on its path that is longer than all before it; it
    is missed by a request that goes where the node was not.

    After 50 requests a replica, once every `replicas` requests: while the heaviest load exceeds
    rebalance_ratio * the lightest, the heaviest's cheapest nodes move there with all below them,
    as long as that does not turn the order around. If its only node is too hot to move and its mean
    TTFT has doubled from one window to the next, the node is replicated to the lightest.

    Ours: the prefill time comes from the CostModel, means are over the whole fleet and run, and the
    artifact rebalances at every request. Its optional eviction cost is left out. A prefix unused
    for a window is forgotten, cached or not; the tree never learns of evictions.
    """

    def __init__(self, window: float = 180.0, rebalance_ratio: float = 1.5) -> None:
        super().__init__()
        if not window > 0:
            raise ValueError(f"window={window}: seconds above 0 are needed")
        if not rebalance_ratio >= 1:
            raise ValueError(f"rebalance_ratio={rebalance_ratio}: at least 1 is needed")
        self._window = window
        self._ratio = rebalance_ratio
        self._recent: deque[_Recent] = deque()
        self._tree = _PromptTree()
        self._routed = 0
        self._output = _Mean(ARTIFACT_OUTPUT_TOKENS)
        self._tpot = _Mean(ARTIFACT_TPOT_S)
        self._first_tokens: dict[int, float] = {}

    def on_start(self, replicas: tuple[ReplicaView, ...], cost: CostModel) -> None:
        """No load, no nodes."""
        super().on_start(replicas, cost)
        self._cost = cost
        self._prefill_load = [0.0] * len(replicas)
        self._weighing: list[dict[TreeNode, None]] = [{} for _ in replicas]
        # TTFT by replica: the last window's and this one's.
        self._ttft: list[tuple[_Mean | None, _Mean | None]] = [(None, None)] * len(replicas)
        self._next_turn = self._window

    def pick(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """Where most of the prompt was computed lately, or the least loaded replica."""
        self._forget(now)
        matched = self._tree.match(request.prompt, request.namespace)
        known = matched[-1][1] if matched else 0
        exploits = known > request.num_prompt_tokens - known
        among = matched[-1][0].state.replicas if exploits else range(len(replicas))
        chosen = min(among, key=lambda replica: (self._load(replica), replica))
        self._book(self._tree.insert(request.prompt, request.namespace), chosen, now)
        self._routed += 1
        settled = self._routed >= REQUESTS_BEFORE_REBALANCING * len(replicas)
        if settled and self._routed % len(replicas) == 0:
            self._rebalance()
        return chosen

    def on_first_token(self, request: RequestView, replica: int, now: float) -> None:
        """Note the TTFT."""
        self._first_tokens[request.id] = now
        if now >= self._next_turn:
            self._next_turn = now + self._window
            self._ttft = [(current, None) for _, current in self._ttft]
        last, current = self._ttft[replica]
        if current is None:
            self._ttft[replica] = last, _Mean(now - request.arrival)
        else:
            current.add(now - request.arrival)

    def on_finish(self, request: RequestView, replica: int, output_tokens: int, now: float) -> None:
        """Note output length and time per output token."""
        super().on_finish(request, replica, output_tokens, now)
        first = self._first_tokens.pop(request.id, now)
        if output_tokens > 1:
            self._output.add(output_tokens)
            self._tpot.add((now - first) / (output_tokens - 1))

    def _load(self, replica: int) -> float:
        decode = self.in_flight[replica] * self._output.value * self._tpot.value
        return self._prefill_load[replica] + decode

    # ---- the window

    def _book(self, path: list[TreeNode], replica: int, now: float) -> None:
        important = next(node for node in reversed(path) if node.end - node.start > node.start)
        missed = replica not in important.state.replicas
        important.state.misses += missed
        for node in path:
            node.state.requests += 1
        self._assign(path, replica)
        if missed:
            self._weigh(important)
        self._recent.append(_Recent(now, path[-1], important, missed))

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0].time <= now - self._window:
            old = self._recent.popleft()
            if old.missed:
                old.important.state.misses -= 1
                self._weigh(old.important)
            for node in _upwards(old.leaf):
                node.state.requests -= 1
                if not node.state.requests:
                    node.state.misses = 0
                    self._weigh(node)
                    self._tree.remove(node)

    def _assign(self, nodes: Iterable[TreeNode], replica: int) -> None:
        for node in nodes:
            if replica not in node.state.replicas:
                node.state.replicas[replica] = None
                if node.state.load:
                    self._weigh(node)

    def _weigh(self, node: TreeNode) -> None:
        """Book the load of a node anew: its misses, replicas or length changed."""
        part: _Part = node.state
        for replica in part.weighed:
            self._prefill_load[replica] -= part.load
            del self._weighing[replica][node]
        part.load, part.weighed = 0.0, ()
        if part.misses:
            seconds = self._cost.prefill_seconds(node.start, node.end - node.start)
            part.load = part.misses * seconds / len(part.replicas)
            part.weighed = tuple(part.replicas)
        for replica in part.weighed:
            self._prefill_load[replica] += part.load
            self._weighing[replica][node] = None

    # ---- rebalancing

    def _rebalance(self) -> None:
        loads = [self._load(replica) for replica in range(len(self.in_flight))]
        heavy, light = loads.index(max(loads)), loads.index(min(loads))
        nodes = sorted(self._weighing[heavy], key=lambda node: float(node.state.load))
        moved = False
        for node in nodes:
            if self._load(heavy) <= self._ratio * self._load(light):
                return
            load = node.state.load
            if light in node.state.replicas or node not in self._weighing[heavy]:
                continue
            if self._load(light) + load <= self._load(heavy) - load:
                self._move(node, heavy, light)
                moved = True
        if not moved and len(nodes) == 1 and self._slowed_down(heavy):
            self._assign(_upwards(nodes[0]), light)

    def _move(self, node: TreeNode, heavy: int, light: int) -> None:
        below = [node]
        while below:
            lower = below.pop()
            below += lower.children.values()
            if heavy in lower.state.replicas:
                del lower.state.replicas[heavy]
                lower.state.replicas[light] = None
                if lower.state.load:
                    self._weigh(lower)
        self._assign(_upwards(node), light)

    def _slowed_down(self, replica: int) -> bool:
        last, current = self._ttft[replica]
        return last is not None and current is not None and current.value > 2 * last.value


def _upwards(node: TreeNode | None) -> Iterator[TreeNode]:
    while node is not None and node.parent is not None:
        yield node
        node = node.parent
