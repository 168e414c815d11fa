"""The template behind prompts: constant text that most have, in one order, and what lies between.

Prompts are cut into units (lines and sentences). Prompts that share their most common units are of
one template; its anchors are the units that most of its prompts have in the same order. Whatever
stands between two anchors is a varying part. So volatile positions are found by alignment, whether
or not the log marks segments.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from testbed.advisor.text import normal, units
from testbed.workloads.formats.record import TOOL, Record

MAX_UNITS = 400
"""Of one prompt; the rest of it counts as one unit."""
MIN_PROMPTS = 8
ANCHOR_SHARE = 0.6
"""Of a template's prompts have each anchor."""
MOVING_SHARE = 0.1
"""An anchor that more of the prompts have out of order is none."""
SIGNATURE = 8
COMMON_SHARE = 0.2
MIN_SIMILARITY = 0.5
MIN_REPEATED = 3
"""Prompts of a template that have a unit, from which on it is repeated text and not new."""
HALF_SHARE = 0.5
"""Of the prompts have new units in a slot, and as many repeated ones, if it is split into these."""
MAX_COLUMNS = 12
SAME_COUNT_SHARE = 0.9


class Unit(NamedTuple):
    """key: a number of its role and normal text. Where: segment, characters start to end."""

    key: int
    role: str
    segment: int
    start: int
    end: int


class Template(NamedTuple):
    """prompts: positions of the records. anchors: (key, occurrence in the prompt), in order.

    repeated: keys of the units that several of the prompts have.
    """

    prompts: list[int]
    anchors: list[tuple[int, int]]
    repeated: frozenset[int]


class Slot(NamedTuple):
    """Where a varying part stands: in which gap between anchors, in segments of which role.

    column: the unit's place where nearly all prompts have num_units there; None for all of them.
    half: of these only the units that are new in the prompt, or only those that others repeat.
    """

    gap: int
    role: str
    column: int | None
    num_units: int
    half: Literal["", "new", "repeated"] = ""

    def units(self, alignment: Alignment, repeated: frozenset[int]) -> list[Unit]:
        """What an aligned prompt has there. repeated: the template's."""
        found = self._both_halves(alignment)
        if not self.half:
            return found
        return [unit for unit in found if (unit.key in repeated) == (self.half == "repeated")]

    def _both_halves(self, alignment: Alignment) -> list[Unit]:
        found = [unit for unit in alignment.gaps[self.gap] if unit.role == self.role]
        if self.column is None:
            return found
        if len(found) == self.num_units:
            return [found[self.column]]
        return found if self.column == 0 else []


class Alignment(NamedTuple):
    """A prompt's units in each gap (before, between and behind the anchors) and at each anchor."""

    gaps: list[list[Unit]]
    anchors: list[Unit | None]


class Part(NamedTuple):
    """One column of a template: a run of anchors (slot is None), or what varies between two.

    units: for each of the template's prompts what it has there.
    """

    role: str
    slot: Slot | None
    units: list[list[Unit]]


class UnitReader:
    """Cuts prompts into units, and numbers them in order of first appearance."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], int] = {}
        self._cut: dict[tuple[str, str], list[tuple[int, int, int]]] = {}

    def read(self, record: Record) -> list[Unit]:
        """The units of a record's texts; a tool definition is one unit."""
        found: list[Unit] = []
        for i, segment in enumerate(record.segments):
            if isinstance(segment.content, str):
                found += (
                    Unit(key, segment.role, i, start, end)
                    for key, start, end in self._cut_text(segment.role, segment.content)
                )
        return found

    def _cut_text(self, role: str, text: str) -> list[tuple[int, int, int]]:
        cut = self._cut.get((role, text))
        if cut is None:
            pieces = [text] if role == TOOL else list(units(text))
            if len(pieces) > MAX_UNITS:
                pieces[MAX_UNITS:] = ["".join(pieces[MAX_UNITS:])]
            ends = list(accumulate(map(len, pieces)))
            cut = self._cut[role, text] = [
                (
                    self._keys.setdefault((role, normal(piece)), len(self._keys)),
                    end - len(piece),
                    end,
                )
                for piece, end in zip(pieces, ends, strict=True)
            ]
        return cut


def find_templates(prompts: Sequence[Sequence[Unit]]) -> list[Template]:
    """The templates of at least MIN_PROMPTS prompts, the most used first."""
    frequency: Counter[int] = Counter()
    for prompt in prompts:
        frequency.update({unit.key for unit in prompt})
    leaders: list[dict[int, int]] = []
    members: list[list[int]] = []
    for i, prompt in enumerate(prompts):
        signature = _signature(prompt, frequency)
        if not signature:
            continue
        similarities = [_similarity(signature, leader) for leader in leaders]
        best = max(range(len(leaders)), key=similarities.__getitem__, default=-1)
        if best >= 0 and similarities[best] >= MIN_SIMILARITY:
            members[best].append(i)
        else:
            leaders.append(signature)
            members.append([i])
    groups = sorted((m for m in members if len(m) >= MIN_PROMPTS), key=lambda m: (-len(m), m[0]))
    return [_template(group, [prompts[i] for i in group]) for group in groups]


def _template(group: list[int], prompts: Sequence[Sequence[Unit]]) -> Template:
    frequency = Counter(key for prompt in prompts for key in {unit.key for unit in prompt})
    repeated = frozenset(key for key, count in frequency.items() if count >= MIN_REPEATED)
    return Template(group, _anchors(prompts), repeated)


