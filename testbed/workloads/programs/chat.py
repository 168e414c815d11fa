"""Multi-turn chat."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.program import Body, Sleep
from testbed.workloads.programs.distribution import (
    Distribution,
    max_tokens,
    require_seconds,
    require_tokens,
)
from testbed.workloads.programs.family import ProgramFamily, Script, SharedTexts, ask


@dataclass(frozen=True)
class ChatPrograms(ProgramFamily):
    """A conversation whose every prompt is all that was said so far and a new message.

    system_tokens: a prompt that all conversations begin with. think_seconds: from an answer to the
    next message.

    Defaults: the short-output chat of SGLang's paper (arXiv 2312.07104, section 6), from the
    options of benchmark/multi_turn_chat/bench_sglang.py in github.com/sgl-project/sglang: four
    turns of 256-512 tokens, answered in 4-8; its long chat answers in 256-512.
    """

    turns: Distribution = 4
    system_tokens: Distribution = 0
    message_tokens: Distribution = (256, 512)
    answer_tokens: Distribution = (4, 8)
    think_seconds: Distribution = 0.0
    name: str = "chat"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_tokens(self, "turns", "message_tokens", "answer_tokens")
        require_tokens(self, "system_tokens", least=0)
        require_seconds(self, "think_seconds")

    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """The system prompt."""
        return (SharedTexts(1, self.system_tokens),)

    def own_tokens(self) -> int:
        """Its messages."""
        return max_tokens(self.turns) * max_tokens(self.message_tokens)

    def body(self, script: Script) -> Body:
        """Message, answer, thought, and so on."""
        (system,) = self.texts
        context = system[0]
        for turn in range(script.tokens(self.turns)):
            if turn:
                yield Sleep(script.seconds(self.think_seconds))
            message = script.turn(script.text(self.message_tokens), self.answer_tokens)
            context, _ = yield from ask(context, message)
