"""Which libraries a shared library was linked to, read from the file itself: loading it would end at the
first one that is missing, and some are loaded by others only."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SEGMENT = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_ENTRY = struct.Struct("<QQ")  # Elf64_Dyn
_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, the low byte first: x86-64 and AArch64
_LOAD, _DYNAMIC = 1, 2  # PT_*
_END, _NEEDED, _STRINGS = 0, 1, 5  # DT_*
_LONGEST_NAME = 256


def needed(path: Path) -> tuple[str, ...]:
    """The names of the libraries that ``path`` needs, in the order in which the system loads them; none where
    it is no 64-bit ELF file, is damaged, or is not there."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _needed(data)
    except (OSError, ValueError, struct.error, UnicodeDecodeError):
        return ()


def _needed(data: mmap.mmap) -> tuple[str, ...]:
    if data[: len(_MAGIC)] != _MAGIC:
        return ()
    header = _HEADER.unpack_from(data)
    start, size, count = header[5], header[9], header[10]
    segments = [_SEGMENT.unpack_from(data, start + index * size) for index in range(count)]
    names: list[int] = []
    strings = 0
    for kind, _, offset, _, _, length, _, _ in segments:
        if kind != _DYNAMIC:
            continue
        for at in range(offset, offset + length, _ENTRY.size):
            tag, value = _ENTRY.unpack_from(data, at)
            if tag == _END:
                break
            if tag == _NEEDED:
                names.append(value)
            elif tag == _STRINGS:
                strings = value
    for kind, _, offset, address, _, length, _, _ in segments:
        if kind == _LOAD and address <= strings < address + length:
            table = offset + strings - address
            return tuple(_text(data, table + name) for name in names)
    return ()


def _text(data: mmap.mmap, at: int) -> str:
    return data[at : at + _LONGEST_NAME].split(b"\0", 1)[0].decode("ascii")
