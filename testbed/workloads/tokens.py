"""Token ids without text: each is a pure function of what the token stands for.

Every distinct piece of prompt text owns a range of numbers, so equal text is equal tokens and
different text is different tokens. With no `vocab` the number is the token id, and two prompts
share a prefix exactly where they share text. With a `vocab`, as a real model needs, the number is
mixed into [0, vocab): unrelated texts may then agree by chance on a first token, one time in
`vocab`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from testbed.core.request import Tokens
from testbed.workloads.parameters import require_int

NUM_INT32_TOKENS = 1 << 31
"""How many token ids an int32 holds."""

_UINT64 = (1 << 64) - 1
WEYL = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_PROMPTS = 1
_OUTPUTS = 2


def prompt_tokens(first: int, count: int, vocab: int | None, seed: int) -> Tokens:
    """Tokens of the text that owns the numbers first..first + count - 1, int32[count]."""
    if vocab is None:
        return np.arange(first, first + count, dtype=np.int32)
    return mixed_tokens(np.arange(first, first + count, dtype=np.int64), vocab, seed)


def mixed_tokens(numbers: npt.NDArray[np.int64], vocab: int, seed: int) -> Tokens:
    """Token ids in [0, vocab) for the given numbers of text, of the same shape."""
    return _mixed(numbers.astype(np.uint64), _mixed_key(seed, _PROMPTS, 0), vocab)


def output_tokens(request: int, count: int, vocab: int | None, seed: int) -> Tokens:
    """What request number `request` generates, int32[count] in [0, vocab).

    A function of (seed, request, position): a shorter output is the beginning of a longer one.
    """
    key = _mixed_key(seed, _OUTPUTS, request)
    return _mixed(np.arange(count, dtype=np.uint64), key, vocab or NUM_INT32_TOKENS)


def require_vocab(owner: object) -> None:
    """Raise ValueError unless the field `vocab` is None or fits int32 token ids."""
    if getattr(owner, "vocab", None) is not None:
        require_int(owner, "vocab", 2, NUM_INT32_TOKENS)


def require_token_space(owner: object, total: int) -> None:
    """Raise ValueError if `total` distinct prompt tokens need more ids than int32 has."""
    if total > NUM_INT32_TOKENS:
        raise ValueError(
            f"{type(owner).__name__}: {total} distinct prompt tokens are asked for; "
            f"at most {NUM_INT32_TOKENS} fit int32 token ids"
        )


def mix64(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele et al. 2014) of each number."""
    mixed: npt.NDArray[np.uint64] = numbers ^ numbers >> np.uint64(30)
    mixed *= _MIX_1
    mixed ^= mixed >> 27
    mixed *= _MIX_2
    mixed ^= mixed >> 31
    return mixed


def _mixed(numbers: npt.NDArray[np.uint64], key: int, vocab: int) -> Tokens:
    """SplitMix64 (Steele et al. 2014) of the numbers, in place, scaled to [0, vocab)."""
    numbers *= WEYL
    numbers += key
    numbers ^= numbers >> 30
    numbers *= _MIX_1
    numbers ^= numbers >> 27
    numbers *= _MIX_2
    # The top 32 bits times vocab, less the low 32 bits: a fair draw without a division.
    numbers >>= 32
    numbers *= vocab
    numbers >>= 32
    return numbers.astype(np.int32)


def _mixed_key(seed: int, stream: int, index: int) -> int:
    key = seed & _UINT64
    for word in (stream, index):
        key = (key + word * WEYL + WEYL) & _UINT64
        key = ((key ^ key >> 30) * _MIX_1) & _UINT64
        key = ((key ^ key >> 27) * _MIX_2) & _UINT64
        key ^= key >> 31
    return key
