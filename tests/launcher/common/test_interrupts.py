"""Ctrl-C is held back where it would interrupt, and costs nothing where an event loop takes it."""

from __future__ import annotations

import asyncio
import signal

import pytest
import uvloop

from launcher.common.interrupts import held_back


def test_it_comes_at_the_end() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler


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
