"""Clients with rates, lengths and weights of their own: the load of fairness experiments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from testbed.core.request import Request
from testbed.workloads.arrivals import MAX_CV, MIN_CV, Times, gamma_gaps
from testbed.workloads.parameters import (
    require_between,
    require_int,
    require_positive,
    require_rate,
)
from testbed.workloads.synthetic.phases import Phase, arrivals_of
from testbed.workloads.tokens import (
    output_tokens,
    prompt_tokens,
    require_token_space,
    require_vocab,
)


@dataclass(frozen=True)
class Client:
    """One client of a MultiClientWorkload.

    rate: requests per second. phases: how it changes over time, one after the other and then anew;
    without any it stays. cv: standard deviation of the gaps between arrivals over their mean;
    1 is Poisson, 0 is evenly spaced from a random offset. weight: its share relative to others.
    system_tokens: what stands in front of each of its prompts and is no other client's: one of
    `documents` texts, taken at random. prompt_tokens: what follows, new in every request.
    """

    name: str
    rate: float
    prompt_tokens: int = 256
    output_tokens: int = 256
    weight: float = 1.0
    system_tokens: int = 0
    documents: int = 1
    cv: float = 0.0
    phases: Sequence[Phase] = ()

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ValueError(f"Client.name={self.name!r}: a name is needed")
        require_rate(self, "rate")
        require_int(self, "prompt_tokens", 1)
        require_int(self, "output_tokens", 1)
        require_positive(self, "weight")
        require_int(self, "system_tokens", 0)
        require_int(self, "documents", 1)
        if self.cv != 0:
            require_between(self, "cv", MIN_CV, MAX_CV)
        object.__setattr__(self, "phases", tuple(self.phases))
        for phase in self.phases:
            if not isinstance(phase, Phase):
                raise ValueError(f"Client.phases: {phase!r} is not a Phase")


OVERLOAD = (Client("client-0", rate=1.5), Client("client-1", rate=3.0))
"""VTC's first experiment: two clients, one with twice the rate, more than the server can do."""


@dataclass(frozen=True)
class MultiClientWorkload:
    """The merged requests of several clients during `duration` seconds.

    Each client draws from (seed, its place in the list): adding one at the end or changing one
    leaves the arrivals of the others as they were. Ties go to the client listed first.
    Defaults: the overload experiment of VTC (Sheng et al., OSDI 2024), 360 s.
    """

    clients: Sequence[Client] = OVERLOAD
    duration: float = 360.0
    vocab: int | None = None
    seed: int = 0
    name: str = "clients"
    skipped_lines: ClassVar[int] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(self.clients))
        for client in self.clients:
            if not isinstance(client, Client):
                raise ValueError(f"MultiClientWorkload.clients: {client!r} is not a Client")
        names = [client.name for client in self.clients]
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"MultiClientWorkload.clients={names}: at least one is needed, each with a name "
                f"of its own"
            )
        require_positive(self, "duration")
        require_vocab(self)
        require_int(self, "seed", 0)
        if len(self) == 0:
            raise ValueError(
                f"MultiClientWorkload.duration={self.duration}: nobody sends a request within it; "
                f"a longer duration or higher rates are needed"
            )
        counts = np.bincount(self._merged[1], minlength=len(names)).tolist()
        require_token_space(
            self,
            sum(
                client.documents * client.system_tokens + count * client.prompt_tokens
                for client, count in zip(self.clients, counts, strict=True)
            ),
        )

    def __len__(self) -> int:
        return len(self._merged[0])

    def __iter__(self) -> Iterator[Request]:
        vocab, seed = self.vocab, self.seed
        held = [client.documents * client.system_tokens for client in self.clients]
        starts = np.concatenate(([0], np.cumsum(held))).tolist()
        fresh = starts[-1]
        choices = [np.random.default_rng([seed, i, 1]) for i in range(len(self.clients))]
        times, owners = self._merged
        for i, (arrival, owner) in enumerate(zip(times.tolist(), owners.tolist(), strict=True)):
            client = self.clients[owner]
            document = 0
            if client.documents > 1:
                document = int(choices[owner].integers(client.documents))
            start = starts[owner] + document * client.system_tokens
            system = prompt_tokens(start, client.system_tokens, vocab, seed)
            own = prompt_tokens(fresh, client.prompt_tokens, vocab, seed)
            fresh += client.prompt_tokens
            yield Request(
                id=i,
                prompt=np.concatenate([system, own]),
                output=output_tokens(i, client.output_tokens, vocab, seed),
                arrival=arrival,
                client=client.name,
                weight=client.weight,
            )

    @cached_property
    def _merged(self) -> tuple[Times, npt.NDArray[np.int64]]:
        """Arrival times in order and, for each, the client's place in the list."""
        times = [self._client_times(index) for index in range(len(self.clients))]
        owners = np.repeat(np.arange(len(times)), [len(own) for own in times])
        merged = np.concatenate(times)
        order = np.argsort(merged, kind="stable")
        return merged[order], owners[order]

    def _client_times(self, index: int) -> Times:
        client = self.clients[index]
        generator = np.random.default_rng([self.seed, index])
        peak = max([max(p.factor, p.end_factor or 0.0) for p in client.phases], default=1.0)
        expected = self.duration * client.rate * peak
        # At a rate of one; the rate stretches them.
        if client.cv == 0:
            units = generator.random() + np.arange(int(expected) + 1, dtype=np.float64)
        else:
            units = np.zeros(1)
            while units[-1] < expected:
                gaps = gamma_gaps(generator, int(expected) + 1, client.cv)
                units = np.concatenate([units, units[-1] + np.cumsum(gaps)])
            units = units[1:]
        if client.phases:
            return arrivals_of(units, client.rate, client.phases, self.duration)
        times: Times = units / client.rate
        return times[times < self.duration]
