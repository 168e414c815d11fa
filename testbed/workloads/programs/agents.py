"""Agents: one that reasons and uses tools, and a village of them that live by small calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from testbed.core.program import Body, Sleep
from testbed.core.request import EMPTY_TOKENS
from testbed.workloads.parameters import require_between, require_int
from testbed.workloads.programs.family import MAX_TOPICS, ProgramFamily, Script, Shelf, ask
from testbed.workloads.programs.spread import Spread, most, require_seconds, require_tokens


@dataclass(frozen=True)
class ReActPrograms(ProgramFamily):
    """Thought and action, a tool's observation, the next thought; every step adds to the prompt.

    instruction_tokens: with its examples or tools, common to all. steps: requests of a program; a
    tool runs for tool_seconds between two.

    Defaults: the HotpotQA prompt of ReAct (github.com/ysymyth/ReAct), 1,629 tokens, with questions
    of 20, quartiles 16 and 26, and 3-5 steps. Its examples observe 30 tokens; what a search returns
    is longer, and how long a tool takes is not in the data: both are assumptions.
    """

    instruction_tokens: Spread = 1629
    question_tokens: Spread = (16, 20, 26)
    steps: Spread = (3, 5)
    thought_tokens: Spread = (20, 60)
    observation_tokens: Spread = (50, 150)
    tool_seconds: Spread = (0.05, 2.0)
    name: str = "react"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_tokens(self, "instruction_tokens", least=0)
        require_tokens(self, "question_tokens", "steps", "thought_tokens", "observation_tokens")
        require_seconds(self, "tool_seconds")

    def shelves(self) -> tuple[Shelf, ...]:
        """The instruction."""
        return (Shelf(1, self.instruction_tokens),)

    def own_tokens(self) -> int:
        """The question and the observations."""
        observed = (most(self.steps) - 1) * most(self.observation_tokens)
        return most(self.question_tokens) + observed

    def body(self, script: Script) -> Body:
        """Think, act, observe."""
        (instruction,) = self.library
        context = instruction[0]
        added = script.text(self.question_tokens)
        for step in range(script.tokens(self.steps)):
            if step:
                yield Sleep(script.seconds(self.tool_seconds))
                added = script.text(self.observation_tokens)
            context = yield from ask(context, script.turn(added, self.thought_tokens))


class AgentCall(NamedTuple):
    """One kind of call: a template, what it says of the persona and of the action, the answer.

    reads_answer: the answer to the call before stands between persona and action.
    """

    template_tokens: int
    persona_tokens: int
    action_tokens: int
    answer_tokens: int
    reads_answer: bool = False


CALLS = (
    AgentCall(0, 210, 40, 2),
    AgentCall(190, 3, 20, 20),
    AgentCall(30, 0, 15, 6),
    AgentCall(430, 60, 160, 10),
    AgentCall(200, 3, 80, 5, reads_answer=True),
)
"""How poignant an event is, the event as a triple, as an emoji; where to go, and to what there."""


@dataclass(frozen=True)
class GenerativeAgentPrograms(ProgramFamily):
    """A while of an agent's day: short calls about the action that it is up to, moment by moment.

    personas, drawn evenly, each do `actions` things, the k-th most frequent in proportion to
    k ** -zipf_exponent, for so many moments. Equal prompts get equal answers.

    Defaults: the five calls that make up some 70 % of a run of Generative Agents
    (arXiv 2304.03442), with lengths estimated from SGLang's benchmark of them; 25 personas. How
    often actions come again and how long they last are assumptions.
    """

    personas: int = 25
    actions: int = 30
    zipf_exponent: float = 1.0
    moments: Spread = (1, 4)
    name: str = "generative_agents"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "personas", 1)
        require_int(self, "actions", 1, MAX_TOPICS // (self.personas * len(CALLS)))
        require_between(self, "zipf_exponent", 0, 10)
        require_tokens(self, "moments")

    def shelves(self) -> tuple[Shelf, ...]:
        """Templates, personas and actions of each call."""
        return tuple(
            shelf
            for call in CALLS
            for shelf in (
                Shelf(1, call.template_tokens),
                Shelf(self.personas, call.persona_tokens),
                Shelf(self.personas * self.actions, call.action_tokens),
            )
        )

    def own_tokens(self) -> int:
        """None: a while like this may come again."""
        return 0

    def body(self, script: Script) -> Body:
        """Make the calls one after the other."""
        persona = int(script.random.integers(self.personas))
        (habit,) = script.popular(self.actions, self.zipf_exponent)
        action = persona * self.actions + habit
        answer = EMPTY_TOKENS
        for place in list(range(len(CALLS))) * script.tokens(self.moments):
            call = CALLS[place]
            template, personas, actions = self.library[3 * place : 3 * place + 3]
            heard = [answer] if call.reads_answer else []
            context = np.concatenate([template[0], personas[persona], *heard])
            topic = action * len(CALLS) + place
            turn = script.turn(actions[action], call.answer_tokens, topic)
            answered = yield from ask(context, turn)
            answer = answered[len(context) + len(turn.text) :]
