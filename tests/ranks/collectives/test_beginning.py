"""What is done when MPI has begun."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ranks.collectives import beginning
from ranks.common.leaving import mpich_files
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


@pytest.fixture
def files(request: pytest.FixtureRequest) -> list[Path]:
    """Two where MPICH has its own."""
    found = [Path(f"/dev/shm/mpich_shm_{number}_{os.getpid()}") for number in (1, 2)]
    for path in found:
        path.write_bytes(b"x" * mmap.PAGESIZE)
        request.addfinalizer(functools.partial(path.unlink, missing_ok=True))
    return found


def test_what_mpich_shares_has_no_name_once_all_have_it(tmp_path: Path, files: list[Path]) -> None:
    """It removes its file at the end of MPI only, and leaves it where a rank is killed. What belongs to
    another process stays."""
    ours, other = files
    there: list[bool] = []
    held: list[mmap.mmap] = []

    def init(level: int) -> None:
        with ours.open("r+b") as file:
            held.append(mmap.mmap(file.fileno(), mmap.PAGESIZE))

    begin(init, lambda: there.append(ours.exists()), tmp_path)
    assert there == [True]  # until all have opened it
    assert other.exists() and not ours.exists()
    assert held.pop()[:1] == b"x"


@pytest.mark.parametrize(("library", "count"), [("MPICH Version: 4.1", 1), ("Open MPI v5.0.8", 0)])
def test_all_ranks_wait_for_each_other(library: str, count: int, tmp_path: Path) -> None:
    """Also one that shares no file, as it is alone on its host: others would wait for it for ever."""
    waited: list[None] = []
    begin(lambda level: None, lambda: waited.append(None), tmp_path, library)
    assert len(waited) == count


def test_a_file_that_has_no_name_is_none(files: list[Path], tmp_path: Path) -> None:
    """Nor is one in another folder, which a program has made."""
    path, own = files[0], tmp_path / "mpich_shm_3"
    own.write_bytes(b"x" * mmap.PAGESIZE)
    with contextlib.ExitStack() as held:
        for one in (path, own):
            file = held.enter_context(one.open("r+b"))
            held.enter_context(mmap.mmap(file.fileno(), mmap.PAGESIZE))
        assert mpich_files() == {str(path)}
        path.unlink()
        assert not mpich_files()
