"""Stacks of another process."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ranks.common.processes import is_stopped
from ranks.talk import stacks
from tests.launcher.processes import wait_until


def _in_another_thread(stop: threading.Event) -> None:
    stop.wait()


def test_the_main_thread_is_shown_first(tmp_path: Path) -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=_in_another_thread, args=(stop,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with (tmp_path / "said").open("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            said = file.read()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert said.index("_in_another_thread") < said.index("test_the_main_thread_is_shown_first")
    found = stacks.main_first(said)
    assert found.index("test_the_main_thread_is_shown_first") < found.index("_in_another_thread")
    assert sorted(filter(None, found.splitlines())) == sorted(filter(None, said.splitlines()))
    assert stacks.main_first("") == "" and stacks.main_first("no stacks\n") == "no stacks\n"


def test_a_process_that_ends_as_soon_as_it_goes_on_has_shown_where_it_was() -> None:
    code = (
        "import os, signal\n"
        "from ranks.talk import stacks\n"
        "print(stacks.offer(), flush=True)\n"
        "def waits():\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    os._exit(0)\n"
        "waits()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            place = int(child.stdout.readline())
            assert wait_until(lambda: is_stopped(child.pid), 10)
            process = os.pidfd_open(child.pid)
            try:
                assert "in waits" in stacks.read(child.pid, process, place)
            finally:
                os.close(process)
        finally:
            child.kill()


def test_one_that_loses_its_processor_while_it_writes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ready to go on: what it has written so far is not all."""
    place = os.memfd_create("shardrun-stacks")
    process = os.pidfd_open(os.getpid())
    before = signal.signal(stacks.SIGNAL, lambda *_: None)
    looks: list[int] = []

    def is_running(_: int) -> bool:
        looks.append(1)
        if len(looks) in {1, 6}:
            os.write(place, f"line {len(looks)}\n".encode())
        return len(looks) < 7

    monkeypatch.setattr(stacks, "is_running", is_running)
    monkeypatch.setattr(stacks, "_SETTLED_SECONDS", 60.0)
    monkeypatch.setattr(stacks, "_WRITE_SECONDS", 60.0)
    try:
        assert stacks.read(os.getpid(), process, place) == "line 1\nline 6\n"
        assert len(looks) == 7
    finally:
        signal.signal(stacks.SIGNAL, before)
        os.close(process)
        os.close(place)
