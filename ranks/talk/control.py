"""A rank's connection to its launcher: requests come in, results and errors go out, and its end ends the
rank."""

from __future__ import annotations

import functools
import os
import queue
import socket
import threading
import weakref
from collections.abc import Mapping

from ranks.common.leaving import MPICH_FILE, remove_shared
from ranks.common.pulse import Pulse, wait
from ranks.common.settings import SCRATCH
from ranks.errors import PeerLostError, ShardrunError, is_usage
from ranks.identity.told import Told
from ranks.talk import wire
from ranks.talk.connect import EXIT_ORPHANED, open_socket
from ranks.talk.stacks import offer
from ranks.talk.stream import Stream
from sharding.common.arrays import Array
from sharding.common.limits import HOLD_LESS, shortage

SCRATCH_PREFIX = "shardrun-"
_STOP_SECONDS = 4
_LINGER_SECONDS = 2  # longer than the launcher looks for the first cause
_MAX_TEXT = 64 << 10


class Control:
    """The connection. ``requests`` holds the launcher's messages, in order.

    A thread of its own waits for them, so that the launcher's death is noticed even while the main thread
    is inside a collective: the process then ends at once.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.requests: queue.SimpleQueue[wire.Message] = queue.SimpleQueue()
        self._stream = Stream(sock)
        self._sending = threading.Lock()
        self._limit: tuple[object, object] = None, 0
        self._told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._words: queue.SimpleQueue[object] = queue.SimpleQueue()
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
        except OSError:
            self._end()

    def told(self) -> Told:
        """What the launcher says of this rank's place: it does so as soon as it knows the rank."""
        return self._told.get()

    def limit_of(self, request: int, first: int) -> int:
        """How many steps of a run the launcher wants so far; ``first``: where it has not said more."""
        said, most = self._limit
        return most if said == request and isinstance(most, int) else first

    def resumed(self, request: object) -> bool:
        """Waits, after a request that this rank could not compute, until the launcher has found that the
        others fared alike; False where this rank is to stop instead. More requests may have come already:
        they are for ranks that are in step."""
        while True:
            word = self._words.get()
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
                message = self._stream.receive()
                if message.kind is wire.Kind.PING:
                    self.send(wire.Kind.PONG, self._alive())
                    continue
                if message.kind is wire.Kind.TOLD:
                    self._told.put(Told.of(message.fields))
                    continue
                if message.kind is wire.Kind.STOP:
                    self._stopping = True
                    timer = threading.Timer(_STOP_SECONDS, self._end)
                    timer.daemon = True
                    timer.start()
                    self._words.put(None)
                if message.kind is wire.Kind.LIMIT:  # in the midst of a request
                    self._limit = message.fields.get("request"), message.fields.get("most")
                elif message.kind is wire.Kind.RESUME:
                    self._words.put(message.fields.get("request"))
                else:
                    self.requests.put(message)
        except (OSError, wire.WireError) as error:
            if not self._stopping:
                if shortage(error):  # the launcher is still there
                    self.report(error, "")
                self._end()
        finally:
            self._closed.set()

    def _end(self) -> None:
        """Ends the process from whichever thread notices; nobody is left to tell."""
        scratch = SCRATCH.text()
        if os.path.basename(scratch).startswith(SCRATCH_PREFIX):  # noqa: PTH119 - an import less on the way out
            import shutil

            shutil.rmtree(scratch, ignore_errors=True)
        remove_shared(MPICH_FILE)  # where it is still in MPI_Init
        os._exit(EXIT_ORPHANED)


def _drop_in_child(control: weakref.ref[Control]) -> None:
    if (parents := control()) is not None:
        parents._stream.socket.close()  # not shut down: the connection is the parent's
