"""``.safetensors``: 8 bytes with the length of a JSON header, the header, then the tensors.

The format is https://huggingface.co/docs/safetensors. The header is read here rather than by the library
because that gives arrays, and these would be copied; here tensors stay where they lie in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TypeGuard

import numpy as np

from sharding.common.arrays import DType
from sharding.common.text import human_bytes, one_line, shortened
from sharding.errors import ModelError
from sharding.importers.checkpoints.base import Checkpoint, Entry, check_entry, special_dtype, unique
from sharding.importers.mapped import mapped

MOST_HEADER = 100_000_000
"""Bytes of a header: the limit of the format's own library."""
_PLAIN = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32", "F64": "float64",
    "C64": "complex64",
}  # fmt: skip
_SPECIAL = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so (9 bytes and more) is safetensors: a length, then JSON."""
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") >> 40 == 0


def read(path: Path) -> Checkpoint:
    """Opens a file. Raises `ModelError`: truncated, damaged, or of another format."""
    return parse(mapped(path, "a .safetensors file"), path)


def parse(data: memoryview, path: Path) -> Checkpoint:
    """What the bytes of a file hold; ``path``: what errors call it. Raises `ModelError` as `read` does."""
    header, start = _header(data, path)
    tensors = data[start:]
    header.pop("__metadata__", None)
    entries, places = {}, []
    for name, item in header.items():
        entries[name], place = _entry(name, item, tensors, path)
        places.append(place)
    _check_order(places, len(tensors), path)
    if not entries:
        raise ModelError(f"{path} holds no tensor.")
    return Checkpoint(path, "safetensors", entries, [path])


def _header(data: memoryview, path: Path) -> tuple[dict[str, object], int]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise ModelError(
            f"{path} is truncated, or no .safetensors file: its header is said to have {length} bytes, the "
            f"file has {len(data)}."
        )
    if length > MOST_HEADER:
        raise ModelError(
            f"{path} has a header of {human_bytes(length)}; at most {human_bytes(MOST_HEADER)} are read."
        )
    try:
        header = json.loads(bytes(data[8 : 8 + length]).decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:  # JSON's and UTF-8's errors among them
        reason = one_line(str(error))[:120]
        raise ModelError(f"{path} is not a .safetensors file: its header is no JSON ({reason}).") from None
    if not isinstance(header, dict):
        raise ModelError(f"{path} is not a .safetensors file: its header is no JSON object.")
    return header, 8 + length


def _entry(name: str, item: object, tensors: memoryview, path: Path) -> tuple[Entry, tuple[int, int]]:
    what = f"{path}: the tensor {shortened(one_line(name), 100)!r}"
    if not isinstance(item, dict) or not {"dtype", "shape", "data_offsets"} <= item.keys():
        raise ModelError(f"{what} is not described by dtype, shape and data_offsets.")
    shape, offsets = item["shape"], item["data_offsets"]
    if not _are_lengths(shape) or not _are_lengths(offsets) or len(offsets) != 2:
        raise ModelError(f"{what} has a shape or data_offsets that are no lists of whole numbers.")
    first, last = offsets
    if not first <= last <= len(tensors):
        raise ModelError(
            f"{what} lies at bytes {first}..{last} of {len(tensors)}: the file is truncated or damaged."
        )
    entry = Entry(name, _dtype(item["dtype"], what), tuple(shape), (tensors[first:last],))
    return check_entry(entry, what), (first, last)


def _are_lengths(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 62 for item in value)


def _dtype(name: object, what: str) -> DType:
    if isinstance(name, str) and name in _PLAIN:
        return np.dtype(_PLAIN[name])
    if isinstance(name, str) and name in _SPECIAL:
        return special_dtype(_SPECIAL[name])
    known = ", ".join([*_PLAIN, *_SPECIAL])
    raise ModelError(f"{what} has the type {one_line(str(name))[:40]!r}; expected {known}.")


def _check_order(places: Iterable[tuple[int, int]], size: int, path: Path) -> None:
    """The format demands that tensors follow one another without gap or overlap, to the end of the file."""
    at = 0
    for first, last in sorted(places):
        if first != at:
            raise ModelError(
                f"{path} is damaged: its tensors overlap or leave a gap at byte {at} of the data."
            )
        at = last
    if at != size:
        raise ModelError(f"{path} is damaged: {size - at} bytes at its end belong to no tensor.")
