"""A testbed for prefix caching in LLM serving: one scheduler, simulated or on a real engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.metrics.loading import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    # Reading results needs pandas, which simulator and engine do without.
    if name == "load":
        from testbed.metrics.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
