"""Eviction from queues in which a hit only leaves a mark: SIEVE and S3-FIFO, on a tree.

The queues hold nodes, oldest first. On a tree a node can go only as an unlocked leaf, so both walk
past the others; the halves of a split stand side by side, the lower one in front since it goes
first. With one page a prompt nothing is skipped, and both make libCacheSim's choices.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b

from testbed.core.policy import EvictionPolicy
from testbed.core.views import CacheView, NodeView, SchedulerView, SequenceView


class _Place:
    """A node's place in a queue, and its marks. tokens: what the queue counts for it."""

    __slots__ = ("newer", "node", "older", "prefix", "queue", "tokens", "uses")

    newer: _Place
    older: _Place
    queue: _Queue
    prefix: blake2b
    """S3-FIFO: has digested all tokens above the edge."""

    def __init__(self, node: NodeView, uses: int = 0) -> None:
        self.node = node
        self.uses = uses
        self.tokens = node.num_tokens

    @property
    def evictable(self) -> bool:
        return not self.node.num_children and not self.node.locks


class _Queue:
    """A linked list with its ends joined in `_end`; all O(1). tokens: of all its members."""

    def __init__(self) -> None:
        self._end = _Place.__new__(_Place)
        self._end.newer = self._end.older = self._end
        self.tokens = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def oldest(self) -> _Place | None:
        return self.after(self._end)

    def after(self, place: _Place) -> _Place | None:
        """The next newer one."""
        return None if place.newer is self._end else place.newer

    def append(self, place: _Place) -> None:
        """As the newest."""
        self.insert_after(self._end.older, place)

    def insert_after(self, older: _Place, place: _Place) -> None:
        place.older, place.newer = older, older.newer
        older.newer.older = place
        older.newer = place
        place.queue = self
        self.tokens += place.tokens
        self._length += 1

    def remove(self, place: _Place) -> None:
        place.older.newer = place.newer
        place.newer.older = place.older
        self.tokens -= place.tokens
        self._length -= 1

    def rotate(self, place: _Place) -> None:
        """Make it the newest."""
        self.remove(place)
        self.append(place)

    def split(self, upper: NodeView, lower: _Place) -> _Place:
        """The upper half's place, just behind the lower half."""
        self.recount(lower)
        place = _Place(upper, lower.uses)
        self.insert_after(lower, place)
        return place

    def recount(self, place: _Place) -> None:
        """The node is shorter than it was."""
        self.tokens += place.node.num_tokens - place.tokens
        place.tokens = place.node.num_tokens


class Sieve(EvictionPolicy):
    """The hand goes from old to new, takes the mark from used leaves, and evicts unused ones.

    SIEVE (NSDI'24), as in libCacheSim. A hit marks a node and moves nothing; a marked node loses
    its mark when the hand passes, leaf or not; locked and inner nodes are passed over. New nodes
    enter behind the hand's sweep, so one-time prompts leave at the next one; but what is new and
    good has one sweep to be used again. O(1) amortised without locks and children, else O(nodes).
    """

    def __init__(self) -> None:
        self._queue = _Queue()
        self._hand: _Place | None = None

    def priority(self, node: NodeView, now: int) -> int:
        """Unused: victims are named."""
        return node.created

    def victims(self, view: CacheView, need: int) -> Iterator[NodeView]:
        """What the hand stops at; it stays there until all of the leaf is gone."""
        while (place := self._next()) is not None:
            yield place.node

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        """Enter as the newest, unmarked."""
        node.state = _Place(node)
        self._queue.append(node.state)

    def on_touch(self, node: NodeView, sequence: SequenceView) -> None:
        """Mark it."""
        node.state.uses = 1

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        """Both halves have the mark and the place."""
        upper.state = self._queue.split(upper, lower.state)

    def on_evict(self, node: NodeView) -> None:
        """Leave the queue; the hand goes on."""
        place: _Place = node.state
        if self._hand is place:
            self._hand = self._queue.after(place)
        self._queue.remove(place)

    def _next(self) -> _Place | None:
        # Two rounds meet every leaf after its mark has been taken.
        for _ in range(2 * len(self._queue) + 1):
            place = self._hand or self._queue.oldest
            if place is None:
                return None
            self._hand = place
            if not place.uses and place.evictable:
                return place
            place.uses = 0
            self._hand = self._queue.after(place)
        return None


