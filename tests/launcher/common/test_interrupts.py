"""Ctrl-C is held back where it would interrupt, and costs nothing where an event loop takes it."""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType

import pytest
import uvloop

from launcher.common.interrupts import ENDS, held_back


def test_it_comes_at_the_end() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_first_of_several_comes_at_the_end_once_and_all_handlers_are_back() -> None:
    came: list[tuple[int, bool]] = []

    def handler(number: int, frame: FrameType | None) -> None:
        came.append((number, reached))

    reached = False
    before = [signal.signal(number, handler) for number in ENDS]
    try:
        with pytest.raises(KeyError), held_back(*ENDS):
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
                signal.raise_signal(number)
            reached = True
            raise KeyError
        assert came == [(signal.SIGHUP, True)]
        assert [signal.getsignal(number) for number in ENDS] == [handler] * 3
        with held_back():  # of a Ctrl-C alone
            signal.raise_signal(signal.SIGTERM)
            assert len(came) == 2
    finally:
        for number, earlier in zip(ENDS, before, strict=True):
            signal.signal(number, earlier)


def test_what_is_ignored_stays_so() -> None:
    """As a shell has it for what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_back():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_is_not_interrupted_and_sets_nothing() -> None:
    found: list[object] = []

    def work() -> None:
        with held_back(*ENDS):  # a handler may be set in the main thread only
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


@pytest.mark.parametrize("policy", [asyncio, uvloop])
def test_a_loop_takes_it(policy: object, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> int:
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGINT, told.set)
        before, set_again = signal.getsignal(signal.SIGINT), list[object]()
        monkeypatch.setattr(signal, "signal", lambda *arguments: set_again.append(arguments))
        monkeypatch.setattr(signal, "getsignal", None)  # which takes as long as all else of it
        with held_back():
            signal.raise_signal(signal.SIGINT)
        monkeypatch.undo()
        await asyncio.wait_for(told.wait(), 30)
        assert signal.getsignal(signal.SIGINT) == before
        loop.remove_signal_handler(signal.SIGINT)
        return len(set_again)

    run = asyncio.run if policy is asyncio else uvloop.run
    assert run(work()) == 0
