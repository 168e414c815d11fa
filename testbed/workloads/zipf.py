"""Draws by popularity: of values 0, 1, 2 ..., the k-th in proportion to (k + 1) ** -exponent."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_DRAWS_AT_A_TIME = 1 << 21


def zipf_draws(
    values: int, exponent: float, picks: int, rows: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """int64[rows, picks]: in each row, values as they were drawn, one after the other, none twice.

    A row is drawn from `values` numbers of the generator, so that rows drawn together or apart are
    the same.
    """
    popularity = np.arange(1, values + 1, dtype=np.float64) ** -exponent
    drawn = np.empty((rows, picks), dtype=np.int64)
    at_a_time = max(_DRAWS_AT_A_TIME // values, 1)
    for start in range(0, rows, at_a_time):
        part = drawn[start : start + at_a_time]
        # An exponential race: the first finishers are weighted draws without replacement.
        finish = generator.standard_exponential((len(part), values)) / popularity
        part[:] = np.argsort(finish, axis=1, kind="stable")[:, :picks]
    return drawn
