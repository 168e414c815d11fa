"""Lint rules L6 and L10: blocks that prompts share, but in another order or another choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from testbed.advisor.findings import (
    MIN_REQUESTS,
    Detected,
    Finding,
    Place,
    place,
    texts_of,
    with_texts,
)
from testbed.advisor.text import MIN_EXEMPLARS, Block, blocks, first_paragraph, normal
from testbed.workloads.formats.record import Record

MIN_BLOCK_CHARACTERS = 24
MAX_BLOCKS = 64
"""Of one text; what follows is left where it is."""
MIN_OTHER_ORDER = 0.05
"""Share of the pairs of moving blocks, seen more than once, that stand in their rarer order."""
MIN_CONTEXTS = 3
"""Mean number of different beginnings that an example is seen behind, when they are sampled."""

Key = tuple[str, str]
"""Kind and normal body of a block."""


def find_block_order(records: Sequence[Record]) -> list[Detected]:
    """L6 and L10, each at most once."""
    seen = _Seen()
    texts = [
        (record, segment.role, text)
        for record in records
        for _, segment, text in texts_of(record)
        if segment.role != "assistant"
    ]
    for _, _, text in texts:
        seen.learn_bodies(text)
    for _, _, text in texts:
        seen.learn_neighbours(text)
    keys = [seen.learn_blocks(text) for _, _, text in texts]
    for (record, role, _), found in zip(texts, keys, strict=True):
        seen.learn_order(record, role, found)
    return [*_sampled_examples(seen), *_moved_chunks(seen)]


def _moved_chunks(seen: _Seen) -> list[Detected]:
    again = {pair: counts for pair, counts in seen.orders.items() if sum(counts) > 1}
    rarer = {pair: min(counts) for pair, counts in again.items() if min(counts)}
    moving = {key for pair in rarer for key in pair}
    among = sum(sum(counts) for pair, counts in again.items() if moving.issuperset(pair))
    if sum(rarer.values()) < max(MIN_REQUESTS, MIN_OTHER_ORDER * among):
        return []
    affected = [
        line for pair in rarer for line in seen.lines[pair][again[pair].index(min(again[pair]))]
    ]
    pair = max(rarer, key=lambda pair: (rarer[pair], -seen.rank[pair[0]]))
    finding = Finding(
        "L6",
        seen.examples[pair][0].segment,
        f"{len(moving):,} chunks stand in one order in some requests and in another in others",
        "put the chunks of a request into one fixed order, such as that of their ids",
        len(set(affected)),
        (seen.examples[pair][0], seen.examples[pair][1]),
        "the order of chunks no longer tells their relevance",
    )

    def mended(role: str, text: str) -> str:
        return _rearranged(text, seen, moving)

    return [Detected(finding, lambda log: [with_texts(record, mended) for record in log])]


def _rearranged(text: str, seen: _Seen, moving: set[Key]) -> str:
    """The text with its moving blocks sorted by rank, in the places they take together."""
    pieces = seen.blocks(text)
    places = [i for i, piece in enumerate(pieces) if _key(piece) in moving]
    if len(places) < 2:
        return text
    ordered = sorted((pieces[i] for i in places), key=lambda piece: seen.rank[_key(piece)])
    return _refilled(pieces, dict(zip(places, ordered, strict=True)))


def _sampled_examples(seen: _Seen) -> list[Detected]:
    recurring = {key: contexts for key, contexts in seen.contexts.items() if seen.count[key] > 1}
    occurrences = sum(seen.count[key] for key in recurring)
    if not occurrences:
        return []
    mean = sum(seen.count[key] * len(contexts) for key, contexts in recurring.items()) / occurrences
    if mean < MIN_CONTEXTS or len(seen.choices) < MIN_REQUESTS:
        return []
    usual, _ = seen.choices.most_common(1)[0]
    affected = seen.choices.total() - seen.choices[usual]
    if affected < MIN_REQUESTS:
        return []
    sets = {frozenset(choice) for choice in seen.choices}
    size = len(usual)
    most_used = sorted(recurring, key=lambda key: (-seen.count[key], seen.rank[key]))[:size]
    chosen = sorted(most_used, key=lambda key: seen.rank[key])
    other = next(choice for choice in seen.choices if choice != usual)
    same_set = len(sets) == 1
    finding = Finding(
        "L10",
        seen.choice_places[usual].segment,
        f"{len(seen.choices):,} different "
        + (f"orders of {size} examples" if same_set else f"choices of about {size} examples"),
        "send the same examples in the same order in every request",
        affected,
        (seen.choice_places[other], seen.choice_places[usual]),
        "" if same_set else f"every request gets the same {size} examples",
    )
    bodies = {key: seen.block[key] for key in chosen}

    def mended(role: str, text: str) -> str:
        pieces = seen.blocks(text)
        places = [i for i, piece in enumerate(pieces) if _key(piece) in recurring]
        if len(places) < 2:
            return text
        return _refilled(pieces, dict(zip(places, bodies.values(), strict=False)))

    return [Detected(finding, lambda log: [with_texts(record, mended) for record in log])]


@dataclass
class _Seen:
    """Blocks of all texts. rank: by first appearance. count: of the texts that have it.

    before: how often what stands right before a line, None for the start of a text. orders: how
    often a stands before b, and b before a; lines, examples: where. contexts: the sequences of
    examples that an example stood behind. choices: those of whole texts.
    """

    rank: dict[Key, int] = field(default_factory=dict)
    count: Counter[Key] = field(default_factory=Counter)
    block: dict[Key, Block] = field(default_factory=dict)
    bodies: dict[str, str] = field(default_factory=dict)
    before: dict[Key, Counter[Key | None]] = field(default_factory=dict)
    orders: dict[tuple[Key, Key], list[int]] = field(default_factory=dict)
    lines: dict[tuple[Key, Key], tuple[list[int], list[int]]] = field(default_factory=dict)
    examples: dict[tuple[Key, Key], dict[int, Place]] = field(default_factory=dict)
    contexts: dict[Key, set[tuple[Key, ...]]] = field(default_factory=dict)
    choices: Counter[tuple[Key, ...]] = field(default_factory=Counter)
    choice_places: dict[tuple[Key, ...], Place] = field(default_factory=dict)

    def learn_bodies(self, text: str) -> None:
        """Note the marked blocks whose end a marker tells."""
        marked = [block for block in blocks(text) if block.kind != "paragraph"]
        for block in marked[:-1]:
            self.bodies.setdefault(first_paragraph(block.body), block.body)

    def learn_neighbours(self, text: str) -> None:
        """Note what stands before each line that no marker sets off."""
        last: Key | None = None
        for block in blocks(text, self.bodies):
            key = _key(block)
            if block.kind == "paragraph":
                self.before.setdefault(key, Counter())[last] += 1
            last = key

    def blocks(self, text: str) -> list[Block]:
        """The text's blocks; a line that always follows the same other one is one with it, and a
        short line, such as a heading, with what it heads."""
        found: list[Block] = []
        last: Key | None = None
        for block in blocks(text, self.bodies):
            key = _key(block)
            before = self.before.get(key, Counter())
            follows = last is not None and len(before) == 1 and before[last] >= MIN_REQUESTS
            if found and block.kind == found[-1].kind == "paragraph":
                is_headed = len(normal(found[-1].body)) < MIN_BLOCK_CHARACTERS
                if follows or is_headed:
                    start = found.pop()
                    body = start.body + start.ending + block.body
                    block = Block("paragraph", start.opening, body, block.ending)
            found.append(block)
            last = key
        return found

    def learn_blocks(self, text: str) -> list[Key]:
        """Count the text's blocks; returns their keys."""
        found = self.blocks(text)[:MAX_BLOCKS]
        keys = [_key(block) for block in found]
        for key, block in zip(keys, found, strict=True):
            self.rank.setdefault(key, len(self.rank))
            self.block.setdefault(key, block)
        self.count.update(set(keys))
        return keys

    def learn_order(self, record: Record, role: str, keys: Sequence[Key]) -> None:
        """Note in which order a text has the blocks that other texts have too."""
        shared = [key for key in dict.fromkeys(keys) if self.count[key] > 1]
        examples = tuple(key for key in shared if key[0] == "exemplar")
        for i, key in enumerate(examples):
            self.contexts.setdefault(key, set()).add(examples[:i])
        if len(examples) >= MIN_EXEMPLARS:
            self.choices[examples] += 1
            shown = " | ".join(body for _, body in examples)
            self.choice_places.setdefault(examples, place(record, role, 0, shown))
        chunks = [key for key in shared if key[0] != "exemplar"]
        chunks = [key for key in chunks if len(key[1]) >= MIN_BLOCK_CHARACTERS]
        for one, other in combinations(chunks, 2):
            forward = self.rank[one] < self.rank[other]
            pair = (one, other) if forward else (other, one)
            self.orders.setdefault(pair, [0, 0])[not forward] += 1
            self.lines.setdefault(pair, ([], []))[not forward].append(record.line)
            shown = f"{one[1][:32]} ... before {other[1][:32]} ..."
            self.examples.setdefault(pair, {}).setdefault(
                int(not forward), place(record, role, 0, shown)
            )


def _key(block: Block) -> Key:
    return block.kind, normal(block.body)


def _refilled(pieces: Sequence[Block], bodies: dict[int, Block]) -> str:
    """The pieces with other bodies in some places; openings, numbers and spacing stay."""
    return "".join(
        piece.opening + bodies.get(i, piece).body + piece.ending for i, piece in enumerate(pieces)
    )