def parts_of(template: Template, prompts: Sequence[Sequence[Unit]]) -> list[Part]:
    """The columns of a template, in order; together they hold every unit of its prompts."""
    aligned = [align(prompts[i], template) for i in template.prompts]
    found: list[Part] = []
    for gap in range(len(template.anchors) + 1):
        for whole in _slots(gap, [alignment.gaps[gap] for alignment in aligned]):
            for slot in _halves(whole, aligned, template.repeated):
                units = [slot.units(alignment, template.repeated) for alignment in aligned]
                found.append(Part(slot.role, slot, units))
        if gap < len(template.anchors):
            held = [alignment.anchors[gap] for alignment in aligned]
            role = next(unit.role for unit in held if unit is not None)
            units = [[] if unit is None else [unit] for unit in held]
            last = found[-1] if found else None
            if last is not None and last.slot is None and last.role == role:
                units = [a + b for a, b in zip(last.units, units, strict=True)]
                found.pop()
            found.append(Part(role, None, units))
    return found


def align(prompt: Sequence[Unit], template: Template) -> Alignment:
    """The prompt laid along the template's anchors, as many as it has in their order."""
    rank = {key: i for i, key in enumerate(template.anchors)}
    keys = _occurrences(prompt)
    kept = set(_longest_ascending([rank[key] for key in keys if key in rank]))
    gaps: list[list[Unit]] = [[] for _ in range(len(template.anchors) + 1)]
    held: list[Unit | None] = [None] * len(template.anchors)
    gap = 0
    for unit, key in zip(prompt, keys, strict=True):
        at = rank.get(key)
        if at is not None and at in kept:
            held[at] = unit
            gap = at + 1
        else:
            gaps[gap].append(unit)
    return Alignment(gaps, held)


def _signature(prompt: Sequence[Unit], frequency: Counter[int]) -> dict[int, int]:
    """The prompt's most common units and how common they are."""
    keys = {unit.key for unit in prompt}
    most = max((frequency[key] for key in keys), default=0)
    if most < MIN_PROMPTS:
        return {}
    common = [key for key in keys if frequency[key] >= COMMON_SHARE * most]
    common.sort(key=lambda key: (-frequency[key], key))
    return {key: frequency[key] for key in common[:SIGNATURE]}


def _similarity(one: dict[int, int], other: dict[int, int]) -> float:
    both = sum(frequency for key, frequency in one.items() if key in other)
    return both / max(sum(one.values()), sum(other.values()))


def _anchors(prompts: Sequence[Sequence[Unit]]) -> list[tuple[int, int]]:
    frequency: Counter[tuple[int, int]] = Counter()
    places: Counter[tuple[int, int]] = Counter()
    for prompt in prompts:
        for place, key in enumerate(_occurrences(prompt)):
            frequency[key] += 1
            places[key] += place
    most = [key for key, count in frequency.items() if count >= ANCHOR_SHARE * len(prompts)]
    most.sort(key=lambda key: (places[key] / frequency[key], key))
    while True:
        rank = {key: i for i, key in enumerate(most)}
        in_order: Counter[tuple[int, int]] = Counter()
        for prompt in prompts:
            ranks = [rank[key] for key in _occurrences(prompt) if key in rank]
            in_order.update(most[r] for r in _longest_ascending(ranks))
        stable = [key for key in most if in_order[key] >= (1 - MOVING_SHARE) * frequency[key]]
        if len(stable) == len(most):
            return stable
        most = stable


def _occurrences(prompt: Sequence[Unit]) -> list[tuple[int, int]]:
    """Each unit's key with how often it has come before."""
    seen: Counter[int] = Counter()
    found = []
    for unit in prompt:
        found.append((unit.key, seen[unit.key]))
        seen[unit.key] += 1
    return found


def _longest_ascending(ranks: Sequence[int]) -> list[int]:
    """A longest ascending subsequence, by patience sorting."""
    tops: list[int] = []
    at: list[int] = []
    before: list[int] = []
    for i, rank in enumerate(ranks):
        pile = bisect_left(tops, rank)
        tops[pile : pile + 1] = [rank]
        at[pile : pile + 1] = [i]
        before.append(at[pile - 1] if pile else -1)
    chain = []
    i = at[-1] if at else -1
    while i >= 0:
        chain.append(ranks[i])
        i = before[i]
    return chain[::-1]


def _slots(gap: int, contents: Sequence[Sequence[Unit]]) -> list[Slot]:
    """The slots of a gap: by role, and by unit where nearly all prompts have as many."""
    found = []
    for role in dict.fromkeys(unit.role for content in contents for unit in content):
        counts = Counter(sum(unit.role == role for unit in content) for content in contents)
        count, times = counts.most_common(1)[0]
        if 1 < count <= MAX_COLUMNS and times >= SAME_COUNT_SHARE * len(contents):
            found += [Slot(gap, role, column, count) for column in range(count)]
        else:
            found.append(Slot(gap, role, None, count))
    return found


def _halves(slot: Slot, aligned: Sequence[Alignment], repeated: frozenset[int]) -> list[Slot]:
    """The slot, or its new and its repeated units apart, in the order in which most have them."""
    halves = slot._replace(half="new"), slot._replace(half="repeated")
    new, old = ([half.units(one, repeated) for one in aligned] for half in halves)
    least = HALF_SHARE * len(aligned)
    if sum(map(bool, new)) < least or sum(map(bool, old)) < least:
        return [slot]
    both = [(a[0], b[0]) for a, b in zip(new, old, strict=True) if a and b]
    new_first = sum((a.segment, a.start) < (b.segment, b.start) for a, b in both)
    return list(halves if 2 * new_first > len(both) else halves[::-1])
