"""What a resident prefix costs in memory, and how many sequences fit beside it."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class PrefixFootprint:
    """A prefix that stays in a pool of KV pages. All sizes in tokens; ValueError below 1.

    prefix_tokens: its length. sequence_tokens: prompt and output of one running sequence, the
    prefix included. pool_tokens: what the card holds. kv_bytes_per_token: of the model.
    """

    prefix_tokens: int
    sequence_tokens: int
    pool_tokens: int
    kv_bytes_per_token: int

    def __post_init__(self) -> None:
        for name in ("prefix_tokens", "pool_tokens", "kv_bytes_per_token"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1 is needed")
        if not self.prefix_tokens < self.sequence_tokens <= self.pool_tokens:
            raise ValueError(
                f"sequence_tokens={self.sequence_tokens}: more than the {self.prefix_tokens} of "
                f"the prefix and at most the {self.pool_tokens} of the pool are needed"
            )

    @property
    def prefix_bytes(self) -> int:
        """Memory of the prefix, over all cards."""
        return self.prefix_tokens * self.kv_bytes_per_token

    @property
    def pool_share(self) -> float:
        """Of the pool."""
        return self.prefix_tokens / self.pool_tokens

    @property
    def without_reuse(self) -> int:
        """Sequences that fit when each holds its own copy of the prefix."""
        return self.pool_tokens // self.sequence_tokens

    @property
    def sharing(self) -> int:
        """Sequences that fit when all of them share the resident prefix."""
        own = self.sequence_tokens - self.prefix_tokens
        return (self.pool_tokens - self.prefix_tokens) // own

    @property
    def beside_idle(self) -> int:
        """Sequences of the same length that fit while the prefix stays and none of them uses it."""
        return (self.pool_tokens - self.prefix_tokens) // self.sequence_tokens
