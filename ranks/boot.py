"""What every started process runs: ``python -m ranks.boot serve MODEL [TARGET [PRECISION [WEIGHTS]]]`` or
``exec SCRIPT [ARG]...``.

It says hello to the launcher, does its work, and makes sure that an exception ends the process at once and
with its text reported: after MPI is up, Python's ordinary exit would wait for the other ranks, which wait
for this one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from ranks.common import settings
from ranks.common.leaving import EXIT, leave
from ranks.errors import PeerLostError, ShardrunError
from sharding.common.limits import shortage

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from ranks.talk.control import Control

USAGE = "usage: python -m ranks.boot serve MODEL [TARGET [PRECISION [WEIGHTS]]] | exec SCRIPT [ARG]..."


_FAR = "tcp:"
"""How the control channel's address begins where the launcher may be on another host."""
_MOST_TOLD = 500
"""How often in a second all ranks together tell how far they have loaded, about."""
_SPARE = 6
"""Descriptors that are given up to report an error: modules are imported for it, which takes files."""


def run(program: Sequence[str]) -> None:
    """Runs ``program``, and then ends the process where nothing of a user's is in it, or where Python's own
    end might abort."""
    main(program)
    if program[0] == "serve" or EXIT.at_once:
        leave()


def main(program: Sequence[str]) -> None:
    """Runs ``program`` in this process; returns only if it succeeded."""
    control: Control | None = None
    rank: int | None = None
    process = os.getpid()
    spare: list[int] = []
    try:
        address = settings.CONTROL.text()
        if not address.startswith(_FAR):
            _set_up_process(spare)
        if not program or program[0] not in ("serve", "exec") or len(program) < 2:
            raise ShardrunError(USAGE)
        from ranks.identity.identity import identify
        from ranks.identity.told import NOTHING

        identity, told = identify(), NOTHING
        rank = identity.rank
        if address.startswith(_FAR):
            from ranks.talk.keeper import keep

            keep(address, settings.JOB.text(), rank, identity.world_size)
            process = os.getpid()
            _set_up_process(spare)
        if address:
            from ranks.talk.control import Control

            control = Control.connect(address, settings.JOB.text(), rank, identity.world_size, identity.host)
            from ranks.common.progress import LOADING, PAUSE_SECONDS
            from ranks.identity.binding import bind
            from ranks.talk.frame import Kind
            from ranks.talk.title import name_process

            tell = control.send
            LOADING.listen(
                lambda done, total: tell(Kind.LOADING, {"done": done, "total": total}),
                pause=max(PAUSE_SECONDS, identity.world_size / _MOST_TOLD),
            )
            if settings.TOLD.text():
                told = control.told()
            bind(identity, told)
            name_process(rank, identity.world_size, settings.JOB.text(), " ".join(program[:2]))
        if program[0] == "serve":
            from ranks.run.serve import serve

            serve(identity, control, *program[1:5], told=told)
        else:
            from ranks.common.leaving import clear_after_scripts
            from ranks.compat import run_script

            clear_after_scripts()
            run_script(program[1], list(program[2:]))
    except SystemExit as error:
        _exit(_own(control, process), error)
    except BaseException as error:
        _fail(_own(control, process), rank, error, spare)
    control = _own(control, process)
    if control is not None:
        control.bye()


def _own(control: Control | None, process: int) -> Control | None:
    """None in a child that the script forked: how that ends is not how the rank ends."""
    return control if os.getpid() == process else None


def spawned(
    program: Sequence[str],
    environment: Mapping[str, str],
    parent: int,
    stdout: Connection,
    stderr: Connection,
) -> None:
    """`main` for the local launcher: a fresh multiprocessing child that still has its parent's
    environment."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # what the rank starts can be ended with it
    # Where the launcher's own streams are closed, the pipes have their numbers.
    ours = [fcntl.fcntl(pipe.fileno(), fcntl.F_DUPFD, 3) for pipe in (stdout, stderr)]
    for pipe in (stdout, stderr):
        pipe.close()
    for descriptor, own in zip((1, 2), ours, strict=True):
        os.dup2(own, descriptor)
        os.close(own)
    os.environ.clear()
    os.environ.update(environment)
    if os.getppid() != parent:
        os._exit(1)
    run(program)


def _set_up_process(spare: list[int]) -> None:
    if settings.CONTROL.text():
        # A rank has no input. Open MPI would give its own to rank 0, and that of /dev/null never ends.
        nothing = os.open(os.devnull, os.O_RDONLY)
        if nothing != 0:
            os.dup2(nothing, 0)
            os.close(nothing)
    for stream in (sys.stdout, sys.stderr):
        # A rank's output is a pipe: without this its last lines would come late, or be lost with it.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # Whole lines at once, even with PYTHONUNBUFFERED: mpirun marks each write with its rank.
            reconfigure(line_buffering=True, write_through=False)
    if settings.SAFE_PATH.take():
        os.environ.pop("PYTHONSAFEPATH", None)
    if settings.CONTROL.text():
        # Ctrl-C reaches every process of a terminal; the launcher alone decides what it means. It is ignored
        # before anything is imported: numpy's OpenBLAS sends one to itself where it may start no thread.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from ranks.common import heap
        from ranks.talk.connect import die_with_parent

        heap.spare_addresses()
        spare.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_SPARE))
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _exit(control: Control | None, error: SystemExit) -> None:
    """A script's own sys.exit(): success returns, anything else ends the process here."""
    if error.code is None or error.code == 0:
        return
    code = 1
    if isinstance(error.code, int):
        code = error.code & 0xFF or 1
    else:
        print(error.code, file=sys.stderr)
    if control is not None:
        control.bye(code)  # not every mpirun says how a rank ended
    _end(code)


def _fail(control: Control | None, rank: int | None, error: BaseException, spare: Sequence[int]) -> NoReturn:
    for descriptor in spare:
        os.close(descriptor)
    from ranks.compat import format_error

    if control is not None:
        control.report(error, format_error(error))
        if isinstance(error, PeerLostError):
            control.wait_for_the_end()
    elif isinstance(error, ShardrunError):
        where = "" if rank is None else f"rank {rank} on host {os.uname().nodename}: "
        print(f"error: {where}{error}", file=sys.stderr)
    elif advice := shortage(error):
        print(f"error: {type(error).__name__}: {error}: {advice}", file=sys.stderr)
    else:
        sys.stderr.write(format_error(error))
    _end(1)


def _end(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run(sys.argv[1:])