class S3Fifo(EvictionPolicy):
    """A small FIFO for what is new, a main FIFO for what was used, a ghost FIFO of what was not.

    S3-FIFO (SOSP'23) in the variant of libCacheSim's S3FIFO.c (0.3.5), with its defaults: new nodes
    enter the small queue (small_share of the pool; before the first eviction the main one once it
    is full), those in the ghost queue enter the main one. Evicting from the small queue, nodes used
    at least `threshold` times move to the main one, others leave and are noted in the ghost queue
    (ghost_share). The main queue evicts when it is over its share or the small one is empty; used
    nodes go round with one use less, of at most 3.

    On a tree: locked and inner nodes go round, uses unchanged. A ghost stands for the prefix that
    ends with the node's first page, so that a node which grows back otherwise is known by where it
    begins. Bursts with reuse distances beyond the small queue are taken for scans.
    O(1) amortised without locks and children, else O(nodes) an eviction; an insertion digests the
    parent's edge.
    """

    MAX_USES = 3

    def __init__(
        self, small_share: float = 0.1, ghost_share: float = 0.9, threshold: int = 2
    ) -> None:
        if not 0 < small_share < 1:
            raise ValueError(f"small_share={small_share}: between 0 and 1 is needed")
        if not 0 <= ghost_share <= 100:
            raise ValueError(f"ghost_share={ghost_share}: at least 0 and at most 100 is needed")
        if threshold < 1:
            raise ValueError(f"threshold={threshold}: at least 1 use is needed")
        self._small_share = small_share
        self._ghost_share = ghost_share
        self._threshold = threshold
        self._small = _Queue()
        self._main = _Queue()
        self._ghosts: OrderedDict[bytes, int] = OrderedDict()
        self._ghost_tokens = 0
        self._has_evicted = False
        self._shortened: _Place | None = None
        self._page_size = 1
        self._small_cap = self._main_cap = self._ghost_cap = 0

    def on_start(self, view: SchedulerView) -> None:
        """The pool is empty: all of it is free. The shares are whole pages, rounded down."""
        pages, size = view.cache.num_free_pages, view.cache.page_size
        self._page_size = size
        small = int(pages * self._small_share)
        self._small_cap = small * size
        self._main_cap = (pages - small) * size
        self._ghost_cap = int(pages * self._ghost_share) * size

    def priority(self, node: NodeView, now: int) -> int:
        """Unused: victims are named."""
        return node.created

    def victims(self, view: CacheView, need: int) -> Iterator[NodeView]:
        """The next of the queue whose turn it is."""
        self._has_evicted = True
        if self._shortened is not None:
            self._shortened.queue.recount(self._shortened)
        while (place := self._next()) is not None:
            self._shortened = place
            yield place.node

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        """Enter the small queue, or the main one if it is remembered."""
        place = node.state = _Place(node)
        parent = node.parent
        assert parent is not None
        if parent.parent is None:
            place.prefix = blake2b(sequence.namespace.encode(), digest_size=16)
        else:
            place.prefix = _extended(parent)
        remembered = self._ghosts.pop(self._ghost_of(place), None)
        if remembered is not None:
            self._ghost_tokens -= remembered
        small_is_full = self._small.tokens >= self._small_cap
        to_main = remembered is not None or (small_is_full and not self._has_evicted)
        (self._main if to_main else self._small).append(place)
        # Only now, so that the eviction that made room for the node has not pushed its ghost out.
        while self._ghost_tokens > self._ghost_cap:
            self._ghost_tokens -= self._ghosts.popitem(last=False)[1]

    def on_touch(self, node: NodeView, sequence: SequenceView) -> None:
        """Count it."""
        node.state.uses += 1

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        """Both halves have the uses and the place."""
        place: _Place = lower.state
        upper.state = place.queue.split(upper, place)
        upper.state.prefix = place.prefix
        place.prefix = _extended(upper)

    def on_evict(self, node: NodeView) -> None:
        """Leave the queue; out of the small one, leave a ghost."""
        place: _Place = node.state
        place.queue.remove(place)
        if place is self._shortened:
            self._shortened = None
        if place.queue is self._small:
            self._ghosts[self._ghost_of(place)] = place.tokens
            self._ghost_tokens += place.tokens

    def _next(self) -> _Place | None:
        if self._main.tokens > self._main_cap or not self._small:
            return self._of_main() or self._of_small() or self._of_main()
        return self._of_small() or self._of_main()

    def _of_small(self) -> _Place | None:
        """The oldest leaf that was not used enough; others on the way move to the main queue."""
        small = self._small
        for _ in range(len(small)):
            place = small.oldest
            assert place is not None
            if place.uses >= self._threshold:
                small.remove(place)
                place.uses = 0
                self._main.append(place)
            elif place.evictable:
                return place
            else:
                small.rotate(place)
        return None

    def _of_main(self) -> _Place | None:
        """The first leaf without uses left."""
        main = self._main
        # After as many rounds as a node can have uses, none has any.
        for _ in range((self.MAX_USES + 1) * len(main)):
            place = main.oldest
            assert place is not None
            if place.evictable:
                if not place.uses:
                    return place
                place.uses = min(place.uses, self.MAX_USES) - 1
            main.rotate(place)
        return None

    def _ghost_of(self, place: _Place) -> bytes:
        digest = place.prefix.copy()
        digest.update(place.node.tokens[: self._page_size].tobytes())
        return digest.digest()


def _extended(node: NodeView) -> blake2b:
    """What has digested everything down to the end of the node's edge."""
    prefix: blake2b = node.state.prefix.copy()
    prefix.update(node.tokens.tobytes())
    return prefix
