"""Admission by program: all the calls of an agent's run are served together."""

from __future__ import annotations

from collections import OrderedDict

from testbed.core.policy import Proposals, SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.prediction import Prediction, build_predictor
from testbed.policies.scheduling.ranked import Ranking

_Name = tuple[str, str | int]
"""The client, and its program; a request without one goes by its id."""


class _Program:
    """One program's waiting calls, and when it is done in the ideal."""

    __slots__ = ("calls", "finish", "name", "number", "weight")

    def __init__(self, name: _Name, number: int, weight: float) -> None:
        self.name = name
        self.number = number
        self.weight = weight
        self.finish = 0.0
        self.calls: OrderedDict[int, SequenceView] = OrderedDict()


class Justitia(SchedulingPolicy):
    """Programs in the order in which ideal fair sharing would finish them (arXiv 2510.17015).

    A call of p prompt and d output tokens costs p * d + d * d / 2 token-steps of KV memory. In the
    ideal, the pool's tokens are shared at every step between the programs with work left, by
    weight, which virtual time V tracks: it grows by pool / (sum of their weights) a step. A call
    moves its program's finish to max(finish, V at arrival) + cost / weight. The program that
    finishes first there gets all it asks for; inside a program, arrival order; ends at the first
    misfit.

    Our reading: the paper predicts the cost of a whole agent when it starts; here a call's cost is
    added when it arrives, with d as `prediction` says (see Vtc), and what was predicted wrong is
    not made good. A request without a program is one of its own. Cached prompts cost as much as
    others.
    """

    reacts_to_decoding = False

    def __init__(self, prediction: Prediction = "declared") -> None:
        self._predictor = build_predictor(prediction)
        # By name, while they wait or have work left in the ideal.
        self._programs: dict[_Name, _Program] = {}
        self._program_of: dict[int, _Program] = {}
        self._num_programs = 0
        self._waiting: Ranking[_Program] = Ranking()
        # Who has work left in the ideal, by finish.
        self._sharing: Ranking[_Program] = Ranking()
        self._sharing_weight = 0.0
        self._virtual_time = 0.0
        self._last_step = 0

    def on_start(self, view: SchedulerView) -> None:
        """Measure the pool."""
        self._view = view
        self._pool = view.cache.num_free_pages * view.cache.page_size

    def candidates(self, view: SchedulerView) -> Proposals:
        """The oldest call of the program that ideally finishes first."""
        while (best := self._waiting.first()) is not None:
            if not (yield next(iter(best.item.calls.values()))):
                return

    def on_arrival(self, sequence: SequenceView) -> None:
        """Add the call's cost to its program's."""
        self._advance()
        program = self._named(sequence)
        output = self._predictor.predict(sequence)
        cost = output * sequence.num_prompt_tokens + output * output / 2
        program.finish = max(program.finish, self._virtual_time) + cost / program.weight
        if program not in self._sharing:
            self._sharing_weight += program.weight
        self._sharing.place(program, (program.finish, program.number))
        program.calls[sequence.index] = sequence
        self._program_of[sequence.index] = program
        self._wait(program)

    def on_preempt(self, sequence: SequenceView) -> None:
        """Queue the call again, ahead of its program's others."""
        program = self._program_of[sequence.index]
        program.calls[sequence.index] = sequence
        program.calls.move_to_end(sequence.index, last=False)
        self._wait(program)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """The call waits no more."""
        program = self._program_of[sequence.index]
        del program.calls[sequence.index]
        if not program.calls:
            self._waiting.discard(program)
            self._forget(program)

    def on_finish(self, sequence: SequenceView) -> None:
        """See how long it really was."""
        del self._program_of[sequence.index]
        self._predictor.learn(sequence)

    def virtual_finish(self, sequence: SequenceView) -> float:
        """When the ideal is done with the program of a sequence that waits or runs."""
        return self._program_of[sequence.index].finish

    def _named(self, sequence: SequenceView) -> _Program:
        name = (sequence.client, sequence.id if sequence.program is None else sequence.program)
        program = self._programs.get(name)
        if program is None:
            program = self._programs[name] = _Program(name, self._num_programs, sequence.weight)
            self._num_programs += 1
        return program

    def _wait(self, program: _Program) -> None:
        self._waiting.place(program, (program.finish, program.number))

    def _forget(self, program: _Program) -> None:
        idle = not program.calls and program not in self._sharing
        if idle and self._programs.get(program.name) is program:
            del self._programs[program.name]

    def _advance(self) -> None:
        """Share the pool of the steps since the last arrival."""
        step = self._view.step
        left = float((step - self._last_step) * self._pool)
        self._last_step = step
        while left > 0 and (first := self._sharing.first()) is not None:
            program = first.item
            need = (program.finish - self._virtual_time) * self._sharing_weight
            if need > left:
                self._virtual_time += left / self._sharing_weight
                return
            left -= need
            self._virtual_time = program.finish
            self._sharing.discard(program)
            self._sharing_weight -= program.weight
            self._forget(program)
        if not len(self._sharing):
            # No rounding errors carry over from one busy period to the next.
            self._sharing_weight = 0.0
