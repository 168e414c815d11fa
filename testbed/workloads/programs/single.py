"""Programs of one request: unique prompts, and speech in a cloned voice."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.program import Body
from testbed.core.request import EMPTY_TOKENS
from testbed.workloads.parameters import require_between, require_int
from testbed.workloads.programs.distribution import Distribution, max_tokens, require_tokens
from testbed.workloads.programs.family import ProgramFamily, Script, SharedTexts, ask


@dataclass(frozen=True)
class SingleShotPrograms(ProgramFamily):
    """One prompt like no other: what no prefix cache can help.

    Defaults: lengths of Azure's conversation trace of 2023 (data/AzureLLMInferenceTrace_conv.csv in
    github.com/Azure/AzurePublicDataset, published with Splitwise, ISCA 2024).
    """

    prompt_tokens: Distribution = (396, 1020, 1189)
    answer_tokens: Distribution = (85, 129, 395)
    name: str = "single_shot"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_tokens(self, "prompt_tokens", "answer_tokens")

    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """Nothing."""
        return ()

    def own_tokens(self) -> int:
        """The prompt."""
        return max_tokens(self.prompt_tokens)

    def body(self, script: Script) -> Body:
        """Ask once."""
        turn = script.turn(script.text(self.prompt_tokens), self.answer_tokens)
        yield from ask(EMPTY_TOKENS, turn)


@dataclass(frozen=True)
class VoicePrograms(ProgramFamily):
    """Text to speech in a cloned voice: a reference clip as a fixed preamble, then the text.

    voices: how many clips there are; the k-th most popular is asked for in proportion to
    k ** -zipf_exponent. voice_tokens: the clip's speech tokens and its transcript.

    Defaults: clips of 10-20 s at 25 speech tokens a second, the rate of CosyVoice's 25 Hz model
    (README.md in github.com/FunAudioLLM/CosyVoice), 5-15 s of speech out; clip and speech lengths,
    voices, popularity and text lengths are assumptions.
    """

    voices: int = 100
    zipf_exponent: float = 1.0
    voice_tokens: Distribution = (250, 500)
    text_tokens: Distribution = (20, 60)
    speech_tokens: Distribution = (125, 375)
    name: str = "voice"

    def check(self) -> None:
        """Raise ValueError for parameters that make no program."""
        require_int(self, "voices", 1)
        require_between(self, "zipf_exponent", 0, 10)
        require_tokens(self, "voice_tokens", "text_tokens", "speech_tokens")

    def shared_texts(self) -> tuple[SharedTexts, ...]:
        """The voices."""
        return (SharedTexts(self.voices, self.voice_tokens),)

    def own_tokens(self) -> int:
        """The text."""
        return max_tokens(self.text_tokens)

    def body(self, script: Script) -> Body:
        """Speak once."""
        (voices,) = self.texts
        (voice,) = script.popular(self.voices, self.zipf_exponent)
        turn = script.turn(script.text(self.text_tokens), self.speech_tokens)
        yield from ask(voices[voice], turn)
