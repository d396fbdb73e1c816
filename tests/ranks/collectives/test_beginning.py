"""What is done when MPI has begun."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ranks.collectives import beginning
from ranks.common.leaving import MPICH_FILE, shared_files
from ranks.identity.place import Identity


def begin(
    init: Callable[[int], None],
    barrier: Callable[[], None],
    folder: Path,
    library: str = "MPICH Version: 4.1",
) -> None:
    mpi = SimpleNamespace(
        __file__=str(folder / "none.so"),
        THREAD_SERIALIZED=2,
        Init_thread=init,
        Get_library_version=lambda: library,
        COMM_WORLD=SimpleNamespace(Barrier=barrier),
    )
    beginning.begin(mpi, Identity(), 30.0)


def test_what_mpich_shares_has_no_name_once_all_have_it(tmp_path: Path) -> None:
    """It removes its file at the end of MPI only, and leaves it where a rank is killed. What belongs to
    another process stays."""
    ours, other = tmp_path / "mpich_shm_1f_0", tmp_path / "mpich_shm_2f_0"
    for path in (ours, other):
        path.write_bytes(b"x" * mmap.PAGESIZE)
    there: list[bool] = []
    held: list[mmap.mmap] = []

    def init(level: int) -> None:
        with ours.open("r+b") as file:
            held.append(mmap.mmap(file.fileno(), mmap.PAGESIZE))

    begin(init, lambda: there.append(ours.exists()), tmp_path)
    assert there == [True]  # until all have opened it
    assert [path.name for path in tmp_path.iterdir()] == [other.name]
    assert held.pop()[:1] == b"x"


@pytest.mark.parametrize(("library", "count"), [("MPICH Version: 4.1", 1), ("Open MPI v5.0.8", 0)])
def test_all_ranks_wait_for_each_other(library: str, count: int, tmp_path: Path) -> None:
    """Also one that shares no file, as it is alone on its host: others would wait for it for ever."""
    waited: list[None] = []
    begin(lambda level: None, lambda: waited.append(None), tmp_path, library)
    assert len(waited) == count


def test_a_file_that_has_no_name_is_none(tmp_path: Path) -> None:
    path = tmp_path / "mpich_shm_3f_0"
    path.write_bytes(b"x" * mmap.PAGESIZE)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE):
        assert shared_files(MPICH_FILE) == {str(path)}
        path.unlink()
        assert not shared_files(MPICH_FILE)
