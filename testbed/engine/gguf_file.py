"""Reading GGUF files, llama.cpp's format: metadata, and tensors in some of its encodings.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Encodings: block_q4_1 and
block_q8_0 of ggml-common.h in the same repository.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_SCALARS: Mapping[int, str] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)
_STRING, _ARRAY = 8, 9
_BLOCK = 32
"""Values that share one scale."""


class GgufFile:
    """What a file holds. `metadata` by key; `tensors` names what tensor() reads.

    ValueError if it is no GGUF file of version 2 or 3, or ends too soon.
    """

    def __init__(self, path: Path) -> None:
        self._data = np.memmap(path, dtype=np.uint8, mode="r")
        self._path = path
        reader = _Reader(self._data, path)
        magic, version, num_tensors, num_keys = reader.take("4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{path}: not a GGUF file of version 2 or 3")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = reader.string()
            self.metadata[key] = reader.value(*reader.take("I"))
        self._places = {reader.string(): reader.place() for _ in range(num_tensors)}
        alignment = self.metadata.get("general.alignment", 32)
        self._start = -(-reader.position // alignment) * alignment

    @property
    def tensors(self) -> list[str]:
        """Names in file order."""
        return list(self._places)

    def tensor(self, name: str) -> Floats:
        """One tensor, decoded to float32, outermost dimension first.

        ValueError for encodings other than F32, Q4_1 and Q8_0.
        """
        shape, encoding, offset = self._places[name]
        if encoding not in _ENCODINGS:
            raise ValueError(
                f"{self._path}: {name} has ggml type {encoding}; types "
                f"{', '.join(map(str, _ENCODINGS))} can be read"
            )
        values, stored, decode = _ENCODINGS[encoding]
        start = self._start + offset
        raw = self._data[start : start + int(np.prod(shape)) // values * stored.itemsize]
        try:
            return decode(raw.view(stored)).reshape(shape)
        except ValueError as error:
            raise ValueError(f"{self._path}: {name} is cut off") from error


class _TensorPlace(NamedTuple):
    shape: tuple[int, ...]
    encoding: int
    offset: int


class _Reader:
    """Little-endian values, one after the other."""

    def __init__(self, data: npt.NDArray[np.uint8], path: Path) -> None:
        self._data = data
        self._path = path
        self.position = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        try:
            values = struct.unpack_from("<" + layout, self._data.data, self.position)
        except struct.error as error:
            raise ValueError(f"{self._path}: ends at byte {len(self._data)}, too soon") from error
        self.position += struct.calcsize("<" + layout)
        return values

    def string(self) -> str:
        (length,) = self.take("Q")
        (text,) = self.take(f"{length}s")
        decoded: str = text.decode("utf-8")
        return decoded

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            element, length = self.take("IQ")
            if element in _SCALARS:
                return list(self.take(f"{length}{_SCALARS[element]}"))
            return [self.value(element) for _ in range(length)]
        if kind not in _SCALARS:
            raise ValueError(f"{self._path}: unknown kind {kind} of metadata")
        return self.take(_SCALARS[kind])[0]

    def place(self) -> _TensorPlace:
        (dimensions,) = self.take("I")
        shape = self.take(f"{dimensions}Q")
        encoding, offset = self.take("IQ")
        return _TensorPlace(tuple(reversed(shape)), encoding, offset)


def _plain(values: Any) -> Floats:
    return np.array(values)


def _q4_1(blocks: Any) -> Floats:
    low, high = blocks["nibbles"] & 15, blocks["nibbles"] >> 4
    quants = np.concatenate((low, high), axis=1).astype(np.float32)
    scales, lowest = (blocks[name].astype(np.float32)[:, None] for name in ("scale", "lowest"))
    decoded: Floats = quants * scales + lowest
    return decoded


def _q8_0(blocks: Any) -> Floats:
    decoded: Floats = blocks["quants"] * blocks["scale"].astype(np.float32)[:, None]
    return decoded


_ENCODINGS: Mapping[int, tuple[int, np.dtype[Any], Callable[[Any], Floats]]] = MappingProxyType(
    {
        0: (1, np.dtype("<f4"), _plain),
        3: (
            _BLOCK,
            np.dtype([("scale", "<f2"), ("lowest", "<f2"), ("nibbles", "u1", _BLOCK // 2)]),
            _q4_1,
        ),
        8: (_BLOCK, np.dtype([("scale", "<f2"), ("quants", "i1", _BLOCK)]), _q8_0),
    }
)
"""By ggml type: values in a block, the block as it is stored, and how to decode blocks."""
