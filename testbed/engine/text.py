"""ModelTokenizer: text or chat messages into requests, generated tokens back into text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from transformers import AutoTokenizer

from testbed.core.request import Request, Tokens
from testbed.engine.executor import NO_TOKEN
from testbed.engine.model import Model

Messages: TypeAlias = Sequence[Mapping[str, str]]
"""A conversation: each message has a `role` (system, user, assistant) and its `content`."""


@dataclass(frozen=True)
class ModelTokenizer:
    """A model's own tokenizer and chat template, and the tokens that end its outputs."""

    name: str
    tokenizer: Any
    stop_tokens: tuple[int, ...]

    def encode(self, prompt: str | Messages) -> Tokens:
        """int32 token ids. Messages go through the chat template, up to the assistant's turn.

        ValueError if the model has no chat template, or the template refuses the messages.
        """
        if isinstance(prompt, str):
            return np.array(self.tokenizer(prompt).input_ids, dtype=np.int32)
        if self.tokenizer.chat_template is None:
            raise ValueError(f"model={self.name!r} has no chat template: give the prompt as text")
        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in prompt], tokenize=False, add_generation_prompt=True
            )
        except Exception as error:
            # Templates are programs of the model's authors, and fail as they like.
            raise ValueError(
                f"messages={prompt!r}: the chat template of model={self.name!r} refuses them: "
                f"{error}"
            ) from error
        # The template has written the special tokens already.
        ids = self.tokenizer(text, add_special_tokens=False).input_ids
        return np.array(ids, dtype=np.int32)

    def decode(self, tokens: Tokens) -> str:
        """The text of some tokens, special ones (such as the one that ended it) left out."""
        text: str = self.tokenizer.decode(
            tokens.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def request(
        self,
        id: int,
        prompt: str | Messages,
        *,
        max_new_tokens: int,
        ignore_eos: bool = False,
        **fields: Any,
    ) -> Request:
        """A request that ends at the model's end of sequence or after max_new_tokens.

        ignore_eos: always generate max_new_tokens. fields: any others of Request. If the prompt
        comes to no tokens, the engine will refuse the request, and no other.
        """
        stop_tokens = () if ignore_eos else self.stop_tokens
        tokens = self.encode(prompt)
        return Request(
            id,
            tokens if len(tokens) else np.array([NO_TOKEN], dtype=np.int32),
            max_new_tokens=max_new_tokens,
            stop_tokens=stop_tokens,
            **fields,
        )


def load_tokenizer(model: Model) -> ModelTokenizer:
    """The tokenizer that came with the model's weights.

    ValueError if none did, as with the tiny-* models, whose weights are random.
    """
    source = model.module.name_or_path
    if not source:
        raise ValueError(
            f"model={model.name!r} has random weights and no tokenizer: give prompts as token ids"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"model={model.name!r} has no tokenizer: {reason}") from error
    return ModelTokenizer(model.name, tokenizer, _stop_tokens(model, tokenizer))


def _stop_tokens(model: Model, tokenizer: Any) -> tuple[int, ...]:
    """The ends of sequence of the tokenizer and of the generation config (one, several or none)."""
    config = getattr(model.module, "generation_config", None)
    ends = getattr(config, "eos_token_id", None)
    listed = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    if tokenizer.eos_token_id is not None:
        listed.append(tokenizer.eos_token_id)
    return tuple(sorted(set(listed)))
