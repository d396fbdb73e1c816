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
_GROUP, _THREADS, _EXIT_CODE = 2, 17, 49
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
LOOK_SECONDS, LONGEST_SECONDS = 0.02, 0.2
_REST = 9
"""Looks at all processes of a host take a tenth of the time at most, as far as `LONGEST_SECONDS` allows."""


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
    """A process of this host: its number and a pidfd, None where none is to be had."""

    pid: int
    process: int | None


@contextlib.contextmanager
def held(pid: int) -> Iterator[Found]:
    """A process with its pidfd, as long as that is open; Linux before 5.3 has none, nor have some sandboxes,
    and there may be too many open files. Raises `ProcessLookupError` where there is no such process."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (OSError, AttributeError):
        process = None
    try:
        yield Found(pid, process)
    finally:
        if process is not None:
            os.close(process)


def running(wanted: Callable[[int, bytes, Sequence[bytes]], bool]) -> Iterator[Found]:
    """The processes of this host that run and are ``wanted``; each pidfd is closed when the next one is asked
    for. ``wanted`` is told a number, a name, and the fields that come after it."""
    for pid in _numbers():
        # The pidfd comes first, so that what is read and what is killed are one.
        with contextlib.suppress(OSError, ValueError, IndexError), held(pid) as found:
            text = _text(f"/proc/{pid}/stat")
            begin, end = text.index(b"(") + 1, text.rindex(b")")
            fields = text[end + 1 :].split()
            if _runs(fields) and wanted(pid, text[begin:end], fields):
                yield found


def _runs(fields: Sequence[bytes]) -> bool:
    """Whether a process runs, by the fields after its name: its first thread alone may have ended."""
    return fields[0] not in _OVER or int(fields[_THREADS]) > 1


def _numbers() -> list[int]:
    """The numbers of the processes of this host; none where the kernel has no means to say (EMFILE)."""
    with contextlib.suppress(OSError):
        names = os.listdir("/proc")  # noqa: PTH208 - faster where there are thousands
        return [int(name) for name in names if name.isdecimal()]
    return []


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
        for one in find():
            found.append(one.pid)
            if now >= began + LEFT_SECONDS:
                tell(one, signal.SIGKILL)
            elif one.pid not in asked:
                tell(one, signal.SIGTERM)
        if not found:
            return
        asked.update(found)
        time.sleep(_pause(now))


def _pause(began: float) -> float:
    """How long to wait after a look at all processes that ``began`` then: where there are thousands of them,
    a look takes long."""
    return min(max(LOOK_SECONDS, _REST * (time.monotonic() - began)), LONGEST_SECONDS)


def tell(found: Found, number: signal.Signals) -> None:
    """Sends a signal to a process that was there a moment ago."""
    with contextlib.suppress(OSError):
        if found.process is not None:
            signal.pidfd_send_signal(found.process, number)
        else:
            os.kill(found.pid, number)  # it was there a moment ago


class Groups:
    """Process groups of ranks that have ended, in which something is left: who holds this has other work than
    to wait, and looks every `LOOK_SECONDS` while there are any. Nothing here raises, nor needs a descriptor
    to kill."""

    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        self._next = 0.0

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

    def look(self, *, alone: bool) -> None:
        """Kills what is late, and forgets groups in which nothing is left. ``alone``: nothing else is waited
        for, so that it is worth a look at all processes whether only those are left that nobody waits for."""
        now = time.monotonic()
        for group, began in list(self._began.items()):
            try:
                os.killpg(group, signal.SIGKILL if now >= began + LEFT_SECONDS else 0)
            except OSError:
                del self._began[group]
            else:
                if now >= began + KILL_SECONDS:
                    del self._began[group]
        if alone and self and now >= self._next:
            running_ones = _groups_of_running(self._began)
            self._began = {group: began for group, began in self._began.items() if group in running_ones}
            self._next = time.monotonic() + _pause(now)


def _groups_of_running(groups: Collection[int]) -> Collection[int]:
    """The process groups in which something runs; ``groups`` where the kernel has no means to say."""
    found: set[int] = set()
    try:
        for name in os.listdir("/proc"):  # noqa: PTH208 - as above
            if name.isdecimal():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError, IndexError):
                    text = _text(f"/proc/{name}/stat")
                    fields = text[text.rindex(b")") + 1 :].split()
                    if _runs(fields):
                        found.add(int(fields[_GROUP]))
    except OSError:
        return groups
    return found


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
