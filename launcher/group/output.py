"""What the ranks print: line by line, each with its rank and host where there are several, to the terminal
and to the files of a log folder."""

from __future__ import annotations

import codecs
import os
import selectors
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher.common.lines import Shown, StreamName
from launcher.starters.base import Ended, Handle, Pipe
from launcher.starters.noise import Noise

if TYPE_CHECKING:
    from launcher.group.logs import LogFiles

TAIL_LINES = 20
_CHUNK = 64 << 10
_LONGEST_LINE = 1 << 20


class Output:
    """Reads the pipes of started ranks in one thread and keeps the last lines of each rank's standard error.

    ``lost`` is the error if some of it could not be written. Lines that belong to no rank are the launching
    program's own: they are kept, given to ``Handle.heard``, and not shown; nor is what an MPI library prints
    in a rank's name. ``files``: where every line is also written.
    """

    def __init__(
        self,
        handle: Handle,
        on_end: Callable[[Ended], None],
        shown: Shown | None = None,
        files: LogFiles | None = None,
    ) -> None:
        self._handle = handle
        self._on_end = on_end
        self._shown, self._files = shown or Shown(), files
        self.lost: OSError | None = None
        self._tails: dict[int | None, deque[str]] = defaultdict(lambda: deque(maxlen=TAIL_LINES))
        self._noise: dict[int, Noise] = defaultdict(Noise)
        self._pending: dict[StreamName, list[str]] = {"stdout": [], "stderr": []}
        self._thread = threading.Thread(
            target=self._read, args=(handle.pipes,), name="shardrun output", daemon=True
        )
        self._thread.start()

    def tail(self, rank: int | None) -> list[str]:
        """The last lines that a rank (None: the launching program) wrote to standard error."""
        return list(self._tails[rank])

    def gave_up(self, rank: int) -> bool:
        """Whether the MPI of a rank has said that it lost a connection, upon which it ends the rank."""
        noise = self._noise.get(rank)
        return noise is not None and noise.lost

    def aborted(self, rank: int) -> bool:
        """Whether the MPI of a rank has said that the rank itself ended the job."""
        noise = self._noise.get(rank)
        return noise is not None and noise.called

    def join(self, timeout: float) -> None:
        """Waits until everything that the ended ranks wrote has been shown."""
        self._thread.join(timeout)

    def _read(self, pipes: Sequence[Pipe]) -> None:
        with selectors.DefaultSelector() as selector:
            for pipe in pipes:
                whole = not (self._shown.bare and pipe.name == "stdout")
                reader = _Reader(pipe, self._take, whole_lines=whole)
                selector.register(pipe.descriptor, selectors.EVENT_READ, reader)
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, _CHUNK)
                    key.data.feed(data)
                    if not data:
                        selector.unregister(key.fd)
                        os.close(key.fd)
                    self._flush()
        for rank, noise in self._noise.items():
            for line, is_noise in noise.rest():
                self._keep(rank, "stderr", line, shown=not is_noise)
        self._flush()
        if self._files is not None:
            self.lost = self._files.close() or self.lost

    def _take(self, pipe: Pipe, text: str) -> None:
        parts = [(pipe.rank, text)] if pipe.rank is not None else self._handle.attribute(text)
        for rank, part in parts:
            if rank is None:
                self._tails[None].append(part.rstrip("\r\n"))
                if self._files is not None:
                    self.lost = self._files.write(None, pipe.name, part) or self.lost
                for ended in self._handle.heard(part):
                    self._on_end(ended)
            elif pipe.name == "stdout":
                self._keep(rank, pipe.name, part)
            else:
                for line, is_noise in self._noise[rank].sift(part):
                    self._keep(rank, pipe.name, line, shown=not is_noise)

    def _keep(self, rank: int, name: StreamName, text: str, *, shown: bool = True) -> None:
        if name == "stderr":
            self._tails[rank].append(_shown(text).rstrip("\r\n"))
        if self._files is not None:
            self.lost = self._files.write(rank, name, text) or self.lost
        if shown and self._shown.shows(rank):
            self._pending[name].append(self._shown.line(rank, name, _shown(text)))

    def _flush(self) -> None:
        for name, lines in self._pending.items():
            if lines:
                self.lost = show(name, "".join(lines)) or self.lost
                lines.clear()


class _Reader:
    """Bytes of one pipe to lines of text, or of a single rank's standard output to whatever has come; bytes
    that are no UTF-8 stay as surrogates."""

    def __init__(self, pipe: Pipe, take: Callable[[Pipe, str], None], *, whole_lines: bool) -> None:
        self._pipe = pipe
        self._take = take
        self._whole_lines = whole_lines
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._rest: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Takes what was read; nothing means the end."""
        text = self._decoder.decode(data, final=not data)
        if not self._whole_lines:
            if text:
                self._take(self._pipe, text)
            return
        *lines, rest = text.split("\n")
        for line in lines:
            self._give(line + "\n")
        if rest:
            self._rest.append(rest)
            self._size += len(rest)
        if self._size and (not data or self._size > _LONGEST_LINE):
            self._give("")

    def _give(self, more: str) -> None:
        line = "".join([*self._rest, more])
        self._rest, self._size = [], 0
        self._take(self._pipe, line)


def _shown(text: str) -> str:
    """A line without what cannot be shown."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def show(name: StreamName, text: str) -> OSError | None:
    """Writes whole lines to this process's stream of that name; gives the error that prevented it, for the
    ranks' work goes on."""
    stream = sys.stdout if name == "stdout" else sys.stderr
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:  # the device is full, or the reader of our own output is gone
        return error
    except (ValueError, AttributeError):
        pass  # it was closed on purpose
    return None
