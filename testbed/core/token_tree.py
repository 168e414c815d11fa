"""TokenTree: token prefixes with one compressed edge a node, for indexes that hold no pages."""

from __future__ import annotations

from typing import Any

from testbed.core.request import EMPTY_TOKENS, Tokens


class TreeNode:
    """One edge; `state` belongs to whoever owns the tree.

    A removed node keeps its parent, so that whoever still points to it finds its way up.
    """

    __slots__ = ("children", "end", "key", "parent", "start", "state", "tokens")

    def __init__(self, parent: TreeNode | None, key: bytes, tokens: Tokens, state: Any) -> None:
        self.parent = parent
        self.key = key
        self.tokens = tokens
        self.start: int = 0 if parent is None else parent.end
        """Depth in tokens at the beginning of the edge."""
        self.end: int = self.start + len(tokens)
        """Depth in tokens at the end of the edge."""
        self.children: dict[bytes, TreeNode] = {}
        self.state = state


class TokenTree:
    """Prefixes of whole pages, each namespace under a root of its own.

    Subclasses say what a new node's state is, and how a split divides it.
    """

    def __init__(self, page_size: int = 1) -> None:
        self.page_size = page_size
        self.num_nodes = 0
        self._roots: dict[str, TreeNode] = {}

    def new_state(self) -> Any:
        """The state of a node that nobody has used yet."""

    def divide_state(self, lower: Any, depth: int) -> Any:
        """The state of the new upper half of a node cut at `depth`; `lower` may be changed."""

    def match(self, tokens: Tokens, namespace: str = "") -> list[tuple[TreeNode, int]]:
        """The nodes along the longest known prefix, each with the depth that the match reaches in
        it; only the last can be matched in part. O(nodes on the path + matched tokens)."""
        found: list[tuple[TreeNode, int]] = []
        node = self._roots.get(namespace)
        size = self.page_size
        limit = len(tokens) - len(tokens) % size
        depth = 0
        while node is not None and depth < limit:
            child = node.children.get(tokens[depth : depth + size].tobytes())
            if child is None:
                break
            depth = self._extend(child, tokens, limit)
            found.append((child, depth))
            node = child if depth == child.end else None
        return found

    def insert(self, tokens: Tokens, namespace: str = "") -> list[TreeNode]:
        """The nodes from below the root to the end of the whole pages of `tokens`, made where they
        are missing; the last one ends exactly there."""
        size = self.page_size
        limit = len(tokens) - len(tokens) % size
        node = self._roots.get(namespace)
        if node is None:
            node = self._roots[namespace] = TreeNode(None, b"", EMPTY_TOKENS, self.new_state())
        path: list[TreeNode] = []
        depth = 0
        while depth < limit:
            key = tokens[depth : depth + size].tobytes()
            child = node.children.get(key)
            if child is None:
                child = TreeNode(node, key, tokens[depth:limit].copy(), self.new_state())
                node.children[key] = child
                self.num_nodes += 1
                path.append(child)
                break
            depth = self._extend(child, tokens, limit)
            if depth < child.end:
                child = self._split(child, depth)
            path.append(child)
            node = child
        return path

    def remove(self, node: TreeNode) -> None:
        """Take a node without children out of the tree."""
        assert node.parent is not None and not node.children
        del node.parent.children[node.key]
        self.num_nodes -= 1

    def _extend(self, node: TreeNode, tokens: Tokens, limit: int) -> int:
        """Where a match that reached the node's edge, and its first page, ends in it."""
        start = node.start
        length = min(len(node.tokens), limit - start)
        differs = node.tokens[:length] != tokens[start : start + length]
        # Position 0 is equal, so argmax finds the first difference, or 0 if there is none.
        common = int(differs.argmax()) or length
        return start + common - common % self.page_size

    def _split(self, node: TreeNode, depth: int) -> TreeNode:
        """Cut an edge inside it; the lower half stays the same object, the upper is returned."""
        parent = node.parent
        assert parent is not None and node.start < depth < node.end
        cut = depth - node.start
        upper = TreeNode(parent, node.key, node.tokens[:cut].copy(), None)
        upper.state = self.divide_state(node.state, depth)
        parent.children[node.key] = upper
        node.tokens = node.tokens[cut:].copy()
        node.key = node.tokens[: self.page_size].tobytes()
        node.start = depth
        node.parent = upper
        upper.children[node.key] = node
        self.num_nodes += 1
        return upper
