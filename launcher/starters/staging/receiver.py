"""What runs on a host to which a model's files are copied: it puts them into that host's cache.

Its input is one line of JSON, `Offer`, then the bytes of the files that it asks for. Its output is lines of
JSON. Where whatever starts it does not pass its input on, a connection takes the place of both. Files are
hashed as they come. What a cut copy has left is kept, and the next one goes on behind it.

    {"have": {NAME: BYTES}}   it waits for the rest of each file, in the order of the offer
    {"again": [NAME, ...]}    these files had another hash, and it waits for all of their bytes
    {"got": BYTES}            now and then: how much has been read and hashed
    {"place": FOLDER}         everything is there
    {"problem": SENTENCE}     it cannot be, and why
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypedDict, cast

from ranks.common import settings

if TYPE_CHECKING:
    from ranks.cache.intact import Files

_BLOCK = 1 << 20
_BEAT_SECONDS = 1.0
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Offer(TypedDict):
    """What is to be copied: ``files`` with their bytes and SHA-256, into the cache, as a thing of a ``kind``
    under ``key``."""

    kind: str
    key: str
    files: list[tuple[str, int, str]]
    environment: dict[str, str]
    timeout: float


class _CutError(Exception):
    """The input ended before the files did."""


class Receiver:
    """One copy. ``arrived``: bytes that came or were there."""

    def __init__(self, given: BinaryIO, said: BinaryIO, offer: Offer) -> None:
        self._given, self._said, self._offer = given, said, offer
        self._lock = threading.Lock()
        self.arrived = 0

    def say(self, **fields: object) -> None:
        """One line."""
        with self._lock:
            self._said.write(json.dumps(fields).encode() + b"\n")
            self._said.flush()

    def beat(self) -> None:
        """Says that this process is there, for as long as it is."""
        stop = threading.Event()
        while not stop.wait(_BEAT_SECONDS):
            try:
                self.say(got=self.arrived)
            except OSError:
                return

    def receive(self, folder: Path) -> Files:
        """Has the offered files in ``folder``, whole; as `ranks.cache.cache.Make`. Raises `OSError`."""
        folder.mkdir(mode=0o700, exist_ok=True)
        files = self._offer["files"]
        have = {name: _length(folder / name, size) for name, size, _ in files}
        missing = sum(size - have[name] for name, size, _ in files)
        free = shutil.disk_usage(folder).free
        if free < missing:
            shutil.rmtree(folder, ignore_errors=True)
            from sharding.common.text import human_bytes

            raise OSError(
                errno.ENOSPC, f"{human_bytes(missing)} are needed there and {human_bytes(free)} are free",
                str(folder),
            )  # fmt: skip
        self.say(have=have)
        try:
            wrong = [file for file in files if not self._take(folder / file[0], *file[1:], have[file[0]])]
            if wrong:
                self.arrived -= sum(size for _, size, _ in wrong)
                self.say(again=[name for name, _, _ in wrong])
                for name, size, digest in wrong:
                    if not self._take(folder / name, size, digest, 0):
                        raise OSError(errno.EIO, "what came of it has another hash than its manifest says",
                                      str(folder / name))  # fmt: skip
        except OSError as error:
            if error.errno in _FULL:  # what it has filled would be in everybody's way
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return {name: (size, digest) for name, size, digest in files}

    def _take(self, path: Path, size: int, digest: str, have: int) -> bool:
        """One file, of which so many bytes are there; False, and without the file, if its hash is another."""
        found = hashlib.sha256()
        # Never through a link: whoever could make one here could read and write as this user anyway, but a
        # file of the user's own may lie at its end.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0) as file:
            left = have
            while left and (block := file.read(min(left, _BLOCK))):
                found.update(block)
                left -= len(block)
                self.arrived += len(block)
            while have < size:
                block = self._given.read(min(size - have, _BLOCK))
                if not block:
                    raise _CutError
                found.update(block)
                _write(file.fileno(), block)
                have += len(block)
                self.arrived += len(block)
        if found.hexdigest() == digest:
            return True
        path.unlink()
        return False


def _length(path: Path, size: int) -> int:
    """How much of a file is there; what is no part of it is removed."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > size:
        from ranks.cache import regular_files

        regular_files.remove(path)
        return 0
    return path.stat().st_size


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _connected(address: str) -> tuple[BinaryIO, BinaryIO]:
    from ranks.talk.connect import open_socket

    sock = open_socket(address)
    said = cast("BinaryIO", sock.makefile("wb", buffering=0))
    said.write(settings.JOB.take().encode() + b"\n")
    return sock.makefile("rb"), said


def main() -> None:
    """Receives one copy."""
    said = cast("BinaryIO", os.fdopen(os.dup(1), "wb", buffering=0))
    os.dup2(2, 1)  # what a library prints is no answer
    given: BinaryIO = sys.stdin.buffer
    if address := settings.CONTROL.take():
        given, said = _connected(address)
    first = given.readline()
    if not first.endswith(b"\n"):
        os._exit(1)
    offer: Offer = json.loads(first)
    os.environ.update(offer["environment"])
    receiver = Receiver(given, said, offer)
    threading.Thread(target=receiver.beat, daemon=True).start()
    problem = _problem(receiver, offer)
    with contextlib.suppress(OSError):
        if problem:
            receiver.say(problem=problem)
    os._exit(1 if problem else 0)


def _problem(receiver: Receiver, offer: Offer) -> str:
    from ranks.cache.cache import Cache
    from ranks.cache.folder import ELSEWHERE, cache_folder
    from ranks.cache.locks import expect
    from ranks.cache.place import FORMS, SEAL
    from ranks.cache.staged import RANK_MODEL, SLICES
    from ranks.common.waiting import HeldError
    from ranks.errors import ShardrunError
    from sharding.common.storage import why_unwritable

    # What is offered decides what is written where.
    kind = offer["kind"]
    if kind not in {SLICES, RANK_MODEL} or FORMS[kind].key(offer["key"]) != offer["key"]:
        return f"{offer['key']!r} is no name of a copy"
    for name, size, _ in offer["files"]:
        if name in {"", ".", "..", SEAL} or "/" in name or "\0" in name or size < 0:
            return f"{name!r} of {size} bytes cannot be a file of slices: slice the model again"
    try:
        cache = Cache(kind, cache_folder())
        place = cache.get_or_make(offer["key"], receiver.receive, timeout=offer["timeout"], resume=True)
        expect(place, offer["timeout"])  # until the ranks hold it, which start when this process has ended
        receiver.say(place=str(place))
    except (ShardrunError, HeldError) as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or 'the cache'} cannot be written: {why_unwritable(error, ELSEWHERE)}"
    except _CutError:
        return "the copy was cut"
    return ""


if __name__ == "__main__":
    main()
