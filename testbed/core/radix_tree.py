"""RadixTree: token prefixes, one compressed edge per node, each edge owning the pages of its KV.

Structure only: match, split, grow, shrink, lock. No policy, no clock, no pool. All depths and
lengths are in tokens and multiples of the page size; children are keyed by their first page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from testbed.core.page_pool import EMPTY_PAGES, Pages
from testbed.core.request import EMPTY_TOKENS, Sequence, Tokens
from testbed.core.views import NodeView


class Node:
    """One edge and what hangs below it. Only RadixTree, RadixCache and MatchTracker write to it."""

    __slots__ = (
        "children",
        "created",
        "end",
        "entry",
        "hits",
        "key",
        "last_access",
        "locks",
        "num_waiting",
        "pages",
        "parent",
        "partial_waiters",
        "serial",
        "state",
        "tokens",
        "view",
        "waiters",
    )

    tokens: Tokens
    pages: Pages
    key: bytes
    """First page of the edge: the parent's dictionary key."""
    end: int
    """Depth at the end of the edge."""
    entry: int
    """Number of the live entry in the eviction index; 0 if none."""
    num_waiting: int
    """Waiting sequences whose match ends here or below."""
    waiters: dict[bytes, dict[Sequence, None]]
    """Waiting sequences whose match ends exactly here, by the page they would need next."""
    partial_waiters: dict[Sequence, None]
    """Waiting sequences whose match ends inside the edge."""

    def __init__(self, parent: Node | None, key: bytes, tokens: Tokens, pages: Pages) -> None:
        self.parent = parent
        self.key = key
        self.tokens = tokens
        self.pages = pages
        self.end = (parent.end if parent is not None else 0) + len(tokens)
        self.children: dict[bytes, Node] = {}
        self.locks = 0
        self.last_access = 0
        self.created = 0
        self.hits = 0
        self.serial = 0
        self.entry = 0
        self.num_waiting = 0
        self.state: Any = None
        self.waiters = {}
        self.partial_waiters = {}
        self.view = NodeView(self)

    @property
    def start(self) -> int:
        """Depth at the beginning of the edge."""
        return self.end - len(self.tokens)

    @property
    def evictable(self) -> bool:
        """Whether the node may go now: a leaf of the tree that nobody locks."""
        return not self.locks and not self.children and self.parent is not None

    def path(self) -> Iterator[Node]:
        """This node and its ancestors, deepest first, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class RadixTree:
    """Prefixes of whole pages, each namespace under a root of its own."""

    __slots__ = (
        "_next_serial",
        "_roots",
        "num_locked_pages",
        "num_nodes",
        "num_pages",
        "page_size",
    )

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = 0
        self.num_locked_pages = 0
        self.num_nodes = 0
        self._roots: dict[str, Node] = {}
        self._next_serial = 1

    def root(self, namespace: str) -> Node:
        """The namespace's root, made at first use: depth 0, never locked, never removed."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(None, b"", EMPTY_TOKENS, EMPTY_PAGES)
            root.serial = len(self._roots)
        return root

    def knows(self, namespace: str) -> bool:
        """Whether the namespace has a root yet."""
        return namespace in self._roots

    def match(self, tokens: Tokens, namespace: str = "") -> tuple[Node, int]:
        """The longest resident prefix of whole pages: the node where it ends, and its length.

        The match may end inside the node's edge; without a match the node is the namespace's root.
        """
        node = self.root(namespace)
        size = self.page_size
        limit = len(tokens) - len(tokens) % size
        depth = 0
        while depth < limit:
            child = node.children.get(tokens[depth : depth + size].tobytes())
            if child is None:
                break
            node = child
            common = self._common(child.tokens, tokens, depth, limit)
            depth += common
            if depth < child.end:
                break
        return node, depth

    def extend_match(self, node: Node, tokens: Tokens, depth: int) -> int:
        """Where a match of `tokens` ends that reached the start of the node's edge, at `depth`."""
        limit = len(tokens) - len(tokens) % self.page_size
        return depth + self._common(node.tokens, tokens, depth, limit)

    def _common(self, edge: Tokens, tokens: Tokens, depth: int, limit: int) -> int:
        """Common length of the edge and tokens[depth:limit], whose first page is known equal."""
        length = min(len(edge), limit - depth)
        # Position 0 is equal, so argmax finds the first difference, or 0 if there is none.
        differs = edge[:length] != tokens[depth : depth + length]
        common = int(differs.argmax()) or length
        return common - common % self.page_size

    def split(self, node: Node, depth: int) -> Node:
        """Cut the node's edge at `depth`, strictly inside it; returns the new upper half.

        The lower half stays the same object, so whoever holds the node still holds its end. The
        upper half carries the same locks, stamps and counts.
        """
        parent = node.parent
        assert parent is not None and node.start < depth < node.end
        cut = depth - node.start
        pages = cut // self.page_size
        upper = Node(parent, node.key, node.tokens[:cut].copy(), node.pages[:pages].copy())
        upper.locks = node.locks
        upper.last_access = node.last_access
        upper.created = node.created
        upper.hits = node.hits
        upper.serial = node.serial
        parent.children[node.key] = upper
        node.tokens = node.tokens[cut:].copy()
        node.pages = node.pages[pages:].copy()
        node.key = node.tokens[: self.page_size].tobytes()
        node.parent = upper
        upper.children[node.key] = node
        self.num_nodes += 1
        return upper

    def add_leaf(self, parent: Node, tokens: Tokens, pages: Pages) -> Node:
        """Hang copies of `tokens` (whole pages, at least one) and their pages below `parent`."""
        key = tokens[: self.page_size].tobytes()
        leaf = Node(parent, key, tokens.copy(), pages.copy())
        leaf.serial = self._next_serial
        self._next_serial += 1
        parent.children[key] = leaf
        self.num_nodes += 1
        self.num_pages += len(pages)
        return leaf

    def truncate(self, leaf: Node, num_pages: int) -> Pages:
        """Cut `num_pages` pages, but not all, from the tail of an unlocked leaf; returns them."""
        keep = len(leaf.pages) - num_pages
        assert leaf.evictable and keep > 0
        dropped = leaf.pages[keep:]
        leaf.pages = leaf.pages[:keep]
        leaf.tokens = leaf.tokens[: keep * self.page_size]
        leaf.end -= num_pages * self.page_size
        base = leaf.tokens.base
        # A slice keeps the whole edge alive; copy once it has halved, which is O(1) amortised.
        if base is not None and base.size > 2 * leaf.tokens.size:
            leaf.tokens = leaf.tokens.copy()
            leaf.pages = leaf.pages.copy()
        self.num_pages -= num_pages
        return dropped

    def remove(self, leaf: Node) -> Pages:
        """Take an unlocked leaf out of the tree; returns the ids of its pages."""
        parent = leaf.parent
        assert leaf.evictable and parent is not None
        del parent.children[leaf.key]
        leaf.parent = None
        # Without the cycle its memory returns now, not at the next garbage collection.
        del leaf.view
        self.num_nodes -= 1
        self.num_pages -= len(leaf.pages)
        return leaf.pages

    def lock(self, node: Node, above: Node | None = None) -> None:
        """Count one more passing sequence on every node from `node` up to below `above`."""
        while node is not above and node.parent is not None:
            if not node.locks:
                self.num_locked_pages += len(node.pages)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo one lock of the path that ends at `node`."""
        while node.parent is not None:
            if node.locks < 1:
                raise ValueError(f"unlock without lock: {node.view!r}")
            node.locks -= 1
            if not node.locks:
                self.num_locked_pages -= len(node.pages)
            node = node.parent

    def roots(self) -> Iterator[Node]:
        """Every namespace's root, by first use."""
        return iter(self._roots.values())

    def nodes(self) -> Iterator[Node]:
        """Every node but the roots, parents first, siblings by insertion: O(nodes)."""
        stack = list(reversed(self._roots.values()))
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(reversed(node.children.values()))
