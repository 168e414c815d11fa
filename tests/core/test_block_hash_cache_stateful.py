"""BlockHashCache against a naive block pool, block by block, after every random operation."""

from __future__ import annotations

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

from testbed.core.block_hash_cache import BlockHashCache
from testbed.core.request import Sequence
from tests.core.building import CacheDriver, Listener

Identity = tuple[str, tuple[int, ...]]
"""A namespace and all tokens up to the block's end."""


class NaiveBlocks:
    """One list of idle blocks, who is what, and how many refer to it: vLLM's pool, spelled out."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.idle = list(range(num_pages))
        self.identity: dict[int, Identity] = {}
        """In the order of becoming shareable."""
        self.references: dict[int, int] = {}
        self.size = page_size

    def identities(self, namespace: str, tokens: list[int]) -> list[Identity]:
        ends = range(self.size, len(tokens) + 1, self.size)
        return [(namespace, tuple(tokens[:end])) for end in ends]

    def find(self, wanted: Identity) -> int | None:
        return next((b for b, identity in self.identity.items() if identity == wanted), None)

    def match(self, namespace: str, tokens: list[int]) -> int:
        count = 0
        for wanted in self.identities(namespace, tokens):
            if self.find(wanted) is None:
                break
            count += 1
        return count * self.size

    def acquire(self, namespace: str, tokens: list[int]) -> list[int]:
        table = []
        for wanted in self.identities(namespace, tokens):
            block = self.find(wanted)
            assert block is not None
            if block in self.idle:
                self.idle.remove(block)
            self.references[block] = self.references.get(block, 0) + 1
            table.append(block)
        return table

    def take(self, count: int) -> list[int]:
        taken, self.idle = self.idle[:count], self.idle[count:]
        for block in taken:
            self.identity.pop(block, None)
            self.references[block] = 1
        return taken

    def publish(self, namespace: str, tokens: list[int], table: list[int], known: int) -> None:
        for place, identity in enumerate(self.identities(namespace, tokens)):
            if place >= known:
                self.identity[table[place]] = identity

    def release(self, table: list[int]) -> None:
        for block in reversed(table):
            self.references[block] -= 1
            if not self.references[block]:
                self.idle.append(block)


letters = st.lists(st.integers(0, 2), max_size=4)
place = st.integers(0, 100)


class BlockMachine(RuleBasedStateMachine):
    page_size = 1

    @initialize(num_pages=st.integers(5, 20))
    def build(self, num_pages: int) -> None:
        self.listener = Listener()
        self.cache = BlockHashCache(num_pages, self.page_size, self.listener)
        self.driver = CacheDriver(self.cache)
        self.naive = NaiveBlocks(num_pages, self.page_size)
        self.tables: dict[Sequence, list[int]] = {}
        self.published: dict[Sequence, int] = {}
        self.reported: dict[int, int] = {}

    def pick(self, among: dict[Sequence, None], place: int) -> Sequence:
        return list(among)[place % len(among)]

    @rule(letters=letters, tail=place, output=st.integers(1, 3), named=st.booleans())
    def wait(self, letters: list[int], tail: int, output: int, named: bool) -> None:
        size = self.page_size
        prompt = [letter for letter in letters for _ in range(size)] + [3] * (tail % size)
        sequence = self.driver.wait(prompt or [3], [0] * output, "n" if named else "")
        self.reported[sequence.request.id] = sequence.num_matched_tokens

    @precondition(lambda self: self.driver.waiting)
    @rule(place=place)
    def admit(self, place: int) -> None:
        sequence = self.pick(self.driver.waiting, place)
        if self.driver.shortage(sequence) > 0:
            return
        tokens = sequence.tokens.tolist()
        namespace = sequence.request.namespace
        cached = min(self.naive.match(namespace, tokens), len(tokens) - 1)
        cached -= cached % self.page_size
        table = self.naive.acquire(namespace, tokens[:cached])
        self.published[sequence] = len(table)
        table += self.naive.take(-(-len(tokens) // self.page_size) - len(table))
        self.tables[sequence] = table
        assert self.driver.admit(sequence) == cached

    @precondition(lambda self: self.driver.running)
    @rule(place=place, pages=st.integers(1, 4))
    def compute(self, place: int, pages: int) -> None:
        sequence = self.pick(self.driver.running, place)
        done = self.driver.computed[sequence]
        until = min(done - done % self.page_size + pages * self.page_size, len(sequence.tokens))
        if until > done:
            self.publish(sequence, until)
            self.driver.compute(sequence, until)

    def publish(self, sequence: Sequence, until: int) -> None:
        self.naive.publish(
            sequence.request.namespace,
            self.driver.known(sequence).tolist()[:until],
            self.tables[sequence],
            self.published[sequence],
        )
        self.published[sequence] = max(self.published[sequence], until // self.page_size)

    @precondition(lambda self: self.driver.running)
    @rule(place=place)
    def decode(self, place: int) -> None:
        sequence = self.pick(self.driver.running, place)
        if not self.driver.can_decode(sequence):
            return
        if self.driver.needs_page(sequence):
            self.tables[sequence] += self.naive.take(1)
        self.driver.decode(sequence)

    @precondition(lambda self: self.driver.running)
    @rule(place=place, keep=st.booleans())
    def leave(self, place: int, keep: bool) -> None:
        sequence = self.pick(self.driver.running, place)
        if keep:
            self.publish(sequence, self.driver.computed[sequence])
            self.driver.finish(sequence)
        else:
            self.driver.abort(sequence)
        self.naive.release(self.tables.pop(sequence))

    @invariant()
    def every_block_is_where_it_should_be(self) -> None:
        self.driver.check()
        cache, naive = self.cache, self.naive
        idle = [block for block in naive.idle if block in naive.identity]
        assert cache.num_evictable_pages == len(idle)
        assert cache.num_free_pages == len(naive.idle) - len(idle)
        assert cache.num_locked_pages == len(naive.identity) - len(idle)
        for sequence, table in self.tables.items():
            assert sequence.pages[: sequence.num_pages].tolist() == table

    @invariant()
    def matches_are_current(self) -> None:
        self.reported.update(self.listener.matches)
        self.listener.matches.clear()
        for sequence in self.driver.waiting:
            namespace = sequence.request.namespace
            naive = self.naive.match(namespace, sequence.tokens.tolist())
            assert sequence.num_matched_tokens == naive
            assert self.cache.peek(sequence.tokens, namespace) == naive
            assert self.reported[sequence.request.id] == naive
            table = self.naive.identities(namespace, sequence.tokens.tolist()[:naive])
            blocks = [self.naive.find(identity) for identity in table]
            idle = sum(block in self.naive.idle for block in blocks)
            assert self.cache.evictable_match_pages(sequence, naive) == idle


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_any_order_of_operations(page_size: int) -> None:
    machine = type(f"PageSize{page_size}", (BlockMachine,), {"page_size": page_size})
    limits = settings(max_examples=60, stateful_step_count=40)
    run_state_machine_as_test(machine, settings=limits)
