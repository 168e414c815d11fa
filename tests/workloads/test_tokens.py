from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads.tokens import mixed_tokens, output_tokens, prompt_tokens

VOCABS = st.one_of(st.none(), st.integers(2, 1 << 31))


def test_without_a_vocab_a_token_is_its_number() -> None:
    tokens = prompt_tokens(7, 3, None, seed=5)
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [7, 8, 9]


def test_the_last_number_that_fits_int32_is_a_token() -> None:
    assert prompt_tokens(2**31 - 2, 2, None, seed=0).tolist() == [2**31 - 2, 2**31 - 1]


@given(st.integers(0, 10**6), st.integers(1, 50), VOCABS, st.integers(0, 2**64))
def test_equal_text_is_equal_tokens_wherever_it_is_cut(
    first: int, count: int, vocab: int | None, seed: int
) -> None:
    whole = prompt_tokens(first, 50, vocab, seed)
    assert prompt_tokens(first, count, vocab, seed).tolist() == whole[:count].tolist()
    assert prompt_tokens(first + count, 50 - count, vocab, seed).tolist() == whole[count:].tolist()


@given(st.integers(0, 10**6), st.integers(1, 300), VOCABS, st.integers(0, 10**9))
def test_a_shorter_output_begins_a_longer_one_and_stays_in_the_vocab(
    request: int, count: int, vocab: int | None, seed: int
) -> None:
    whole = output_tokens(request, 300, vocab, seed)
    assert whole.dtype == np.int32
    assert output_tokens(request, count, vocab, seed).tolist() == whole[:count].tolist()
    assert whole.min() >= 0
    assert vocab is None or whole.max() < vocab


def test_outputs_of_different_requests_and_seeds_differ_from_the_first_token() -> None:
    firsts = [
        output_tokens(request, 1, None, seed)[0] for request in range(100) for seed in range(10)
    ]
    assert len(set(firsts)) == 1000


def test_prompts_and_outputs_of_one_seed_are_different_streams() -> None:
    prompt, output = prompt_tokens(0, 100, 50_000, 3), output_tokens(0, 100, 50_000, 3)
    assert np.count_nonzero(prompt == output) <= 1


@pytest.mark.parametrize(
    "tokens", [prompt_tokens(0, 50_000, 10, 1), output_tokens(0, 50_000, 10, 1)]
)
def test_mixed_tokens_fill_the_vocab_evenly(tokens: np.ndarray) -> None:
    counts = np.bincount(tokens, minlength=10)
    assert len(counts) == 10
    # 5,000 expected each, standard deviation 67.
    assert abs(counts - 5000).max() < 5 * 67


def test_mixed_tokens_leave_their_input_alone() -> None:
    numbers = np.arange(4, dtype=np.int64).reshape(2, 2)
    assert mixed_tokens(numbers, 100, 0).shape == (2, 2)
    assert numbers.tolist() == [[0, 1], [2, 3]]
