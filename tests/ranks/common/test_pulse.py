"""A rank that stands still is told from one that computes, waits, is idle, or is kept from computing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from ranks.collectives.base import Communicator
from ranks.collectives.shm.communicator import ShmCommunicator
from ranks.common import processes, pulse
from ranks.common.pulse import PLACES, Beat, Pulse, wait, work
from ranks.run.rank_model import Interface, RankModel

if TYPE_CHECKING:
    from ranks.run.schedule import Schedule

STILL, MOVES, NEITHER = Beat(still=True), Beat(moves=True), Beat()


@work
def working(do: Callable[[], None]) -> None:
    do()


@wait
def waiting(do: Callable[[], None]) -> None:
    do()


Calls = Callable[[Callable[[], None]], None]


@contextmanager
def thread(call: Calls, do: Callable[[threading.Event], None]) -> Iterator[None]:
    """A thread that is inside of ``call``."""
    over, inside = threading.Event(), threading.Event()

    def run() -> None:
        inside.set()
        do(over)

    one = threading.Thread(target=call, args=(run,))
    one.start()
    inside.wait(10)
    try:
        yield
    finally:
        over.set()
        one.join()


def rest(over: threading.Event) -> None:
    over.wait(60)


def compute(over: threading.Event) -> None:
    while not over.is_set():
        pass


def beats(pulse: Pulse, count: int = 4) -> list[Beat]:
    found = []
    for _ in range(count):
        time.sleep(0.05)
        found.append(pulse.beat())
    return found


def test_one_that_rests_in_the_midst_of_its_work_stands_still() -> None:
    with thread(working, rest):
        found = beats(Pulse())
    assert found[0] != STILL and found[-1] == STILL


@pytest.mark.parametrize("on_device", [False, True])
def test_a_model_on_a_device_does_not(on_device: bool, tmp_path: Path) -> None:
    """Whoever runs it, a rank that serves or a script: the processors may be at rest meanwhile."""

    class Program:
        def __init__(self, do: Callable[[], None]) -> None:
            self._do = do

        def run(self, feeds: object) -> list[object]:
            self._do()
            return []

    def run(do: Callable[[], None]) -> None:
        program = cast("Schedule", Program(do))
        loaded = RankModel(tmp_path / "model.onnx", Interface([], []), program=program)
        loaded.on_device = on_device
        assert loaded.run({}) == []

    with thread(run, rest):
        assert beats(Pulse())[-1] == (NEITHER if on_device else STILL)


@pytest.mark.parametrize(
    ("calls", "do", "wanted"),
    [
        ([working], compute, MOVES),
        ([waiting], rest, NEITHER),
        ([waiting], compute, NEITHER),
        ([lambda do: working(lambda: waiting(do))], rest, NEITHER),
        ([working, waiting], rest, NEITHER),
        ([lambda do: working(lambda: pulse.by_device(do))], rest, NEITHER),
        ([lambda do: do()], rest, NEITHER),
        ([], rest, NEITHER),
    ],
    ids=[
        "computes",
        "waits",
        "waits awake",
        "waits in its work",
        "a thread waits",
        "a device computes",
        "idle",
        "alone",
    ],
)
def test_others_do_not(calls: list[Calls], do: Callable[[threading.Event], None], wanted: Beat) -> None:
    with ExitStack() as stack:
        for call in calls:
            stack.enter_context(thread(call, do))
        assert set(beats(Pulse())) == {wanted}


def test_one_that_gets_no_processor_or_reads_from_a_disk_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([(0.0, False), (1.0, False), (1.0, True), (1.0, False), (0.5, False), (0.5, False)])
    monkeypatch.setattr(pulse, "spent_by_threads", lambda working, but: next(told))
    with thread(working, rest):
        assert beats(Pulse(), 6) == [MOVES, MOVES, MOVES, STILL, MOVES, STILL]


def test_time_of_threads() -> None:
    """Of those at work also that in which they are ready, and others have the processor."""
    with thread(working, compute), thread(working, compute):
        own = {one.native_id for one in threading.enumerate()}
        before = processes.spent_by_threads(own, ())[0]
        without = processes.spent_by_threads((), own)[0]
        time.sleep(0.5)
        spent, on_disk = processes.spent_by_threads(own, ())
        assert spent - before > 0.4 and isinstance(on_disk, bool)
        assert processes.spent_by_threads((), ())[0] <= spent
        assert processes.spent_by_threads((), own)[0] - without < 0.3


@pytest.mark.skipif(
    not Path("/proc/self/wchan").is_file(), reason="this kernel does not say where threads wait"
)
def test_one_whose_output_nobody_reads_does_not() -> None:
    reader, writer = os.pipe()
    with thread(working, lambda over: [os.write(writer, b"x" * (1 << 20)), os.close(writer)]):
        try:
            assert beats(Pulse()) == [MOVES] * 4
        finally:
            while os.read(reader, 1 << 20):
                pass
            os.close(reader)


def test_another_thread_of_python_does_not_count() -> None:
    with thread(working, rest), thread(lambda do: do(), compute):
        assert beats(Pulse())[1:] == [STILL] * 3


def test_numbers_of_threads_in_a_forked_child() -> None:
    """As a rank of another host is."""
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pulse.kernel_number(threading.main_thread()) == threading.main_thread().native_id
        return
    os._exit(int(pulse.kernel_number(threading.main_thread()) != threading.get_native_id()))


def test_every_collective_of_every_backend_is_a_wait() -> None:
    class Another(Communicator):
        def barrier(self) -> None: ...

    assert PLACES[Another.barrier.__code__] == "waits"
    for name in ("all_to_all", "broadcast", "send", "barrier", "_split", "split"):
        assert PLACES[getattr(ShmCommunicator, name).__code__] == "waits", name
