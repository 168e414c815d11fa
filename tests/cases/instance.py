"""What the runners of all kinds of case share: checked input fields, and results left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from testbed.core.request import Request

Instance: TypeAlias = Mapping[str, Any]
"""One case as read from JSON; its input fields have passed the checks of its kind."""


class Field(NamedTuple):
    """An input field: whether a value will do, and in words what would."""

    accepts: Callable[[Any], bool]
    needed: str


class Skip(NamedTuple):
    """In place of a result that cannot be had."""

    reason: str


NO_POLICY = Skip("no such policy")


class MissingData(Exception):
    """The case needs a data file that is not here; the message names it."""


def is_whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and value >= least


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0


def is_prompt(value: Any) -> bool:
    return is_list(value, lambda token: is_whole(token) and token < 1 << 31) and len(value) > 0


def is_list(value: Any, accepts: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(accepts, value))


def has(value: Any, **fields: Callable[[Any], bool]) -> bool:
    """Whether the value is an object with these fields, each as accepted."""
    return isinstance(value, dict) and all(
        name in value and accepts(value[name]) for name, accepts in fields.items()
    )


CAPACITY = Field(lambda value: is_whole(value, 1), "a whole number of tokens from 1")
PROMPTS = Field(lambda value: is_list(value, is_prompt), "a list of prompts of token ids")


def requests_of(prompts: list[list[int]]) -> list[Request]:
    """One request a prompt, numbered in order, that generates one token: its KV is never kept."""
    return [request_of(number, prompt) for number, prompt in enumerate(prompts)]


def request_of(number: int, prompt: npt.ArrayLike, num_output: int = 1, **hints: Any) -> Request:
    """A request with this prompt and `num_output` scripted tokens."""
    output = np.zeros(num_output, dtype=np.int32)
    return Request(number, np.array(prompt, dtype=np.int32), output, **hints)
