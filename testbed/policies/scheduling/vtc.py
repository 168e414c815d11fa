"""Admission by service so far: the Virtual Token Counter and its kin."""

from __future__ import annotations

from collections import OrderedDict
from math import isfinite
from typing import Literal

from testbed.core.policy import Proposals, SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.prediction import (
    LengthPredictor,
    Oracle,
    Prediction,
    build_predictor,
)
from testbed.policies.scheduling.ranked import Ranking

Rule = Literal["paper", "artifact"]
"""What becomes of a client that returns while nobody is queued; see Vtc."""


class _Ledger:
    """One client's service and queue.

    Services are sums of integers (of x, y, x * y and y * y over requests with x prompt and y output
    tokens), so that charging k tokens at once or one by one gives the same counter.
    """

    __slots__ = (
        "lifted",
        "outputs",
        "products",
        "prompts",
        "queue",
        "requests",
        "squares",
        "weight",
    )

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.lifted = 0.0
        self.requests = 0
        self.prompts = 0
        self.outputs = 0
        self.products = 0
        self.squares = 0
        self.queue: OrderedDict[int, SequenceView] = OrderedDict()

    def book(self, prompt: int, start: int, end: int) -> None:
        """Outputs `start` to `end` of a request; a refund where `end` is the smaller one."""
        self.outputs += end - start
        self.products += prompt * (end - start)
        self.squares += end * end - start * start


