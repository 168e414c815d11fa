"""RadixCache against a naive reference, checked after every one of random operations."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from testbed.core.page_pool import PagePool
from testbed.core.policy import EvictionPolicy
from testbed.core.prefix_cache import owned_pages
from testbed.core.radix_cache import RadixCache
from testbed.core.radix_tree import Node
from testbed.core.request import Sequence
from testbed.policies.eviction.frequency import Lfu
from testbed.policies.eviction.recency import Fifo, Lru
from tests.core.building import CacheDriver, Listener, Mru, tokens_of
from tests.core.naive_radix import NaiveRadix, Prefix, Rank

EVICTIONS: MappingProxyType[str, tuple[type[EvictionPolicy], Rank]] = MappingProxyType(
    {
        "lru": (Lru, lambda page: page.last_access),
        "lfu": (Lfu, lambda page: (page.hits, page.last_access)),
        "fifo": (Fifo, lambda page: page.created),
        "mru": (Mru, lambda page: -page.last_access),
    }
)
letters = st.lists(st.integers(0, 2), max_size=5)
place = st.integers(0, 100)
namespaces = st.sampled_from(["", "", "", "n"])


class RadixMachine(RuleBasedStateMachine):
    """Waits, admits, computes, decodes, finishes, aborts and evicts in any order that is legal."""

    page_size: ClassVar[int]

    @initialize(
        num_pages=st.integers(6, 24),
        eviction=st.sampled_from(sorted(EVICTIONS)),
        by_node=st.booleans(),
        touch_lower=st.booleans(),
    )
    def build(self, num_pages: int, eviction: str, by_node: bool, touch_lower: bool) -> None:
        policy, rank = EVICTIONS[eviction]
        self.listener = Listener()
        self.cache = RadixCache(
            PagePool(num_pages),
            self.page_size,
            policy(),
            self.listener,
            "node" if by_node else "page",
            "sglang" if touch_lower else "ideal",
        )
        self.driver = CacheDriver(self.cache)
        self.naive = NaiveRadix(num_pages, self.page_size, rank, by_node, touch_lower)
        self.reported: dict[int, int] = {}
        self.prompts: list[list[int]] = [[3]]

    def prompt(self, letters: list[int], tail: int) -> list[int]:
        """Whole pages of three kinds, two of which differ in their last token only; then a tail."""
        size = self.page_size
        pages = ([0] * size, [1] * size, [0] * (size - 1) + [2])
        return [token for letter in letters for token in pages[letter]] + [3] * (tail % size)

    def pick(self, among: dict[Sequence, None], place: int) -> Sequence:
        return list(among)[place % len(among)]

    def owned(self) -> int:
        return sum(len(owned_pages(sequence)) for sequence in self.driver.running)

    @rule()
    def tick(self) -> None:
        self.driver.tick()
        self.naive.step += 1

    @rule(letters=letters, tail=place, output=st.integers(1, 3), namespace=namespaces)
    def wait(self, letters: list[int], tail: int, output: int, namespace: str) -> None:
        self.arrive(self.prompt(letters, tail), output, namespace)

    @rule(earlier=place, keep=place, letters=letters, namespace=namespaces)
    def wait_with_a_known_prefix(
        self, earlier: int, keep: int, letters: list[int], namespace: str
    ) -> None:
        known = self.prompts[earlier % len(self.prompts)]
        whole_pages = len(known) // self.page_size + 1
        self.arrive(
            known[: keep % whole_pages * self.page_size] + self.prompt(letters, 0), 1, namespace
        )

    def arrive(self, prompt: list[int], output: int, namespace: str) -> Sequence:
        self.prompts.append(prompt or [3])
        # Outputs are made of prompt tokens, so that prompts go on where one ended now and then.
        sequence = self.driver.wait(prompt or [3], [0] * output, namespace)
        self.reported[sequence.request.id] = sequence.num_matched_tokens
        return sequence

    @rule(letters=letters, tail=place, namespace=namespaces)
    def serve(self, letters: list[int], tail: int, namespace: str) -> None:
        """A request from arrival to finish, so that there is something to share."""
        sequence = self.arrive(self.prompt(letters, tail), 1, namespace)
        if self.enter(sequence):
            self.advance(sequence, len(sequence.tokens))
            self.leave(sequence)

    @precondition(lambda self: self.driver.waiting)
    @rule(place=place)
    def admit(self, place: int) -> None:
        self.enter(self.pick(self.driver.waiting, place))

    def enter(self, sequence: Sequence) -> bool:
        """Admit the sequence if its prompt fits."""
        if self.driver.shortage(sequence) > 0:
            return False
        cached = min(self.naive.match(sequence), len(sequence.tokens) - 1)
        cached -= cached % self.page_size
        self.naive.acquire(sequence, cached)
        fresh = -(-len(sequence.tokens) // self.page_size) - cached // self.page_size
        self.naive.take(fresh, self.owned())
        assert self.driver.admit(sequence) == cached
        return True

    @precondition(lambda self: self.driver.waiting)
    @rule(place=place)
    def touch(self, place: int) -> None:
        sequence = self.pick(self.driver.waiting, place)
        self.naive.touch(sequence)
        self.cache.touch_match(sequence)

    @precondition(lambda self: self.driver.running)
    @rule(place=place, pages=st.integers(1, 4))
    def compute(self, place: int, pages: int) -> None:
        sequence = self.pick(self.driver.running, place)
        done = self.driver.computed[sequence]
        until = min(done - done % self.page_size + pages * self.page_size, len(sequence.tokens))
        if until > done:
            self.advance(sequence, until)

    def advance(self, sequence: Sequence, until: int) -> None:
        self.naive.publish(sequence, sequence.tokens[:until].tolist())
        self.driver.compute(sequence, until)

    @precondition(lambda self: self.driver.running)
    @rule(place=place)
    def decode(self, place: int) -> None:
        sequence = self.pick(self.driver.running, place)
        if not self.driver.can_decode(sequence):
            return
        if self.driver.needs_page(sequence):
            self.naive.take(1, self.owned())
        self.driver.decode(sequence)

    @precondition(lambda self: self.driver.running)
    @rule(place=place)
    def finish(self, place: int) -> None:
        self.leave(self.pick(self.driver.running, place))

    def leave(self, sequence: Sequence) -> None:
        known = self.driver.known(sequence).tolist()
        self.naive.publish(sequence, known[: self.driver.computed[sequence]])
        self.naive.release(sequence)
        self.driver.finish(sequence)

    @precondition(lambda self: self.driver.running)
    @rule(place=place)
    def abort(self, place: int) -> None:
        sequence = self.pick(self.driver.running, place)
        self.naive.release(sequence)
        self.driver.abort(sequence)

    @precondition(lambda self: self.cache.num_evictable_pages)
    @rule(place=place)
    def evict(self, place: int) -> None:
        pages = 1 + place % self.cache.num_evictable_pages
        self.naive.take(self.cache.num_free_pages + pages, self.owned())
        self.driver.evict(pages)

    @invariant()
    def books_balance(self) -> None:
        self.driver.check()

    @invariant()
    def tree_is_the_naive_set(self) -> None:
        found: dict[Prefix, Node] = {}
        for node in self.cache.tree.nodes():
            for number, page in enumerate(node.pages.tolist(), start=1):
                end = node.start + number * self.page_size
                prefix = (namespace_of(node, self.cache), tokens_to(node)[:end])
                assert self.driver.written[page] == prefix
                found[prefix] = node
        assert found.keys() == self.naive.pages.keys()
        for prefix, node in found.items():
            page = self.naive.pages[prefix]
            assert (node.last_access, node.created, node.hits, node.locks, node.serial) == (
                page.last_access,
                page.created,
                page.hits,
                page.locks,
                page.serial,
            )

    @invariant()
    def matches_are_current(self) -> None:
        self.reported.update(self.listener.matches)
        self.listener.matches.clear()
        for sequence in self.driver.waiting:
            namespace = sequence.request.namespace
            fresh = self.cache.peek(tokens_of(sequence.tokens.tolist()), namespace)
            assert sequence.num_matched_tokens == fresh == self.naive.match(sequence)
            assert self.reported[sequence.request.id] == fresh

    @invariant()
    def waiting_sequences_are_counted_where_their_match_ends(self) -> None:
        for node in [*self.cache.tree.roots(), *self.cache.tree.nodes()]:
            key = namespace_of(node, self.cache), tokens_to(node)
            below = [s for s in self.driver.waiting if reaches(s, key, node.start)]
            assert node.num_waiting == len(below)
            for sequence in below:
                ends_here = sequence.num_matched_tokens <= node.end
                assert (sequence.view.match_node is node.view) == ends_here


def tokens_to(node: Node) -> tuple[int, ...]:
    """All tokens from the root to the end of the node's edge."""
    return tuple(t for passed in reversed(list(node.path())) for t in passed.tokens.tolist())


def namespace_of(node: Node, cache: RadixCache) -> str:
    while node.parent is not None:
        node = node.parent
    return next(name for name in ("", "n") if cache.tree.root(name) is node)


def reaches(sequence: Sequence, key: Prefix, start: int) -> bool:
    """Whether the sequence's match enters the edge from `start` to the end of `key`."""
    namespace, tokens = key
    matched = sequence.num_matched_tokens
    if sequence.request.namespace != namespace or (matched <= start and start < len(tokens)):
        return False
    common = min(matched, len(tokens))
    return tuple(sequence.tokens[:common].tolist()) == tokens[:common]


def machine(size: int) -> type[RadixMachine]:
    return type(f"PageSize{size}", (RadixMachine,), {"page_size": size})


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_any_order_of_operations(page_size: int) -> None:
    limits = settings(max_examples=60, stateful_step_count=40)
    run_state_machine_as_test(machine(page_size), settings=limits)
