"""The process above a rank of another host: it says how the rank ended, that it is stopped, and where it is.

Over a network a rank that is gone looks the same whatever its end was, and what starts ranks there may say
nothing of it: Open MPI ends the job without a word, MPICH and Slurm with the code of a rank whose MPI gave up
because of it; and a stopped rank looks like one that computes. Only a parent is told by the kernel. So such a
rank is forked from a process that has imported next to nothing, waits for it, tells the launcher, ends what
the rank has left running, and ends in the same way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from typing import NoReturn

from ranks.common import processes, sources
from ranks.common.descriptors import close_all
from ranks.errors import ShardrunError
from ranks.talk import stacks
from ranks.talk.connect import EXIT_ORPHANED, adopt_orphans, die_with_parent, open_socket
from ranks.talk.frame import Kind, head

_ASKED_BYTES = 4096
_OWN = 0x20000000 if sys.platform == "linux" else 0
"""waitpid(2), __WNOTHREAD: not the children of other threads, which wait for them themselves. What
descendants leave is the first thread's."""
_DAEMONS = ("prted", "orted")
_SHARED, _OF_ONE = "prted", b"prterun-"
"""Which daemon may be a DVM's; and how the names of jobs begin that have one of their own."""
_GRACE_SECONDS, _ORDERLY_SECONDS = 1.5, 2.0
_BROKEN_SECONDS = 10.0
"""By then the connection of a host that is cut off has broken, which may be later than the rank's, and all
its ranks have ended."""
_TCP_CLOSE = 7  # of tcp_states.h
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def keep(address: str, job: str, rank: int, world_size: int) -> None:
    """Returns in a child process, which is to be the rank; the parent stays above it. To be called before
    any thread is there."""
    try:
        child = os.fork()
    except OSError:  # the rank itself will say what is short
        return
    if child:
        _stay(child, address, job, rank, world_size)
    # The others' MPI often hears of a rank's death before its parent does, and has all processes killed. With
    # this it waits first, so that the parent has time to tell.
    os.environ.setdefault("OMPI_MCA_opal_abort_delay", "1")  # seconds; whole ones only
    os.environ.update(sources.segments(in_memory=True))  # a disk would slow a script's own MPI down


