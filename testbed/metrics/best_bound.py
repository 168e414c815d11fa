"""What a run's requests could share if the segments of their prompts stood in the best order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from testbed.core.records import RunRecord
from testbed.core.request import Request
from testbed.metrics.bounds import Bound, sharing_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.metrics.template_order import SegmentColumn, best_order


@runtime_checkable
class Segmented(Protocol):
    """A workload that knows of which segments its prompts are made."""

    def columns(self) -> Sequence[tuple[str, npt.NDArray[Any], npt.NDArray[Any]]]:
        """The arguments of each segment's SegmentColumn."""
        ...

    def in_order(self, names: Sequence[str]) -> Iterable[Request]:
        """The same requests, by id, with their segments in this order."""
        ...


def best_order_bound(
    workload: Segmented,
    record: RunRecord,
    own: Bound,
    *,
    min_computed_tokens: int = 1,
    cache_outputs: bool = True,
) -> Bound:
    """The sharing bound of the requests that a run served, in the best order of their segments.

    Comparable with `own`, the bound of the order at hand: the same requests, page size and rules
    (see run_bounds). The order is the best one token by token (see best_order); should whole pages
    share less in it than in the order at hand, `own` is returned.
    """
    columns = [SegmentColumn(*column) for column in workload.columns()]
    names = [columns[j].name for j in best_order(columns).order]
    requests = record.requests
    served = np.zeros(len(columns[0].values), dtype=bool)
    served[requests["request"][requests["admitted_step"] >= 0]] = True
    paths = prompt_paths(
        (request for request in workload.in_order(names) if served[request.id]),
        record.counters["page_size"],
        min_computed_tokens=min_computed_tokens,
        cache_outputs=cache_outputs,
    )
    return max(own, sharing_bound(paths), key=lambda bound: bound.rate)
