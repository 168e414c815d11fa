from __future__ import annotations

import pytest

from testbed.metrics.kv_footprint import MIB, PrefixFootprint
from testbed.sim.hardware import MODELS


def test_two_thousand_tokens_of_llama_take_250_mib() -> None:
    """2 (K, V) * 32 layers * 8 heads * 128 * 2 bytes = 128 KiB a token."""
    bytes_per_token = MODELS["llama-3.1-8b"].kv_bytes_per_token
    cost = PrefixFootprint(2000, 3000, 20_000, bytes_per_token)
    assert cost.prefix_bytes == 250 * MIB
    assert cost.pool_share == 0.1


def test_sequences_that_fit() -> None:
    """A pool of 20,000: six of 3,000; (20,000 - 2,000) / 1,000 = 18 that share; or 18,000 / 3,000
    of others."""
    cost = PrefixFootprint(2000, 3000, 20_000, 1)
    assert (cost.without_reuse, cost.sharing, cost.beside_idle) == (6, 18, 6)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 10, 100, 1), "prefix_tokens=0"),
        ((10, 10, 100, 1), "sequence_tokens=10: more than the 10"),
        ((10, 101, 100, 1), "at most the 100"),
        ((10, 20, 100, 0), "kv_bytes_per_token=0"),
    ],
)
def test_bad_sizes(sizes: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrefixFootprint(*sizes)
