"""Case: a small workload, the replicas that serve it, and nothing else to chance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

import numpy as np

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request, Tokens


def tokens(ids: Iterable[int]) -> Tokens:
    """A row of token ids that nobody can write to."""
    row = np.array(list(ids), dtype=np.int32)
    row.setflags(write=False)
    return row


DEFAULTS = SchedulerConfig()


@dataclass(frozen=True)
class Case:
    """Requests in arrival order, and the configs of the replicas that serve them.

    staleness: seconds, of what routers see. token_seconds: what a computed token costs; a step
    takes at least four of them. delays: whether arrivals are delayed and refused by the scheduling
    policy that goes with an eviction or routing policy. watched: the id of the request that the
    others of a stream might pass for ever.
    """

    name: str
    requests: tuple[Request, ...]
    cache: CacheConfig
    scheduler: SchedulerConfig = DEFAULTS
    replicas: int = 1
    staleness: float = 0.0
    token_seconds: float = 0.001
    delays: bool = False
    watched: int | None = None

    def source(self) -> str:
        """Python that builds the case; fields at their defaults are left out."""
        requests = "".join(f"        {_call(request)},\n" for request in self.requests)
        lines = [f"    name={self.name!r},\n", f"    requests=(\n{requests}    ),\n"]
        lines += [
            f"    {name}={value},\n"
            for name, value in _set(self).items()
            if name not in ("name", "requests")
        ]
        return f"Case(\n{''.join(lines)})"


def _call(item: Any) -> str:
    return f"{type(item).__name__}({', '.join(f'{k}={v}' for k, v in _set(item).items())})"


def _set(item: Any) -> Mapping[str, str]:
    """The fields that are not at their defaults, as source."""
    found: dict[str, str] = {}
    for field in fields(item):
        value = getattr(item, field.name)
        if field.name == "max_new_tokens" and item.output is not None and value == len(item.output):
            continue
        if _is_default(field, value):
            continue
        if isinstance(value, np.ndarray):
            found[field.name] = f"tokens({_ids(value)})"
        elif isinstance(value, CacheConfig | SchedulerConfig):
            found[field.name] = _call(value)
        else:
            found[field.name] = repr(value)
    return found


def _is_default(field: Field[Any], value: Any) -> bool:
    if field.default is MISSING or isinstance(value, np.ndarray):
        return False
    return bool(field.default == value)


def _ids(row: Tokens) -> str:
    """`range(3, 9)` where the ids are consecutive, else the list."""
    first, last = int(row[0]), int(row[-1]) + 1
    if len(row) > 3 and np.array_equal(row, np.arange(first, last)):
        return f"range({first}, {last})"
    if len(row) > 3 and (row == first).all():
        return f"[{first}] * {len(row)}"
    return str(row.tolist())
