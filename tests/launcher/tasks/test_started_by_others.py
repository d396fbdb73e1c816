"""`shardrun run` as the ranks of an mpirun that a user started, of which a signal stops one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.tasks import loading
from launcher.tasks.run import leave_now
from ranks.collectives import absence
from ranks.errors import PeerLostError
from ranks.identity.place import Identity
from ranks.talk import guard, orphan, title
from ranks.talk.title import short_name
from tests.launcher.cli_tools import environment
from tests.launcher.processes import LIMIT, MARK, marked, wait_until
from tests.ranks import worlds
from tests.ranks.collectives.test_collectives import need


def test_an_mpirun_does_not_wait_for_it(two_slices: Path, tmp_path: Path) -> None:
    """Of ranks that a user starts, which have their names in the list of processes."""
    need("mpi")
    mark = uuid.uuid4().hex
    words = ["run", str(two_slices), "--repeat", "1000000000", "--hang-timeout", "2", "--timeout", "60"]
    command = [
        *(str(worlds.mpirun()), "-n", "2", "--oversubscribe", sys.executable, "-m", "launcher.cli", *words)
    ]
    started = subprocess.Popen(
        command, env=environment(**{MARK: mark, "TMPDIR": str(tmp_path)}), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    named = "shardrun rank 1 of 2, job "

    def rank() -> int:
        return next((pid for pid in marked(mark) if _called(pid).startswith(named)), 0)

    try:
        assert wait_until(lambda: rank() > 0, 60)
        assert not _called(rank()).startswith(named + short_name(""))  # as all jobs would be called
        os.kill(rank(), signal.SIGSTOP)
        _, said = started.communicate(timeout=60)
        assert wait_until(lambda: not marked(mark), LIMIT), marked(mark)
    finally:
        started.kill()
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
    assert started.returncode != 0
    assert (
        f"shardrun: error: rank 1 on host {os.uname().nodename} did not go on within 2 s: it is pro" in said
    )


def _called(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize("silent", [False, True])
def test_nobody_is_waited_for_who_cannot_tell(monkeypatch: pytest.MonkeyPatch, silent: bool) -> None:
    """A rank waits for what started it to name the first cause; of a host that says nothing it hears none."""
    waits: list[float] = []
    monkeypatch.setattr(orphan, "let_others_tell", waits.append)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        leave_now(PeerLostError("Rank 1 is gone.", 1, silent=silent), Identity(0, 2))
    assert bool(waits) is not silent


@pytest.mark.parametrize("size", [1, 2])
def test_a_rank_that_others_start_is_watched(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """One that is alone waits for nobody, and nobody for it."""
    done: list[tuple[object, ...]] = []
    who = SimpleNamespace(world_size=size, rank=1, host="n1", key="theirs")
    job = SimpleNamespace(collectives=None, hang_timeout=7.0, model="m.onnx")
    monkeypatch.delenv("SHARDRUN_JOB", raising=False)
    monkeypatch.setattr(orphan, "end_with_launcher", lambda: 5)
    monkeypatch.setattr(absence.ABSENCE, "stand", lambda *said: done.append(("absence", *said)))
    monkeypatch.setattr(guard.GUARD, "stand", lambda *said: done.append(("stand", *said)))
    monkeypatch.setattr(guard.GUARD, "feel", lambda *said: done.append(("feel", *said)))
    monkeypatch.setattr(title, "name_process", lambda *said: done.append(("name", *said)))
    loading.take_part(job, who)  # type: ignore[arg-type]
    watched = [
        ("absence", who, ""),
        ("stand", 1, "n1", 5, 7.0),
        ("feel", 1, "n1", 7.0),
        ("name", 1, 2, "theirs", "run m.onnx"),
    ]
    assert done == (watched if size > 1 else [])
