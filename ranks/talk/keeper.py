"""The process above a rank of another host, which says how the rank ended.

Over a network a rank that is gone looks the same whatever its end was, and what starts ranks there may say
nothing of it: Open MPI ends the job without a word, MPICH and Slurm with the code of a rank whose MPI gave up
because of it. Only a parent is told by the kernel. So such a rank is forked from a process that has imported
next to nothing, waits for it, tells the launcher, and ends in the same way.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from typing import NoReturn

from ranks.errors import ShardrunError
from ranks.talk.connect import die_with_parent, open_socket
from ranks.talk.frame import Kind, head

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


def _stay(child: int, address: str, job: str, rank: int, world_size: int) -> NoReturn:
    die_with_parent()
    for number in _PASSED_ON:
        signal.signal(number, lambda number, frame: _pass_on(child, number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)  # what started it may hold them back
    # What the launching program gave the rank stays open here: MPICH ends the job, this process too, as soon
    # as that closes.
    header = {"job": job, "rank": rank, "world_size": world_size, "host": os.uname().nodename, "keeps": child}
    told: socket.socket | None = None
    with contextlib.suppress(OSError, ShardrunError):
        # Now: whatever started the ranks may end this process as soon as the rank is gone.
        told = open_socket(address)
        told.sendall(_frame(Kind.HELLO, header))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if told is not None:
        with contextlib.suppress(OSError):
            told.sendall(_frame(Kind.BYE, {"code": code}))
    _end_alike(code)


def _pass_on(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def _frame(kind: Kind, fields: Mapping[str, object]) -> bytes:
    return b"".join(head(kind, {"fields": fields, "tensors": []}))


def _end_alike(code: int) -> NoReturn:
    sys.stdout.flush()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank's own is enough
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)
