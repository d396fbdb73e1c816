"""Which libraries a shared library names, from a file that is written here."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ranks.devices.linked import needed

HEADER, SEGMENT, ENTRY = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ"), struct.Struct("<QQ")
MAGIC = b"\x7fELF\x02\x01"
NAMES = b"\0libone.so.1\0libtwo.so\0unused\0"
ADDRESS, STRIDE = 0x1000, SEGMENT.size + 8


def library(*, shift: int = 0, magic: bytes = MAGIC, strings: int = ADDRESS + 0x40) -> bytes:
    """Segments begin at byte 64, each with 8 bytes more than needed. The table of names lies 0x40 bytes
    behind the beginning of the second loaded segment."""
    dynamic = b"".join(
        ENTRY.pack(tag, value)
        for tag, value in [(1, 1), (14, 5), (1, 13), (5, strings), (0, 0), (1, 24), (5, 0)]
    )
    load, place = 64 + 3 * STRIDE, 64 + 3 * STRIDE + 0x40 + len(NAMES)
    segments = [
        (1, 4, 0, 0, 0, 0x100, 0x100, 1),
        (2, 4, place, 0, 0, len(dynamic), len(dynamic), 8),
        (1, 4, load, ADDRESS, 0, 0x40 + len(NAMES), 0x1000, 1),
    ]
    head = HEADER.pack(magic.ljust(16, b"\0"), 3, 62, 1, 0, 64 + shift, 0, 0, 64, STRIDE, 3, 0, 0, 0)
    table = b"".join(SEGMENT.pack(*segment) + b"\xff" * 8 for segment in segments)
    return head + table + bytes(0x40) + NAMES + dynamic


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (library(), ("libone.so.1", "libtwo.so")),
        (library(magic=b"\x7fELF\x01\x01"), ()),
        (library(magic=b"\x7fELF\x02\x02"), ()),
        (library(shift=1 << 40), ()),
        (library(strings=ADDRESS + 0x40 + len(NAMES)), ()),
        (library(strings=ADDRESS - 1), ()),
        (library()[:300], ()),
        (b"\x7fELF", ()),
        (b"", ()),
    ],
)
def test_names_that_a_library_needs(data: bytes, wanted: tuple[str, ...], tmp_path: Path) -> None:
    """Those before the end of its list; none where the file is another or damaged."""
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    assert needed(path) == wanted


def test_no_library(tmp_path: Path) -> None:
    assert needed(tmp_path / "lib.so") == needed(tmp_path) == ()