def _stay(child: int, address: str, job: str, rank: int, world_size: int) -> NoReturn:
    die_with_parent()
    adopt_orphans()
    for number in _PASSED_ON:
        signal.signal(number, lambda number, frame: _pass_on(child, number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)  # what started it may hold them back
    # What the launching program gave the rank stays open here: MPICH ends the job, this process too, as soon
    # as that closes.
    header = {
        "job": job,
        "rank": rank,
        "world_size": world_size,
        "host": os.uname().nodename,
        "keeps": child,
        "pid": os.getpid(),
    }
    told: socket.socket | None = None
    sending = threading.Lock()
    with contextlib.suppress(OSError, ShardrunError):
        # Now: whatever started the ranks may end this process as soon as the rank is gone.
        told = open_socket(address)
        told.sendall(_frame(Kind.HELLO, header))
        threading.Thread(target=_answer, args=(told, child, sending), daemon=True).start()
    while True:
        ended, status = os.waitpid(-1, os.WUNTRACED | os.WCONTINUED | _OWN)
        if ended != child:  # what it has left
            continue
        over = os.WIFEXITED(status) or os.WIFSIGNALED(status)
        fields: dict[str, object] = {"stopped": os.WIFSTOPPED(status)}
        if over:
            fields = {"code": os.waitstatus_to_exitcode(status)}
        if told is not None:
            with contextlib.suppress(OSError), sending:
                told.sendall(_frame(Kind.BYE if over else Kind.PONG, fields))
        if over:
            code = os.waitstatus_to_exitcode(status)
            if code == EXIT_ORPHANED if told is not None else code:
                _end_daemon_later(told)
            _end_alike(code)


def _answer(told: socket.socket, child: int, sending: threading.Lock) -> None:
    """Each time that the launcher asks, by whatever it sends, tells where the rank is in its code."""
    with contextlib.suppress(OSError):
        process = os.pidfd_open(child)
        while told.recv(_ASKED_BYTES):
            text = stacks.read(child, process, stacks.place_in(child))
            # At once: of a host that is gone nobody waits for the others.
            more = stacks.can_spy()
            with sending:
                told.sendall(_frame(Kind.PONG, {"stacks": text, "more": more}))
            if more:
                text = stacks.native(child) or text
                with sending:
                    told.sendall(_frame(Kind.PONG, {"stacks": text}))


def _end_daemon_later(told: socket.socket | None) -> None:
    """Has Open MPI's daemon, where it started this process, asked to end when it has not done so soon, nor
    is ``told`` connected any more: to end with the rank's code is no sign of that.

    On a host that is cut off it would try for a quarter of an hour to tell its mpirun of the rank. Where the
    launcher has ended only, or a firewall is between, mpirun ends it in time.
    """
    daemon = os.getppid()
    known = processes.status(daemon)
    if known is None or known.name not in _DAEMONS or not _serves_one(daemon, known.name):
        return
    with contextlib.suppress(OSError):
        process = os.pidfd_open(daemon)
        if os.getppid() != daemon:
            return
        reading, writing = os.pipe()
        if os.fork():  # what the rank has left is ended next; this has a session of its own by then
            os.close(writing)
            os.read(reading, 1)
            os.close(reading)
            return
        try:
            _end_daemon(daemon, process, told)
        finally:
            os._exit(0)  # whatever has failed: what follows is the other process's to do


def _serves_one(daemon: int, name: str) -> bool:
    """Whether a daemon is that of one mpirun, by its command, and not of a DVM, which many share."""
    with contextlib.suppress(OSError), open(f"/proc/{daemon}/cmdline", "rb") as command:  # noqa: PTH123 - an import less
        return name not in _SHARED or _OF_ONE in command.read()
    return False


def _end_daemon(daemon: int, process: int, told: socket.socket | None) -> None:
    for number in _PASSED_ON:  # the rank's number may be another's by now
        signal.signal(number, signal.SIG_DFL)
    # With nothing open that the daemon reads, and not in the session that it ends.
    os.setsid()
    kept = {process} if told is None else {process, told.fileno()}
    close_all([number for number in map(int, os.listdir("/proc/self/fd")) if number not in kept])  # noqa: PTH208
    by = time.monotonic() + _BROKEN_SECONDS
    while not select.select([process], [], [], _GRACE_SECONDS)[0]:
        if (told is None or _is_broken(told)) and not _has_work(daemon):
            break
        if time.monotonic() > by:
            return
    for number in (signal.SIGTERM, signal.SIGKILL):
        if processes.is_over(process):
            return
        signal.pidfd_send_signal(process, number)
        select.select([process], [], [], _ORDERLY_SECONDS)


def _is_broken(connection: socket.socket) -> bool:
    """Whether a connection that this side has not ended is gone, or the other host does not even take what
    was sent a while ago. One that the other side ends in order is there until this side does so too."""
    with contextlib.suppress(OSError):
        waiting = fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return state == _TCP_CLOSE or any(waiting)
    return False


def _has_work(daemon: int) -> bool:
    """Whether what a daemon has started runs: other ranks, which may go on, or end themselves soon."""
    others = (child for child in _started_by(daemon) if child != os.getpid())
    return any(processes.status(child) is not None for child in others)


def _started_by(pid: int) -> list[int]:
    """The children of a process."""
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - an import less
            path = f"/proc/{pid}/task/{thread}/children"
            with contextlib.suppress(OSError), open(path) as children:  # noqa: PTH123 - the same
                found += [int(child) for child in children.read().split()]
    return found


def _pass_on(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def _frame(kind: Kind, fields: Mapping[str, object]) -> bytes:
    return b"".join(head(kind, {"fields": fields, "tensors": []}))


def _end_left() -> None:
    """Ends what the rank has started and not put into a process group of its own, as a shell puts a job."""
    processes.ask_to_end(_children)


def _children() -> Iterator[processes.Found]:
    """Those of this process group that run, as `processes.running` gives them; the others are reaped, upon
    which their own are ours."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    for child in _started_by(os.getpid()):
        if _group(child) == os.getpgrp():
            with contextlib.suppress(ProcessLookupError), processes.held(child) as one:
                yield one


def _group(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return -1


def _end_alike(code: int) -> NoReturn:
    for number in _PASSED_ON:  # the rank's number may be another's by now
        signal.signal(number, signal.SIG_IGN)
    _end_left()
    sys.stdout.flush()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank's own is enough
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)
