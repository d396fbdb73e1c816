"""What the kernel says of a process of this host, proc(5), and the end of what ranks leave."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

_STAT_BYTES = 4096
_OVER = (b"Z", b"X", b"x")
_GROUP, _EXIT_CODE = 2, 49
"""Which of the fields after the name it is."""
_NANO = 1e-9
_AWAITED = (b"_write", b"request_wait_answer")
"""Parts of names of the kernel's functions in which a thread waits for whoever reads what it writes, and for
a file system that is a program."""


LEFT_SECONDS = 0.8
"""What ranks have left running may take so long to end by itself, asked by SIGTERM, before it is killed: less
than what started them gives who does this. multiprocessing's resource tracker, which ignores SIGTERM, removes
the shared memory that a rank has left meanwhile, and ends when the others have."""
KILL_SECONDS = 2 * LEFT_SECONDS
"""What has been killed by then and has not ended is not waited for."""
LOOK_SECONDS = 0.02


class Status(NamedTuple):
    """What is known of a running process: its parent's number; its start in clock ticks since the host
    started, which tells it from a later process with the same number; its name, of at most 15 characters;
    whether it is stopped by a signal, by a debugger or in a frozen container."""

    parent: int
    start: int
    name: str = ""
    stopped: bool = False

    def same(self, other: Status | None) -> bool:
        """Whether ``other`` is the same process, below the same parent."""
        return other is not None and self[:2] == other[:2]


def status(pid: int) -> Status | None:
    """The status of process ``pid``; None where no such process runs (one that only waits for its parent to
    notice its end does not)."""
    try:
        text = _text(f"/proc/{pid}/stat")
        # The command's name stands in parentheses and may itself hold any character.
        begin, end = text.index(b"(") + 1, text.rindex(b")")
        state, parent, *further = text[end + 1 :].split()
        if state in _OVER:
            return None
        return Status(int(parent), int(further[17]), os.fsdecode(text[begin:end]), state in {b"T", b"t"})
    except (OSError, ValueError, IndexError):
        return None


def left_with(pid: int) -> int | None:
    """The status with which a process of this user has ended that its parent has not waited for, as
    `os.waitpid` gives it; None where it runs, is gone, or the kernel does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = _text(f"/proc/{pid}/stat")
        fields = text[text.rindex(b")") + 2 :].split()
        return int(fields[_EXIT_CODE]) if fields[0] == b"Z" else None
    return None


class Found(NamedTuple):
    """A process of this host: its number, a pidfd, and its process group."""

    pid: int
    process: int
    group: int


def running(wanted: Callable[[int, bytes, Sequence[bytes]], bool]) -> Iterator[Found]:
    """The processes of this host that run and are ``wanted``; each pidfd is closed when the next one is asked
    for. ``wanted`` is told a number, a name, and the fields that come after it."""
    for number in os.listdir("/proc"):  # noqa: PTH208 - faster where there are thousands
        if not number.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int(number)
            process = os.pidfd_open(pid)  # first, so that what is read and what is killed are one
            try:
                text = _text(f"/proc/{pid}/stat")
                begin, end = text.index(b"(") + 1, text.rindex(b")")
                fields = text[end + 1 :].split()
                is_gone = fields[0] in _OVER and is_over(process)
                if not is_gone and wanted(pid, text[begin:end], fields):
                    yield Found(pid, process, int(fields[_GROUP]))
            finally:
                os.close(process)


def is_over(process: int) -> bool:
    """Whether all threads of a pidfd's process have ended; the first one alone may have."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))


def ask_to_end(find: Callable[[], Iterable[Found]]) -> None:
    """Ends the processes that are found, until there are none: those that do not end when they are asked to
    are killed, and then not waited for much longer."""
    asked: set[int] = set()
    began = time.monotonic()
    while (now := time.monotonic()) < began + KILL_SECONDS:
        found = []
        for pid, process, _ in find():
            found.append(pid)
            if now >= began + LEFT_SECONDS:
                _tell(process, signal.SIGKILL)
            elif pid not in asked:
                _tell(process, signal.SIGTERM)
        if not found:
            return
        asked.update(found)
        time.sleep(LOOK_SECONDS)


def _tell(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(process, number)


class Groups:
    """Process groups of ranks that have ended, in which something is left: who holds this has other work than
    to wait, and looks every `LOOK_SECONDS` while there are any."""

    def __init__(self) -> None:
        self._began: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._began)

    def end(self, group: int, wait: Callable[[], object]) -> None:
        """Asks what is left in a group to end; ``wait`` waits for its first process, which has ended."""
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGTERM)  # now: its number cannot be another's
        wait()
        with contextlib.suppress(OSError):
            os.killpg(group, 0)  # nor can it be as long as something is left
            self._began[group] = time.monotonic()

    def look(self) -> None:
        """Kills what is late, and forgets groups in which nothing is left."""
        if not self:
            return
        now, left = time.monotonic(), set()
        for found in running(lambda pid, name, fields: int(fields[_GROUP]) in self._began):
            left.add(found.group)
            if now >= self._began[found.group] + LEFT_SECONDS:
                _tell(found.process, signal.SIGKILL)
        self._began = {
            group: began for group, began in self._began.items()
            if group in left and now < began + KILL_SECONDS
        }  # fmt: skip


def is_stopped(pid: int) -> bool:
    """Whether a process runs on this host, and is stopped."""
    now = status(pid)
    return now is not None and now.stopped


def became(pid: int, name: str) -> str:
    """The program that a process is that had this name (prctl), where it has another name now, as after
    exec(2); "" where it has not, or has ended."""
    now = status(pid)
    with contextlib.suppress(OSError):
        place = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - an import less; one that ends has none
        return "" if now is None or now.name == name else place
    return ""


def is_running(pid: int) -> bool:
    """Whether a thread of a process of this host computes, or is ready to and waits for a processor."""
    with contextlib.suppress(OSError):
        for thread in os.scandir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
                text = _text(f"{thread.path}/stat")
                if text[text.rindex(b")") + 2 :].startswith(b"R"):
                    return True
    return False


def spent_by_threads(working: Collection[int | None], but: Collection[int | None]) -> tuple[float, bool]:
    """Seconds for which threads of this process have run, all together, and those that are ``working`` also
    for which they were ready to and got no processor; and whether one of them waits now for a disk (or for
    memory that lies on one), or for who reads what it writes. ``but``: numbers of those that do not count.

    A library's thread that wakes up now and then, as they do, is ready all the time on a crowded machine.
    """
    seconds, waits = 0.0, False
    with contextlib.suppress(OSError):
        for thread in os.scandir("/proc/self/task"):
            number = int(thread.name)
            if number in but:
                continue
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
                text = _text(f"{thread.path}/stat")
                state, *fields = text[text.rindex(b")") + 2 :].split()
                waits = waits or state == b"D"
                if number in working and state == b"S":
                    place = _text(f"{thread.path}/wchan")
                    waits = waits or any(name in place for name in _AWAITED)
                try:
                    run, ready = _text(f"{thread.path}/schedstat").split()[:2]
                    seconds += (int(run) + (int(ready) if number in working else 0)) * _NANO
                except OSError:  # a kernel without
                    seconds += (int(fields[10]) + int(fields[11])) / os.sysconf("SC_CLK_TCK")
    return seconds, waits


def _text(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _STAT_BYTES)
    finally:
        os.close(descriptor)
