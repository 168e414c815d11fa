"""Agents: one that reasons and uses tools, and a village of them that live by small calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testbed.core.program import Body, Sleep
from testbed.core.request import EMPTY_TOKENS
from testbed.workloads.parameters import MAX_LENGTH, require_between, require_int
from testbed.workloads.programs.distribution import (
    Distribution,
    max_tokens,
    require_seconds,
    require_tokens,
)
from testbed.workloads.programs.family import MAX_TOPICS, ProgramFamily, Script, SharedTexts, ask


@dataclass(frozen=True)
class ReActPrograms(ProgramFamily):
    """Thought and action, a tool's observation, the next thought; every step adds to the prompt.

    instruction_tokens: with its examples or tools, common to all. steps: requests of a program; a
    tool runs for tool_seconds between two.

    Defaults: HotpotQA as ReAct runs it (github.com/ysymyth/ReAct), in SmolLM2's tokens: the
    examples of prompts/prompts_naive.json, 1,629, which take 3-5 steps, and the questions of
    data/hotpot_dev_v1_simplified.json, 20, quartiles 16 and 26. The examples observe 30 tokens;
    what a search returns is longer, and how long a tool takes is not in the data: both are
    assumptions, as is how much is thought.
    """

    instruction_tokens: Distribution = 1629
    question_tokens: Distribution = (16, 20, 26)
    steps: Distribution = (3, 5)
    thought_tokens: Distribution = (20, 60)
    observation_tokens: Distribution = (50, 150)
    tool_seconds: Distribution = (0.05, 2.0)
    name: str = "react"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_tokens(self, "instruction_tokens", least=0)
        require_tokens(self, "question_tokens", "steps", "thought_tokens", "observation_tokens")
        require_seconds(self, "tool_seconds")

    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """The instruction."""
        return (SharedTexts(1, self.instruction_tokens),)

    def own_tokens(self) -> int:
        """The question and the observations."""
        observed = (max_tokens(self.steps) - 1) * max_tokens(self.observation_tokens)
        return max_tokens(self.question_tokens) + observed

    def body(self, script: Script) -> Body:
        """Think, act, observe."""
        (instruction,) = self.texts
        context = instruction[0]
        added = script.text(self.question_tokens)
        for step in range(script.tokens(self.steps)):
            if step:
                yield Sleep(script.seconds(self.tool_seconds))
                added = script.text(self.observation_tokens)
            turn = script.turn(added, self.thought_tokens)
            context, _ = yield from ask(context, turn)


@dataclass(frozen=True)
class AgentCall:
    """One kind of call: a template, what it says of the persona and of the action, the answer.

    reads_answer: the answer to the call before stands between persona and action. The answer's
    length is one number, as equal prompts get equal answers.
    """

    template_tokens: Distribution
    persona_tokens: Distribution
    action_tokens: Distribution
    answer_tokens: int
    reads_answer: bool = False

    def __post_init__(self) -> None:
        require_tokens(self, "template_tokens", "persona_tokens", "action_tokens", least=0)
        require_int(self, "answer_tokens", 1, MAX_LENGTH)


@dataclass(frozen=True)
class GenerativeAgentPrograms(ProgramFamily):
    """A while of an agent's day: short calls about the action that it is up to, moment by moment.

    personas, drawn evenly, each do `actions` things, the k-th most frequent in proportion to
    k ** -zipf_exponent, for so many moments, each with all calls. Equal prompts get equal answers.

    Defaults: five calls of Generative Agents (arXiv 2304.03442; 25 personas): how poignant an event
    is, the event as a triple, as an emoji, where to go, and to what there. Their lengths are
    estimated from benchmark/generative_agents/agent_functions.py in github.com/sgl-project/sglang.
    How often actions come again and how long they last are assumptions.
    """

    calls: Sequence[AgentCall] = (
        AgentCall(0, 210, 40, 2),
        AgentCall(190, 3, 20, 20),
        AgentCall(30, 0, 15, 6),
        AgentCall(430, 60, 160, 10),
        AgentCall(200, 3, 80, 5, reads_answer=True),
    )

    personas: int = 25
    actions: int = 30
    zipf_exponent: float = 1.0
    moments: Distribution = (1, 4)
    name: str = "generative_agents"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "personas", 1)
        if not self.calls:
            raise ValueError(f"{type(self).__name__}.calls={self.calls!r}: at least one is needed")
        require_int(self, "actions", 1, MAX_TOPICS // (self.personas * len(self.calls)))
        require_between(self, "zipf_exponent", 0, 10)
        require_tokens(self, "moments")

    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """Templates, personas and actions of each call."""
        return tuple(
            texts
            for call in self.calls
            for texts in (
                SharedTexts(1, call.template_tokens),
                SharedTexts(self.personas, call.persona_tokens),
                SharedTexts(self.personas * self.actions, call.action_tokens),
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
        for place in list(range(len(self.calls))) * script.tokens(self.moments):
            call = self.calls[place]
            template, personas, actions = self.texts[3 * place : 3 * place + 3]
            before = [answer] if call.reads_answer else []
            context = np.concatenate([template[0], personas[persona], *before])
            topic = action * len(self.calls) + place
            turn = script.turn(actions[action], call.answer_tokens, topic)
            _, answer = yield from ask(context, turn)
