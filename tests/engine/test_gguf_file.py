"""GGUF files, written here byte by byte from the format's documentation."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from testbed.engine.gguf_file import GgufFile
from tests.engine.tiny_gguf import write_gguf


def q4_1_block(scale: float, lowest: float, quants: list[int]) -> bytes:
    """Value i in the low half of byte i, value 16 + i in its high half."""
    packed = bytes(quants[i] | quants[16 + i] << 4 for i in range(16))
    return struct.pack("<ee", scale, lowest) + packed


def test_metadata_of_every_kind_is_read(tmp_path: Path) -> None:
    metadata = {
        "text": "Ġhé",
        "number": 7,
        "ratio": 0.25,
        "flag": True,
        "texts": ["a", "", "<|im_end|>"],
        "numbers": [3, 2**32 - 1],
    }
    file = GgufFile(write_gguf(tmp_path / "a.gguf", metadata, {}))
    assert file.metadata == metadata
    assert file.tensors == []


def test_plain_tensors_keep_shape_and_values(tmp_path: Path) -> None:
    first = np.arange(6, dtype="<f4").reshape(2, 3)
    second = np.array([1.5, -2.0], dtype="<f4")
    tensors = {
        "a.weight": (0, (2, 3), first.tobytes()),
        "b.weight": (0, (2,), second.tobytes()),
    }
    file = GgufFile(write_gguf(tmp_path / "a.gguf", {"one": 1}, tensors))
    assert file.tensors == ["a.weight", "b.weight"]
    assert file.tensor("a.weight").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.tensor("b.weight").tolist() == [1.5, -2.0]


def test_blocks_of_four_and_eight_bits_are_decoded(tmp_path: Path) -> None:
    up, down = list(range(16)), list(range(15, -1, -1))
    four = q4_1_block(0.5, -1.0, up + down) + q4_1_block(2.0, 3.0, [4] * 32)
    eight = struct.pack("<e32b", 0.25, *range(-16, 16))
    tensors = {"four": (3, (2, 32), four), "eight": (8, (1, 32), eight)}
    file = GgufFile(write_gguf(tmp_path / "a.gguf", {"one": 1}, tensors))
    # value = scale * quant + lowest
    expected = [[0.5 * q - 1 for q in up + down], [11.0] * 32]
    assert file.tensor("four").tolist() == expected
    assert file.tensor("eight").tolist() == [[q / 4 for q in range(-16, 16)]]
    assert file.tensor("four").dtype == np.float32


def test_a_wider_alignment_is_respected(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "a.gguf", {"general.alignment": 32}, {"a": (0, (1,), b"\0\0\x80?")}
    )
    data = path.read_bytes()
    start = len(data) - 32
    wider = data.replace(struct.pack("<II", 4, 32), struct.pack("<II", 4, 256))
    path.write_bytes(wider[:start] + bytes(-start % 256) + wider[start:])
    assert GgufFile(path).tensor("a").tolist() == [1.0]


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(ValueError, match=r"a\.gguf: not a GGUF file of version 2 or 3$"):
        GgufFile(path)
    path.write_bytes(b"GGUF\3\0")
    with pytest.raises(ValueError, match=r"a\.gguf: ends at byte 6, too soon$"):
        GgufFile(path)
    write_gguf(path, {"one": 1}, {"a": (0, (4,), bytes(16)), "b": (2, (32,), bytes(18))})
    with pytest.raises(ValueError, match=r"b has ggml type 2; types 0, 3, 8 can be read$"):
        GgufFile(path).tensor("b")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 64 + 8])
    with pytest.raises(ValueError, match=r"a\.gguf: a is cut off$"):
        GgufFile(path).tensor("a")
