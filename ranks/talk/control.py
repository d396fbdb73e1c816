"""A rank's connection to its launcher: requests come in, results and errors go out, and its end ends the
rank."""

from __future__ import annotations

import errno
import functools
import os
import queue
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import TypeVar

from ranks.common.leaving import remove_mpich_files
from ranks.common.pulse import Pulse, wait
from ranks.common.settings import SCRATCH
from ranks.errors import PeerLostError, ShardrunError, is_usage
from ranks.identity.told import Told
from ranks.talk import wire
from ranks.talk.connect import CUT, EXIT_ORPHANED, open_socket
from ranks.talk.stacks import offer
from ranks.talk.stream import Stream
from sharding.common.arrays import Array
from sharding.common.limits import HOLD_LESS, shortage

_T = TypeVar("_T")
SCRATCH_PREFIX = "shardrun-"
_STOP_SECONDS = 4
_LINGER_SECONDS = 2  # longer than the launcher looks for the first cause
_MAX_TEXT = 64 << 10
_CLOSED = (errno.EBADF, errno.ENOTCONN, errno.ENETRESET)
_AT_WORK_SECONDS = 0.02
"""A main thread that works on one request for longer leaves reading to the listener."""


class Control:
    """The connection.

    A thread of its own, the listener, reads it, so that the launcher's death is noticed even while the main
    thread is inside a collective: the process then ends at once. From the first `next` on the two take turns:
    a main thread with nothing to do reads by itself, for to be woken takes longer than a small model's run.
    So what comes while one request is computed may lie for twice `_AT_WORK_SECONDS`; after that it is read
    at once. In a stream of shorter requests the main thread reads between them.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._requests: deque[wire.Message] = deque()
        self._reading = threading.Lock()
        self._turns = self._idle = self._asleep = False
        self._taken = 0
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stream = Stream(sock)
        self._sending = threading.Lock()
        self._limit: tuple[object, object] = None, 0
        self._told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._words: deque[object] = deque()
        self._stopping = False
        self._closed = threading.Event()
        self._pulse = Pulse()
        # A forked child that kept the socket open would hide this rank's death.
        os.register_at_fork(after_in_child=functools.partial(_drop_in_child, weakref.ref(self)))

    @classmethod
    def connect(cls, address: str, job: str, rank: int, world_size: int, host: str) -> Control:
        """Connects, says hello and starts to listen; raises `ControlError`."""
        control = cls(open_socket(address))
        control.send(
            wire.Kind.HELLO,
            {
                "job": job,
                "rank": rank,
                "world_size": world_size,
                "pid": os.getpid(),
                "host": host,
                "stacks": offer(),
            },
        )
        control._stream.share_memory(borrow=True)
        threading.Thread(target=control._listen, name="shardrun control", daemon=True).start()
        return control

    @wait  # for a launcher that reads
    def send(
        self,
        kind: wire.Kind,
        fields: Mapping[str, object] | None = None,
        tensors: dict[str, Array] | None = None,
        slot: int = 0,
    ) -> None:
        """Sends one message, large tensors in this slot of shared memory; a launcher that is gone ends this
        process."""
        try:
            with self._sending:
                self._stream.send(wire.Message(kind, fields or {}, tensors or {}), slot)
        except OSError as error:
            if not _is_gone(error):
                raise  # something of this process is short: whoever sends tells of it, or ends with it
            self._end()

    def told(self) -> Told:
        """What the launcher says of this rank's place: it does so as soon as it knows the rank."""
        return self._told.get()

    def next(self) -> wire.Message:
        """The launcher's next request. Only one thread asks for it, and is idle until it comes."""
        self._turns = True
        return self._first(self._requests)

    def _first(self, items: deque[_T]) -> _T:
        """The first of these: what was read before, or comes now. Meanwhile the listener does not read on:
        what it had read would lie here while this thread waits for what comes next."""
        self._idle = True
        try:
            if not items:
                with self._reading:
                    while not items:
                        self._take(self._stream.receive())
            return items.popleft()
        except (OSError, wire.WireError) as error:
            self._lose(error)
            raise
        finally:
            self._idle = False
            self._taken += 1
            if self._asleep:
                self._asleep = False
                self._bell.put(None)

    def limit_of(self, request: int, first: int) -> int:
        """How many steps of a run the launcher wants so far; ``first``: where it has not said more."""
        if self._turns and self._reading.acquire(blocking=False):
            try:
                self._take_all()
            finally:
                self._reading.release()
        said, most = self._limit
        return most if said == request and isinstance(most, int) else first

    def resumed(self, request: object) -> bool:
        """Waits, after a request that this rank could not compute, until the launcher has found that the
        others fared alike; False where this rank is to stop instead. More requests may have come already:
        they are for ranks that are in step."""
        while True:
            word = self._first(self._words)
            if word is None:
                return False
            if word == request:
                return True

    def report(self, error: BaseException, trace: str) -> None:
        """Tells the launcher why this rank ends; ``trace`` is the traceback as text."""
        text = str(error) or type(error).__name__
        advice = shortage(error)
        short = bool(advice) and advice not in text and HOLD_LESS not in text
        if short:
            text = f"{text.rstrip('.')}: {advice}."
        self.send(
            wire.Kind.ERROR,
            {
                "type": type(error).__name__,
                "message": text[:_MAX_TEXT],
                "traceback": trace[-_MAX_TEXT:],
                "expected": short or isinstance(error, ShardrunError),
                "secondary": isinstance(error, PeerLostError),
                "peer": error.peer if isinstance(error, PeerLostError) else None,
                "usage": is_usage(error),
            },
        )

    def wait_for_the_end(self) -> None:
        """Stays, after a report that another rank was the cause, until the launcher has found out how that
        one ended and closes the connection: a busy mpirun that finds both ended may name the wrong one."""
        self._stopping = True
        self._closed.wait(_LINGER_SECONDS)

    def bye(self, code: int = 0) -> None:
        """Tells the launcher that this rank ends because it is done, and with which exit code."""
        self._stopping = True
        self.send(wire.Kind.BYE, {"code": code})

    def _alive(self) -> dict[str, object]:
        """What a sign of life says."""
        beat = self._pulse.beat()
        return {"still": beat.still, "moves": beat.moves}

    def _listen(self) -> None:
        try:
            while True:
                with self._reading:
                    while not self._take(self._stream.receive()) or not self._turns:
                        pass
                    if not self._idle:  # else each of many messages would wait for a look of its own
                        self._take_all()
                self._stand_by()
        except (OSError, wire.WireError) as error:
            self._lose(error)
        finally:
            self._closed.set()

    def _stand_by(self) -> None:
        """Returns when the main thread has worked on one request for long. While that is idle, the listener
        sleeps until a request has come to it."""
        while True:
            taken = self._taken
            time.sleep(_AT_WORK_SECONDS)
            if self._idle:
                self._asleep = True
                if self._idle:  # from now on the main thread sees that, when it takes a request
                    self._bell.get()
            elif taken == self._taken:
                return

    def _take(self, message: wire.Message) -> bool:
        """Takes a message; whether it is one for the main thread."""
        if message.kind is wire.Kind.PING:
            self.send(wire.Kind.PONG, self._alive())
        elif message.kind is wire.Kind.TOLD:
            self._told.put(Told.of(message.fields))
        elif message.kind is wire.Kind.LIMIT:  # in the midst of a request
            self._limit = message.fields.get("request"), message.fields.get("most")
        elif message.kind is wire.Kind.RESUME:
            self._words.append(message.fields.get("request"))
            return True
        else:
            if message.kind is wire.Kind.STOP:
                self._stopping = True
                timer = threading.Timer(_STOP_SECONDS, self._end)
                timer.daemon = True
                timer.start()
                self._words.append(None)
            self._requests.append(message)
            return True
        return False

    def _take_all(self) -> None:
        """Takes what has come whole, and waits for nothing."""
        try:
            while (message := self._stream.receive_ready()) is not None:
                self._take(message)
        except wire.UnfinishedError:  # the listener waits for the rest
            pass
        except (OSError, wire.WireError) as error:
            self._lose(error)

    def _lose(self, error: OSError | wire.WireError) -> None:
        """The launcher cannot be heard any more."""
        if not self._stopping:
            if not _is_gone(error):  # the launcher is still there
                self.report(error, "")
            self._end()

    def _end(self) -> None:
        """Ends the process from whichever thread notices; nobody is left to tell."""
        scratch = SCRATCH.text()
        if os.path.basename(scratch).startswith(SCRATCH_PREFIX):  # noqa: PTH119 - an import less on the way out
            import shutil

            shutil.rmtree(scratch, ignore_errors=True)
        remove_mpich_files()  # where it is still in MPI_Init
        os._exit(EXIT_ORPHANED)


def _is_gone(error: OSError | wire.WireError) -> bool:
    """Whether an error says that the launcher, or the way to it, is gone: anything else, as that no memory or
    no room is left, is of this process, and the launcher can be told."""
    number = error.errno if isinstance(error, OSError) else None
    return number is None or isinstance(error, ConnectionError) or number in {*CUT, *_CLOSED}


def _drop_in_child(control: weakref.ref[Control]) -> None:
    if (parents := control()) is not None:
        parents._stream.socket.close()  # not shut down: the connection is the parent's
