"""Prompts from a template: typed segments in an order that can be changed, volatile ones included.

The order is the cache key: everything behind a segment that differs is computed anew. All orders
serve the same draws, so that they compare request by request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from testbed.core.request import Request, Tokens
from testbed.workloads.parameters import MAX_LENGTH, require_between, require_int, require_one_of
from testbed.workloads.template_segments import (
    CONTEXT,
    NO_EXAMPLES,
    NO_REQUEST_ID,
    QUESTION,
    SYSTEM,
    TIMESTAMP,
    TOOLS,
    USER,
    DrawnSegment,
    Ints,
    Speakers,
    TemplateSegment,
    draw_segment,
)
from testbed.workloads.tokens import (
    output_tokens,
    prompt_tokens,
    require_token_space,
    require_vocab,
)

_STABLE = ("system", "tools", "few_shot", "context", "history", "question")
"""The canonical order."""
_VOLATILE = ("timestamp", "request_id", "user")
_OF_A_SESSION = ("system", "tools", "few_shot", "user")
"""Drawn once a session; the other segments are drawn once a request."""
_RANDOM_ORDERS = ("random_per_tenant", "random_per_request")
_NAMED_ORDERS = ("canonical", *_RANDOM_ORDERS)
_PLACES = ("front", "after_system", "after_tools", "end")


class _Sessions(NamedTuple):
    """of, earlier: by request, its session and the requests before it. tenants: by session."""

    of: Ints
    earlier: list[tuple[int, ...]]
    tenants: Ints


@dataclass(frozen=True)
class TemplateWorkload:
    """Requests that fill in one template.

    Segments: system prompt, tools, few-shot examples, retrieved context, history, question; and the
    volatile ones, a timestamp (its values follow each other in time), a request id, user fields.
    One without tokens is left out; a history is there once `turns` is above 1.

    order: `canonical` as listed; `random_per_tenant`, `random_per_request` shuffle what stands
    before the question, once for each; or a list that names every segment but the volatile ones.
    volatile_at: where those stand, at the `front`, `after_system`, `after_tools`, or at the `end`;
    one that `order` lists stays there.

    tenants: clients, drawn evenly. turns: requests of a session, of which `open_sessions` are
    interleaved at random; the history holds the questions and outputs so far. All requests arrive
    at 0: give them other times with Retimed. Lengths are in tokens.

    Defaults: system prompt and 14 tools of the airline agent of tau-bench (1,338 and 2,669 tokens),
    three chunks of 512 tokens out of 116 documents, outputs of 69 (Mooncake's long-document trace).
    The numbers of tenants and users and the Zipf exponent are assumptions.
    """

    num_requests: int = 1000
    tenants: int = 4
    turns: int = 1
    open_sessions: int = 16
    system: TemplateSegment = SYSTEM
    tools: TemplateSegment = TOOLS
    few_shot: TemplateSegment = NO_EXAMPLES
    context: TemplateSegment = CONTEXT
    question: TemplateSegment = QUESTION
    timestamp: TemplateSegment = TIMESTAMP
    request_id: TemplateSegment = NO_REQUEST_ID
    user: TemplateSegment = USER
    order: str | Sequence[str] = "canonical"
    volatile_at: Literal["front", "after_system", "after_tools", "end"] = "end"
    output_tokens: int = 69
    output_sd: float = 0.0
    vocab: int | None = None
    seed: int = 0
    name: str = "template"
    skipped_lines: ClassVar[int] = 0

    def __post_init__(self) -> None:
        for name in ("num_requests", "tenants", "turns", "open_sessions"):
            require_int(self, name, 1)
        require_int(self, "output_tokens", 1, MAX_LENGTH)
        require_between(self, "output_sd", 0, MAX_LENGTH)
        require_vocab(self)
        require_int(self, "seed", 0)
        for name in (*_STABLE, *_VOLATILE):
            segment = getattr(self, name, None)
            if name != "history" and not isinstance(segment, TemplateSegment):
                raise ValueError(
                    f"TemplateWorkload.{name}={segment!r}: a TemplateSegment is needed"
                )
        require_one_of(self, "volatile_at", _PLACES)
        self._check_order()
        texts = sum(segment.num_tokens for segment in self._drawn.values())
        require_token_space(self, texts)

    @property
    def segment_names(self) -> tuple[str, ...]:
        """The segments that there are, as they stand in a prompt; where that differs between
        requests, in canonical order with the volatile ones at their place."""
        named = isinstance(self.order, str)
        return self._with_volatile(self._stable if named else tuple(self.order))

    def columns(self) -> list[tuple[str, Ints, Ints]]:
        """Name, values and lengths of each segment in the order of segment_names.

        Both int64[requests, pieces]: the texts that stand there, by number, and their tokens; -1
        and 0 where there is none. The arguments of metrics' SegmentColumn. Two things that a cache
        can find are not in them: a question at the start of a later history, and an output.
        """
        return [(name, *self._column(name)) for name in self.segment_names]

    def in_order(self, names: Sequence[str]) -> TemplateWorkload:
        """The same draws with the segments in this order, volatile ones included."""
        return replace(self, order=tuple(names))

    def __len__(self) -> int:
        return self.num_requests

    def __iter__(self) -> Iterator[Request]:
        for i, segments in enumerate(self._arranged()):
            session = int(self._sessions.of[i])
            pieces = [piece for name in segments for piece in self._texts(name, i)]
            yield Request(
                id=i,
                prompt=np.concatenate(pieces),
                output=self._output(i),
                client=f"tenant-{self._sessions.tenants[session]}",
                program=f"session-{session}" if self.turns > 1 else None,
                turn=len(self._sessions.earlier[i]),
            )

    def _check_order(self) -> None:
        if not set(self._stable) - {"history"}:
            raise ValueError("TemplateWorkload: at least one segment with tokens is needed")
        if isinstance(self.order, str):
            require_one_of(self, "order", _NAMED_ORDERS)
        else:
            object.__setattr__(self, "order", tuple(self.order))
            listed = [name for name in self.order if name not in self._volatile]
            if sorted(listed) != sorted(self._stable) or len(set(self.order)) < len(self.order):
                raise ValueError(
                    f"TemplateWorkload.order={list(self.order)}: one of "
                    f"{', '.join(_NAMED_ORDERS)}, or each of {', '.join(self._stable)} once, is "
                    "needed"
                )
        behind = self.volatile_at.removeprefix("after_")
        if self.volatile_at.startswith("after_") and behind not in self._stable:
            raise ValueError(
                f"TemplateWorkload.volatile_at='{self.volatile_at}': {behind} has no tokens"
            )

    @cached_property
    def _stable(self) -> tuple[str, ...]:
        return tuple(
            name
            for name in _STABLE
            if (self.turns > 1 if name == "history" else getattr(self, name).tokens)
        )

    @cached_property
    def _volatile(self) -> tuple[str, ...]:
        return tuple(name for name in _VOLATILE if getattr(self, name).tokens)

    @cached_property
    def _seeds(self) -> dict[str, np.random.SeedSequence]:
        streams = ("sessions", "orders", "outputs", *_STABLE, *_VOLATILE)
        seeds = np.random.SeedSequence(self.seed).spawn(len(streams))
        return dict(zip(streams, seeds, strict=True))

    @cached_property
    def _sessions(self) -> _Sessions:
        generator = np.random.default_rng(self._seeds["sessions"])
        num_sessions = -(-self.num_requests // self.turns)
        tenants = generator.integers(self.tenants, size=num_sessions)
        picks = generator.random(self.num_requests)
        waiting = iter(range(num_sessions))
        running: list[tuple[int, ...]] = []
        number: list[int] = []
        of, earlier = [], []
        for i, pick in enumerate(picks.tolist()):
            while len(running) < self.open_sessions and (new := next(waiting, None)) is not None:
                running.append(())
                number.append(new)
            place = int(pick * len(running))
            of.append(number[place])
            earlier.append(running[place])
            running[place] = (*running[place], i)
            if len(running[place]) == self.turns:
                del running[place], number[place]
        return _Sessions(np.array(of), earlier, tenants)

    @cached_property
    def _drawn(self) -> dict[str, DrawnSegment]:
        sessions = self._sessions
        by_request = Speakers(np.arange(self.num_requests), sessions.tenants[sessions.of])
        by_session = Speakers(sessions.of, sessions.tenants)
        return {
            name: draw_segment(
                getattr(self, name),
                by_session if name in _OF_A_SESSION else by_request,
                name == "timestamp",
                self._seeds[name],
            )
            for name in (*self._stable, *self._volatile)
            if name != "history"
        }

    @cached_property
    def _starts(self) -> dict[str, Ints]:
        """By segment, the first token of each text; the segment's whitespace comes before."""
        starts = {}
        first = 0
        for name, segment in self._drawn.items():
            ends = np.cumsum(segment.lengths)
            starts[name] = first + 1 + np.concatenate(([0], ends[:-1]))
            first += segment.num_tokens
        return starts

    @cached_property
    def _output_lengths(self) -> Ints:
        draws = np.random.default_rng(self._seeds["outputs"]).standard_normal(self.num_requests)
        lengths = np.rint(self.output_tokens + self.output_sd * draws)
        return np.maximum(lengths, 1).astype(np.int64)

    def _output(self, request: int) -> Tokens:
        return output_tokens(request, int(self._output_lengths[request]), self.vocab, self.seed)

    def _arranged(self) -> Iterator[tuple[str, ...]]:
        """The segments of each prompt, in order."""
        if self.order not in _RANDOM_ORDERS:
            yield from repeat(self.segment_names, self.num_requests)
            return
        generator = np.random.default_rng(self._seeds["orders"])
        shuffled = [name for name in self._stable if name != "question"]
        last = tuple(name for name in self._stable if name == "question")

        def one_order() -> tuple[str, ...]:
            places = generator.permutation(len(shuffled)).tolist()
            return self._with_volatile((*(shuffled[place] for place in places), *last))

        of_tenant = [one_order() for _ in range(self.tenants)]
        for session in self._sessions.of.tolist():
            if self.order == "random_per_tenant":
                yield of_tenant[self._sessions.tenants[session]]
            else:
                yield one_order()

    def _with_volatile(self, order: tuple[str, ...]) -> tuple[str, ...]:
        moved = tuple(name for name in self._volatile if name not in order)
        if self.volatile_at == "front":
            return (*moved, *order)
        if self.volatile_at == "end":
            return (*order, *moved)
        place = order.index(self.volatile_at.removeprefix("after_")) + 1
        return (*order[:place], *moved, *order[place:])

    def _texts(self, name: str, request: int) -> Iterator[Tokens]:
        if name == "history":
            for earlier in self._sessions.earlier[request]:
                if "question" in self._drawn:
                    yield from self._texts("question", earlier)
                yield self._output(earlier)
            return
        segment, starts = self._drawn[name], self._starts[name]
        if segment.spaced[request]:
            yield prompt_tokens(int(starts[0]) - 1, 1, self.vocab, self.seed)
        for piece in segment.pieces[request].tolist():
            first, count = int(starts[piece]), int(segment.lengths[piece])
            yield prompt_tokens(first, count, self.vocab, self.seed)

    def _column(self, name: str) -> tuple[Ints, Ints]:
        if name == "history":
            return self._history_column()
        segment = self._drawn[name]
        values, tokens = segment.pieces, segment.lengths[segment.pieces]
        if segment.spaced.any():
            spaced = segment.spaced.astype(np.int64)[:, None]
            return np.hstack((-1 - spaced, values)), np.hstack((spaced, tokens))
        return values, tokens

    def _history_column(self) -> tuple[Ints, Ints]:
        """A text is an earlier request: its question and its output."""
        shape = (self.num_requests, self.turns - 1)
        values, tokens = np.full(shape, -1), np.zeros(shape, dtype=np.int64)
        lengths = self._output_lengths
        if "question" in self._drawn:
            lengths = lengths + self._column("question")[1].sum(axis=1)
        for i, earlier in enumerate(self._sessions.earlier):
            values[i, : len(earlier)] = earlier
            tokens[i, : len(earlier)] = lengths[list(earlier)]
        return values, tokens
