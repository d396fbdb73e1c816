"""What the ranks print: rank 0's standard output as it is, everything else line by line with the rank's
number."""

from __future__ import annotations

import codecs
import os
import selectors
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from launcher.starters.base import Ended, Handle, Pipe, StreamName

TAIL_LINES = 20
_CHUNK = 64 << 10
_LONGEST_LINE = 1 << 20


class Output:
    """Reads the pipes of started ranks in one thread and keeps the last lines of each rank's standard error.

    ``lost`` is the error if some of it could not be written. Lines that belong to no rank are the launching
    program's own: they are kept, given to ``Handle.heard``, and not shown.
    """

    def __init__(self, handle: Handle, on_end: Callable[[Ended], None]) -> None:
        self._handle = handle
        self._on_end = on_end
        self.lost: OSError | None = None
        self._tails: dict[int | None, deque[str]] = defaultdict(lambda: deque(maxlen=TAIL_LINES))
        self._thread = threading.Thread(
            target=self._read, args=(handle.pipes,), name="shardrun output", daemon=True
        )
        self._thread.start()

    def tail(self, rank: int | None) -> list[str]:
        """The last lines that a rank (None: the launching program) wrote to standard error."""
        return list(self._tails[rank])

    def join(self, timeout: float) -> None:
        """Waits until everything that the ended ranks wrote has been shown."""
        self._thread.join(timeout)

    def _read(self, pipes: Sequence[Pipe]) -> None:
        with selectors.DefaultSelector() as selector:
            for pipe in pipes:
                selector.register(pipe.descriptor, selectors.EVENT_READ, _Reader(pipe, self._take))
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, _CHUNK)
                    key.data.feed(data)
                    if not data:
                        selector.unregister(key.fd)
                        os.close(key.fd)

    def _take(self, pipe: Pipe, text: str) -> None:
        parts = [(pipe.rank, text)] if pipe.rank is not None else self._handle.attribute(text)
        for rank, part in parts:
            self._take_of(rank, pipe.name, part)

    def _take_of(self, rank: int | None, name: StreamName, text: str) -> None:
        if rank is None or name == "stderr":
            self._tails[rank].append(text.rstrip("\r\n"))
        if rank is None:
            ended = self._handle.heard(text)
            if ended is not None:
                self._on_end(ended)
            return
        self.lost = show(rank, name, text) or self.lost


class _Reader:
    """Bytes of one pipe to text: whole lines, or for rank 0's own standard output whatever has come."""

    def __init__(self, pipe: Pipe, take: Callable[[Pipe, str], None]) -> None:
        self._pipe = pipe
        self._take = take
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._whole_lines = pipe.rank != 0 or pipe.name != "stdout"
        self._rest = ""

    def feed(self, data: bytes) -> None:
        """Takes what was read; nothing means the end."""
        text = self._rest + self._decoder.decode(data, final=not data)
        self._rest = ""
        if not self._whole_lines:
            if text:
                self._take(self._pipe, text)
            return
        *lines, rest = text.split("\n")
        for line in lines:
            self._take(self._pipe, line + "\n")
        if rest and (not data or len(rest) > _LONGEST_LINE):
            self._take(self._pipe, rest)
        else:
            self._rest = rest


def show(rank: int, name: StreamName, text: str) -> OSError | None:
    """Writes a rank's text to this process's stream of that name, marked unless it is rank 0's standard
    output; gives the error that prevented it, for the ranks' work goes on."""
    stream = sys.stdout if name == "stdout" else sys.stderr
    if rank != 0 or name == "stderr":
        text = f"[rank {rank}] {text}" if text.endswith("\n") else f"[rank {rank}] {text}\n"
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:  # the device is full, or the reader of our own output is gone
        return error
    except (ValueError, AttributeError):
        pass  # it was closed on purpose
    return None
