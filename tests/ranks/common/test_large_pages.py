"""Memory that is moved into large pages keeps its content, and takes no more."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ranks.common import large_pages

SIZE, PAGE = 16 << 20, 2 << 20


class Block:
    """A mapping of its own: the kernel joins no neighbours with other advice."""

    def __init__(self, advice: int, used: int) -> None:
        self.memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory.madvise(advice)
        self.array: Any = np.frombuffer(self.memory, np.uint8)
        self.want = np.zeros(SIZE, np.uint8)
        self.want[:used] = np.arange(used) % 251
        self.array[:used] = self.want[:used]

    def size(self, wanted: str) -> int:
        """Bytes of the mapping that are ``Rss`` or ``AnonHugePages``."""
        inside = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            name, _, rest = line.partition(" ")
            if not name.endswith(":"):
                start, end = (int(part, 16) for part in name.split("-"))
                inside = start <= self.array.ctypes.data < end
            elif inside and name == f"{wanted}:":
                return int(rest.split()[0]) << 10
        raise AssertionError("the mapping is gone")

    def can_move(self) -> bool:
        """Whether this system can do it at all."""
        first = -(-self.array.ctypes.data // PAGE) * PAGE
        advise = ctypes.CDLL(None).madvise
        return not advise(ctypes.c_void_p(first), ctypes.c_size_t(PAGE), 25)


def test_full_blocks_move_and_others_do_not() -> None:
    full, sparse = Block(mmap.MADV_DONTDUMP, SIZE), Block(mmap.MADV_DONTFORK, PAGE)
    before = sparse.size("Rss")
    assert before < SIZE // 2 and full.size("AnonHugePages") == 0
    large_pages.collapse()
    for block in (full, sparse):
        assert np.array_equal(block.array, block.want)
    assert sparse.size("Rss") == before and sparse.size("AnonHugePages") == 0
    able = Block(mmap.MADV_DONTDUMP, SIZE).can_move() and "[never]" not in large_pages._SETTING.read_text()
    assert full.size("Rss") == SIZE and (full.size("AnonHugePages") >= SIZE // 2) == able


@pytest.mark.parametrize("setting", ["always madvise [never]", None])
def test_a_system_without_large_pages_is_left_alone(
    setting: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "enabled"
    if setting is not None:
        path.write_text(setting)
    looked: list[int] = []
    monkeypatch.setattr(large_pages, "_SETTING", path)
    monkeypatch.setattr(large_pages, "_blocks", lambda: looked.append(1) or [])
    large_pages.collapse()
    assert looked == []
