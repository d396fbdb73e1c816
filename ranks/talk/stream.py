"""Messages over a connected stream socket."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from ranks.talk import area, unix, wire

_BUFFERED, _MOST_COPIED = 64 << 10, 1 << 20
_IOV = 64


class Stream:
    """Messages over one connected stream socket. One thread may send while another receives; no more than
    that."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._buffer = bytearray(_BUFFERED)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self.received = 0
        """Bytes that have come so far, also of a message that has not come to its end."""
        self.deadline: float | None = None  # time.monotonic() by which a message must have come
        self._writer: area.Writer | None = None
        self._reader: area.Reader | None = None
        self._borrow = False

    def share_memory(self, *, borrow: bool) -> None:
        """Lets large tensors go through shared memory, if this is a connection on one host; both sides must.

        With ``borrow``, received tensors hold good only until the next message in their slot.
        """
        if self.socket.family == socket.AF_UNIX and area.available():
            self._writer, self._reader, self._borrow = area.Writer(), area.Reader(), borrow

    def send(self, message: wire.Message, slot: int = 0) -> None:
        """Sends one message, large tensors in this slot of shared memory; raises `OSError` when the peer is
        gone and `WireError` for what cannot travel."""
        self._send(*wire.encode(message, self._writer, slot))

    def send_frame(self, frame: bytes) -> None:
        """The same of a message that was encoded before."""
        self._send([frame], None)

    def _send(self, frame: list[bytes | memoryview], descriptor: int | None) -> None:
        left = sum(map(len, frame))
        while left:
            if descriptor is None:
                sent = self.socket.sendmsg(frame[:_IOV])
            else:
                try:
                    sent = socket.send_fds(self.socket, frame[:_IOV], [descriptor])
                finally:
                    os.close(descriptor)
                descriptor = None
            left -= sent
            while left and sent >= len(frame[0]):
                sent -= len(frame.pop(0))
            if left:
                frame[0] = memoryview(frame[0])[sent:]

    def receive(self, *, max_header: int = wire.MAX_HEADER, max_payload: int = 1 << 62) -> wire.Message:
        """The next message; raises `PeerClosed` at the end of the stream and `WireError` for a malformed
        frame."""
        return wire.read_frame(self._fill, max_header, max_payload, self._reader, self._borrow)

    @property
    def holds(self) -> bool:
        """Whether it has taken more from the socket than what it gave."""
        return self._start < self._end

    def receive_ready(self) -> wire.Message | None:
        """The next message, if all of it has come; None where nothing has. Waits for nothing, nor copies
        much. Raises `UnfinishedError`, and as `receive` does, which then gives the message."""
        while self._end - self._start < wire.length(self._view[self._start : self._end]):
            left = self._end - self._start
            self._view[:left] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, left
            if left == _BUFFERED:
                raise wire.UnfinishedError
            try:
                count, descriptors = unix.receive_into(self.socket, self._view[left:], wait=False)
            except BlockingIOError:
                if left:
                    raise wire.UnfinishedError from None
                return None
            if not count:
                raise wire.PeerClosed("the other side closed the connection")
            if descriptors and self._reader is not None:
                self._reader.take(descriptors)
            self.received += count
            self._end += count
        start = self._start
        try:
            return wire.read_frame(
                self._fill, reader=self._reader, borrow=self._borrow, most_copied=_MOST_COPIED
            )
        except wire.UnfinishedError:
            self._start = start
            raise

    def _fill(self, target: memoryview, first: bool = False) -> None:
        """Fills ``target``, large ones straight from the socket, small ones through one buffer to save
        calls."""
        size, start = len(target), self._start
        if size <= self._end - start:  # as of most small messages, which came as a whole
            self._start = start + size
            target[:] = self._view[start : start + size]
            return
        at = 0
        while at < size:
            if self._start == self._end and size - at >= _BUFFERED:
                count = self._receive_into(target[at:])
                if not count:
                    raise wire.WireError("the connection ended in the middle of a message")
                at += count
                continue
            if self._start == self._end:
                self._start, self._end = 0, self._receive_into(self._view)
                if not self._end:
                    if first and at == 0:
                        raise wire.PeerClosed("the other side closed the connection")
                    raise wire.WireError("the connection ended in the middle of a message")
            count = min(size - at, self._end - self._start)
            target[at : at + count] = self._view[self._start : self._start + count]
            self._start += count
            at += count

    def _receive_into(self, target: memoryview) -> int:
        if self.deadline is not None:
            self.socket.settimeout(max(self.deadline - time.monotonic(), 1e-3))
        try:
            if self._reader is None:
                count = self.socket.recv_into(target)
            else:
                count, descriptors = unix.receive_into(self.socket, target)
                if descriptors:
                    self._reader.take(descriptors)
            self.received += count
            return count
        except TimeoutError as error:
            if error.errno is not None:  # the kernel's, of a host that does not answer
                raise
            raise wire.WireError("no message came in time") from None
        finally:
            if self.deadline is not None:
                self.socket.settimeout(None)

    def close(self) -> None:
        """Ends both directions, so that a thread blocked in `receive` wakes; safe to call twice."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        if self._reader is not None:
            self._reader.close()
