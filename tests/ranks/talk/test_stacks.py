"""Stacks of another process."""

from __future__ import annotations

import faulthandler
import threading
from pathlib import Path

from ranks.talk import stacks


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
