"""Empty stand-ins for packages that a peer imports and the measured code never calls.

Serving engines import GPU kernels, web servers and plotting services at the top of their files.
What is not installed here becomes an empty module, for imports made by the peer alone.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class _Absent(type):
    """A class that is falsy, iterable, has every attribute, and changes nothing as a decorator."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is Absent and len(args) == 1 and callable(args[0]):
            return args[0]
        return super().__call__(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __setitem__(cls, key: Any, value: Any) -> None: ...

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls


class Absent(metaclass=_Absent):
    """What every name of a stand-in module is; its instances behave likewise."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __init_subclass__(cls, **kwargs: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent


class _StandIn(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, peer: str, absent: Iterable[str]) -> None:
        self._peer = peer
        for name in absent:
            sys.modules[name] = _StandIn(name)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        parent = sys.modules.get(name.rpartition(".")[0])
        top = name.partition(".")[0]
        if isinstance(parent, _StandIn) or (
            top != self._peer
            and top not in sys.stdlib_module_names
            and _importer().startswith(self._peer)
        ):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def _importer() -> str:
    """The name of the module whose import statement is being carried out."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def install(peer: str, absent: Iterable[str] = ()) -> None:
    """Stand in for whatever the peer's modules import and cannot find.

    absent: modules of the peer itself to leave out, with all below them.
    """
    sys.meta_path.append(_Finder(peer, absent))
