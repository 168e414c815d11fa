"""ApproximateTree: what a router believes the caches hold, from what it sent where."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from testbed.core.token_tree import TokenTree, TreeNode
from testbed.core.views import RequestView


class ApproximateTree(TokenTree):
    """Prompts by prefix; each node notes when each replica was last sent (or asked for) it.

    Mirrors the tree of SGLang's cache_aware gateway, which learns nothing of real evictions and
    forgets by itself: per replica, least recently used leaves first. A node's state maps replicas
    to the number of the newest request that used it there.
    """

    def __init__(self, replicas: int, page_size: int) -> None:
        super().__init__(page_size)
        self.sizes = [0] * replicas
        """Tokens noted for each replica."""
        self._clock = 0

    def new_state(self) -> dict[int, int]:
        """Nobody was sent it."""
        return {}

    def divide_state(self, lower: dict[int, int], depth: int) -> dict[int, int]:
        """Whoever has an edge has both halves."""
        return dict(lower)

    def longest(self, request: RequestView) -> tuple[int, int | None]:
        """The longest known prefix in tokens, and who used the node where it ends last; it counts
        as used there now. (0, None) without any."""
        path = self.match(request.prompt, request.namespace)
        if not path:
            return 0, None
        node, length = path[-1]
        users: dict[int, int] = node.state
        replica = max(users, key=users.__getitem__)
        self._clock += 1
        for passed, _ in path:
            passed.state[replica] = self._clock
        return length, replica

    def note(self, request: RequestView, replica: int) -> None:
        """The request was sent to the replica."""
        self._clock += 1
        for node in self.insert(request.prompt, request.namespace):
            if replica not in node.state:
                self.sizes[replica] += node.end - node.start
            node.state[replica] = self._clock

    def shrink(self, max_size: int) -> None:
        """Forget each replica's least recently used leaves until it has max_size tokens or fewer;
        O(nodes) if any has more."""
        if max(self.sizes) <= max_size:
            return
        leaves: list[tuple[int, int, TreeNode]] = []
        nodes = [child for root in self._roots.values() for child in root.children.values()]
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            leaves += ((s, r, node) for r, s in node.state.items() if self._is_leaf(node, r))
        # No two nodes of a heap compare: a replica has a stamp once among its leaves, since each
        # request stamps one path.
        heapify(leaves)
        while leaves:
            _, replica, node = heappop(leaves)
            if self.sizes[replica] <= max_size:
                continue
            del node.state[replica]
            self.sizes[replica] -= node.end - node.start
            if not node.state:
                self.remove(node)
            parent = node.parent
            if parent is not None and replica in parent.state and self._is_leaf(parent, replica):
                heappush(leaves, (parent.state[replica], replica, parent))

    @staticmethod
    def _is_leaf(node: TreeNode, replica: int) -> bool:
        return not any(replica in child.state for child in node.children.values())
