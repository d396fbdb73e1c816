"""Memory that is moved into large pages keeps its content, and takes no more."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
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
        """Whether this system can do it at all, and has as many large pages left."""
        first = -(-self.array.ctypes.data // PAGE) * PAGE
        last = (self.array.ctypes.data + SIZE) // PAGE * PAGE
        advise = ctypes.CDLL(None).madvise
        return not advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), 25)


def need_large_pages() -> None:
    """Skips a test where this system moves no memory into large pages."""
    if not Block(mmap.MADV_DONTDUMP, SIZE).can_move() or "[never]" in large_pages._SETTING.read_text():
        pytest.skip("this system has no large pages, none are left, or its kernel is older")


def collapse(block: Block) -> None:
    """Moves what can be moved, of which ``block`` is a part if this system has the pages.

    A machine that runs other tests may have none free now and some a moment later.
    """
    for _ in range(10):
        large_pages.collapse()
        if block.size("AnonHugePages"):
            return


def test_what_is_full_moves_and_what_is_not_stays() -> None:
    full, sparse = Block(mmap.MADV_DONTDUMP, SIZE), Block(mmap.MADV_DONTFORK, PAGE // 2)
    before = sparse.size("Rss")
    assert before < SIZE // 2 and full.size("AnonHugePages") == 0
    collapse(full)
    for block in (full, sparse):
        assert np.array_equal(block.array, block.want)
    assert sparse.size("Rss") == before and sparse.size("AnonHugePages") == 0
    assert full.size("Rss") == SIZE
    need_large_pages()
    assert full.size("AnonHugePages") > 0


def test_weights_move_that_lie_in_one_block_with_memory_that_is_not_used() -> None:
    half = Block(mmap.MADV_DONTFORK, SIZE // 2)
    before = half.size("Rss")
    collapse(half)
    assert np.array_equal(half.array, half.want)
    assert half.size("Rss") <= before + PAGE
    need_large_pages()
    assert half.size("AnonHugePages") > 0


def test_memory_that_was_only_read_takes_no_pages() -> None:
    """All of it is one page of zeros, which no other memory is put in the place of."""
    read = Block(mmap.MADV_DONTFORK, PAGE)
    assert not read.array[PAGE:].any()
    before = read.size("Rss")
    large_pages.collapse()
    assert np.array_equal(read.array, read.want)
    assert read.size("Rss") <= before + PAGE


def test_a_call_that_finds_no_free_page_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def advise(first: ctypes.c_void_p, size: ctypes.c_size_t, advice: int) -> int:
        calls.append(advice)
        return -1 if len(calls) < 3 else 0

    library = type("Library", (), {"madvise": staticmethod(advise)})
    (tmp_path / "enabled").write_text("always [madvise] never")
    monkeypatch.setattr(large_pages, "_SETTING", tmp_path / "enabled")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(large_pages, "_blocks", lambda: [(0, PAGE)])
    monkeypatch.setattr(large_pages, "_full", lambda start, end: [(start, end)])
    large_pages.collapse()
    assert calls == [25] * 3


JOINED = """
import ctypes, mmap, sys
from pathlib import Path
from ranks.common import heap, large_pages
if sys.argv[1] == "joined":
    heap.join()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
for number in range(16):  # each of a file, which is let go then and leaves a gap too small for the next
    size = (3 << 20) + (number << 14)
    file = mmap.mmap(-1, size)
    ctypes.memset(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size))), 1, size)
    file.close()
large_pages.collapse()
lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
print(next(int(line.split()[1]) >> 10 for line in lines if line.startswith("AnonHugePages")))
"""


def test_weights_of_a_rank_lie_side_by_side_so_that_more_is_in_large_pages() -> None:
    need_large_pages()
    command = [sys.executable, "-c", JOINED]
    joined, apart = (
        int(subprocess.run([*command, how], check=True, capture_output=True).stdout)
        for how in ("joined", "apart")
    )
    if not joined and not apart:
        pytest.skip("no large pages were left for another process")
    assert joined > apart  # with a mapping each, a third lies in the edges


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
