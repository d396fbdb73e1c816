"""What is done when MPI has begun."""

from __future__ import annotations

import mmap
from pathlib import Path
from types import SimpleNamespace

from ranks.collectives import beginning
from ranks.identity.place import Identity


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

    world = SimpleNamespace(Barrier=lambda: there.append(ours.exists()))
    mpi = SimpleNamespace(
        __file__=str(tmp_path / "none.so"), THREAD_SERIALIZED=2, Init_thread=init, COMM_WORLD=world
    )
    beginning.begin(mpi, Identity(), 30.0)
    assert there == [True]  # until all have opened it
    assert [path.name for path in tmp_path.iterdir()] == [other.name]
    assert held.pop()[:1] == b"x"
