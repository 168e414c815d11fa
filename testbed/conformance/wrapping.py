"""Do something around everything that a policy does, by a subclass of its class."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Generator, Iterator
from functools import partial, wraps
from typing import Any, Protocol, TypeVar

from testbed.core.scheduler import Scheduler
from testbed.core.views import SchedulerView

T = TypeVar("T")


class Around(Protocol):
    """Calls `act`, which is the named method or a step of its iterator, and returns its value."""

    def __call__(self, name: str, act: Callable[[], T]) -> T:
        """Act."""
        ...


def wrapped(policy: type[Any], around: Around) -> type[Any]:
    """A subclass whose public methods, and the iterators that they return, run inside `around`.

    What the class leaves to its base stays so: the core asks which hooks a class overrides.
    """
    base = next(kind for kind in policy.__mro__ if ABC in kind.__bases__)
    members = {
        name: _wrap(name, getattr(policy, name), around)
        for name in vars(base)
        if not name.startswith("_") and callable(getattr(base, name))
        if getattr(policy, name) is not getattr(base, name)
    }
    names = {"__module__": policy.__module__, "__qualname__": policy.__qualname__}
    return type(policy.__name__, (policy,), {**members, **names})


def noting(policy: type[Any], schedulers: list[Scheduler]) -> type[Any]:
    """A subclass of a scheduling policy that notes the scheduler it starts on."""

    def on_start(self: Any, view: SchedulerView) -> None:
        schedulers.append(view._scheduler)
        policy.on_start(self, view)

    return type(policy.__name__, (policy,), {"on_start": on_start})


def _wrap(name: str, method: Callable[..., Any], around: Around) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = around(name, partial(method, self, *args, **kwargs))
        return _stepwise(name, result, around) if isinstance(result, Iterator) else result

    return call


def _stepwise(name: str, iterator: Iterator[Any], around: Around) -> Generator[Any, Any, None]:
    hears = isinstance(iterator, Generator)
    try:
        item = around(name, partial(next, iterator))
        while True:
            outcome = yield item
            act = partial(iterator.send, outcome) if hears else partial(next, iterator)  # type: ignore[attr-defined]
            item = around(name, act)
    except StopIteration:
        return
    finally:
        if isinstance(iterator, Generator):
            around(name, iterator.close)