class ServiceCounters(SchedulingPolicy):
    """The client with the smallest (counter, name) goes next; see Vtc."""

    def __init__(
        self,
        prompt_weight: float,
        output_weight: float,
        product_weight: float,
        square_weight: float,
        request_weight: float,
        rule: Rule | None,
        predictor: LengthPredictor | None,
    ) -> None:
        if rule not in ("paper", "artifact", None):
            raise ValueError(f"rule={rule!r}: paper or artifact is needed")
        prices = {
            "prompt_weight": prompt_weight,
            "output_weight": output_weight,
            "product_weight": product_weight,
            "square_weight": square_weight,
            "request_weight": request_weight,
        }
        for name, price in prices.items():
            if not (isfinite(price) and price >= 0):
                raise ValueError(f"{name}={price}: a finite number of at least 0 is needed")
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._product_weight = product_weight
        self._square_weight = square_weight
        self._request_weight = request_weight
        self._rule = rule
        self._predictor = predictor
        self._charged_ahead: dict[int, int] = {}
        self._clients: dict[str, _Ledger] = {}
        self._left_last: str | None = None
        # An entry that understates its client's counter is re-entered when it surfaces, so that
        # tokens need not touch it; the first one that is exact is the minimum.
        self._ranking: Ranking[str] = Ranking()

    def counter(self, client: str) -> float:
        """The client's virtual token counter."""
        ledger = self._clients[client]
        service = (
            self._prompt_weight * ledger.prompts
            + self._output_weight * ledger.outputs
            + self._product_weight * ledger.products
            + self._square_weight * ledger.squares
            + self._request_weight * ledger.requests
        )
        return ledger.lifted + service / ledger.weight

    def candidates(self, view: SchedulerView) -> Proposals:
        """The oldest sequence of the client with the smallest (counter, name)."""
        while (client := self.least_served()) is not None:
            if not (yield next(iter(self._clients[client].queue.values()))):
                return

    def on_arrival(self, sequence: SequenceView) -> None:
        """Queue the request; lift a client that had nothing queued."""
        client = sequence.client
        ledger = self._clients.get(client)
        if ledger is None:
            ledger = self._clients[client] = _Ledger(sequence.weight)
        if not ledger.queue:
            floor = self._floor()
            if floor is not None:
                ledger.lifted += max(0.0, floor - self.counter(client))
            self._rank(client)
        ledger.queue[sequence.index] = sequence

    def on_preempt(self, sequence: SequenceView) -> None:
        """Queue it again, ahead of the client's others; it was charged already."""
        queue = self._clients[sequence.client].queue
        queue[sequence.index] = sequence
        queue.move_to_end(sequence.index, last=False)
        self._rank(sequence.client)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Charge the whole prompt, cached or not, and the predicted output, once."""
        ledger = self._clients[sequence.client]
        del ledger.queue[sequence.index]
        if not ledger.queue:
            self._left_last = sequence.client
        if not sequence.num_preemptions:
            ledger.requests += 1
            ledger.prompts += sequence.num_prompt_tokens
            if self._predictor is not None:
                ahead = self._predictor.predict(sequence)
                self._charged_ahead[sequence.index] = ahead
                ledger.book(sequence.num_prompt_tokens, 0, ahead)

    def on_tokens(self, sequence: SequenceView, count: int) -> None:
        """Charge what was produced beyond what was predicted."""
        ahead = self._charged_ahead.get(sequence.index, 0)
        end = sequence.num_generated_tokens
        if end > ahead:
            start = max(ahead, end - count)
            self._clients[sequence.client].book(sequence.num_prompt_tokens, start, end)

    def on_finish(self, sequence: SequenceView) -> None:
        """Give back what was predicted but not produced."""
        if self._predictor is None:
            return
        self._predictor.learn(sequence)
        ahead, end = self._charged_ahead.pop(sequence.index), sequence.num_generated_tokens
        if ahead > end:
            self._clients[sequence.client].book(sequence.num_prompt_tokens, ahead, end)
            if sequence.client in self._ranking:
                self._ranking.discard(sequence.client)
                self._rank(sequence.client)

    def _floor(self) -> float | None:
        """What a client that had nothing queued is lifted to; None if it is not."""
        if self._rule is None:
            return None
        least = self.least_served()
        if least is not None:
            return self.counter(least)
        if self._rule == "paper" and self._left_last is not None:
            return self.counter(self._left_last)
        return None

    def least_served(self) -> str | None:
        """The queued client with the smallest (counter, name)."""
        while (least := self._ranking.first()) is not None:
            client = least.item
            if not self._clients[client].queue:
                self._ranking.discard(client)
                continue
            counter = self.counter(client)
            if counter == least.key[0]:
                return client
            self._ranking.place(client, (counter, client))
        return None

    def _rank(self, client: str) -> None:
        if client not in self._ranking:
            self._ranking.place(client, (self.counter(client), client))


class Vtc(ServiceCounters):
    """Virtual Token Counter (OSDI'24): the client with the least weighted service goes next.

    Counters rise by prompt_weight * prompt / weight at first admission and by output_weight /
    weight per output token; inside a client, arrival order. A client that returns to the queue is
    lifted to the smallest counter of the queued clients, so that idling earns no credit; if nobody
    is queued, rule `paper` lifts it to the counter of the client that left the queue last, rule
    `artifact` (the authors' code) does not lift it. Stops at the first misfit, as both do. With
    prompt_weight <= output_weight, two backlogged clients' service differs by at most
    2 * max(prompt_weight * longest prompt, output_weight * batch tokens). Blind to the cache:
    cached prompts are charged in full, and alternating clients drive each other's prefixes out.
    Admits at every step, not every 10 decode steps as the artifact does.

    prediction: charge an expected output at admission, too, then only tokens beyond it, and give
    back what was not produced: `declared` expects the output limit, `hint` expected_output,
    `average` what the client's requests had so far (the artifact's `vtc_len_predict`).

    product_weight, square_weight, request_weight: prices of x * y, y * y and 1 for a request of x
    prompt and y output tokens, for a profiled cost h(x, y). The artifact's fit on an A10G is
    prompt_weight=0.21001891 output_weight=0.10075395 product_weight=0.0039868
    square_weight=0.00324733 request_weight=1.14601454.
    """

    def __init__(
        self,
        prompt_weight: float = 1.0,
        output_weight: float = 2.0,
        rule: Rule = "paper",
        prediction: Literal["none", Prediction] = "none",
        product_weight: float = 0.0,
        square_weight: float = 0.0,
        request_weight: float = 0.0,
    ) -> None:
        super().__init__(
            prompt_weight,
            output_weight,
            product_weight,
            square_weight,
            request_weight,
            rule,
            None if prediction == "none" else build_predictor(prediction),
        )


class VtcOracle(ServiceCounters):
    """Vtc that is told true output lengths, blurred by up to `error`: the VTC artifact's
    `vtc_oracle` with 0, its `predict_range` of 0.5 with 0.5."""

    oracle = True

    def __init__(
        self,
        prompt_weight: float = 1.0,
        output_weight: float = 2.0,
        rule: Rule = "paper",
        error: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(prompt_weight, output_weight, 0.0, 0.0, 0.0, rule, Oracle(error, seed))


class Lcf(ServiceCounters):
    """Least counter first: Vtc without the lift (the VTC artifact's baseline `lcf`).

    Credit from idle times is kept for ever, so a client that was away, or is new, shuts the others
    out until it has caught up.
    """

    may_starve = True

    def __init__(self, prompt_weight: float = 1.0, output_weight: float = 2.0) -> None:
        super().__init__(prompt_weight, output_weight, 0.0, 0.0, 0.0, None, None)
