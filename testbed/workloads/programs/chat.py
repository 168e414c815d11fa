"""Multi-turn chat."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.program import Body, Sleep
from testbed.workloads.programs.family import ProgramFamily, Script, Shelf, ask
from testbed.workloads.programs.spread import Spread, most, require_seconds, require_tokens


@dataclass(frozen=True)
class ChatPrograms(ProgramFamily):
    """A conversation whose every prompt is all that was said so far and a new message.

    system_tokens: a prompt that all conversations begin with. think_seconds: from an answer to the
    next message.

    Defaults: the short-output chat of SGLang's paper (arXiv 2312.07104, section 6): four turns of
    256-512 tokens, answered in 4-8; its long chat answers in 256-512.
    """

    turns: Spread = 4
    system_tokens: int = 0
    message_tokens: Spread = (256, 512)
    answer_tokens: Spread = (4, 8)
    think_seconds: Spread = 0.0
    name: str = "chat"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_tokens(self, "turns", "message_tokens", "answer_tokens")
        require_tokens(self, "system_tokens", least=0)
        require_seconds(self, "think_seconds")

    def shelves(self) -> tuple[Shelf, ...]:
        """The system prompt."""
        return (Shelf(1, self.system_tokens),)

    def own_tokens(self) -> int:
        """Its messages."""
        return most(self.turns) * most(self.message_tokens)

    def body(self, script: Script) -> Body:
        """Message, answer, thought, and so on."""
        (system,) = self.library
        context = system[0]
        for turn in range(script.tokens(self.turns)):
            if turn:
                yield Sleep(script.seconds(self.think_seconds))
            message = script.turn(script.text(self.message_tokens), self.answer_tokens)
            context = yield from ask(context, message)
