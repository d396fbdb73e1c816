"""Copies files to hosts, over what the launcher starts ranks by there; `launcher.starters.staging.receiver`
answers.

A copy that is cut goes on where it stopped when it is asked for again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, cast

from launcher.common.report import human_bytes, progress
from launcher.errors import LaunchError
from launcher.starters import cause
from launcher.starters.base import Launcher
from launcher.starters.reach import words
from launcher.starters.staging.channel import Channel
from launcher.starters.staging.copies import Copy, in_words
from sharding.common.text import one_line
from sharding.slices.manifest import sha256_of

if TYPE_CHECKING:
    from launcher.starters.staging.receiver import Offer

log = logging.getLogger(__name__)

RECEIVER = "launcher.starters.staging.receiver"
_AT_ONCE = 32
"""Hosts to which is copied at the same time."""
_NOTICE_SECONDS = 10.0
"""Between two lines that say how far it is, where no progress bar does."""
_BLOCK = 1 << 20
_END_SECONDS = 2.0
_LONGEST_LINE = 16 << 20
"""Of JSON: a host may have thousands of files."""


def send(
    launcher: Launcher,
    copies: Sequence[Copy],
    environment: Mapping[str, str],
    timeout: float,
    silence: float,
) -> None:
    """Has all copies made. ``timeout``: seconds to wait for others that make the same copy there;
    ``silence``: those after which a host that says nothing is taken for gone.

    Raises `LaunchError` with the host and the reason of the first that fails, and ends the others.
    """
    senders = [_Sender(launcher, copy, environment, timeout, silence) for copy in copies]
    total = sum(copy.bytes for copy in copies)
    what = f"copying {human_bytes(total)} to {in_words(copies)}"
    with progress(what) as update, ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = [pool.submit(sender.run) for sender in senders]
        try:
            said = began = time.monotonic()
            waiting = set(futures)
            while waiting:
                waiting = {future for future in waiting if not future.done()}
                for future in set(futures) - waiting:
                    future.result()
                done = sum(sender.got for sender in senders)
                if update is not None:
                    update(done, total)
                elif time.monotonic() - said >= _NOTICE_SECONDS:
                    said = time.monotonic()
                    log.warning("%s: %s are there", what, human_bytes(done))
                time.sleep(0.01 if time.monotonic() - began < 1 else 0.1)
        except BaseException:
            for future in futures:
                future.cancel()
            for sender in senders:
                sender.end()
            raise
    for sender in senders:
        log.info("%s has %s for its ranks, of which %s were sent now",
                 sender.copy.host, human_bytes(sender.copy.bytes), human_bytes(sender.sent))  # fmt: skip


class _Sender:
    """One host's copy. ``got``: bytes that the host has; ``sent``: those that went there now."""

    def __init__(
        self, launcher: Launcher, copy: Copy, environment: Mapping[str, str], timeout: float, silence: float
    ) -> None:
        self.copy = copy
        self.got = self.sent = 0
        self._launcher, self._silence = launcher, silence
        self._offer: Offer = {
            "kind": copy.kind,
            "key": copy.key,
            "files": [(file.file, file.bytes, file.sha256) for file in copy.files],
            "environment": dict(environment),
            "timeout": timeout,
        }
        self._began = self._ended = self._done = False
        self._channel: Channel | None = None
        self._to: IO[bytes] | None = None
        self._answers: queue.SimpleQueue[Mapping[str, object] | None] = queue.SimpleQueue()
        self._fault: LaunchError | None = None
        self._asked: set[str] = set()

    def run(self) -> None:
        """Copies; returns when the host has everything. Raises `LaunchError`."""
        self._channel = Channel(self._launcher, self.copy.host, RECEIVER)
        listener = threading.Thread(target=self._listen, args=(self._channel,), daemon=True)
        try:
            listener.start()
            if not self._ended:  # else while it was started
                self._converse(self._channel)
        except RuntimeError as error:  # no thread can be had
            raise cause.shortage(error) from None
        finally:
            self._channel.end(well=self._done)
            if listener.ident is not None:
                listener.join(_END_SECONDS)

    def _converse(self, channel: Channel) -> None:
        while (answer := self._next()) is not None:
            self._began = True
            if "problem" in answer:
                raise LaunchError(f"host {self.copy.host}: {one_line(str(answer['problem']))}.")
            if "place" in answer:
                self.got = self.copy.bytes
                self._done = True
                return
            if "have" in answer:
                self._may_ask("have")
                have = self._lengths(answer["have"])
                self.got = sum(have.values())
                self._send_behind(list(have.items()))
            if "again" in answer:
                self._may_ask("again")
                names = self._names(answer["again"])
                self._check_source(names)
                self._send_behind([(name, 0) for name in names])
            if isinstance(got := answer.get("got"), int):
                self.got = min(max(self.got, got), self.copy.bytes)
        raise self._lost(channel)

    def _may_ask(self, key: str) -> None:
        """Raises `LaunchError` for bytes that are asked for twice: they would come in between the others."""
        if key in self._asked or (key == "again" and not self._asked):
            raise self._senseless(key)
        self._asked.add(key)

    def _lengths(self, have: object) -> dict[str, int]:
        """How much the host says that it has of each file; raises `LaunchError`."""
        said = have if isinstance(have, dict) else {}
        found = {file.file: said.get(file.file) for file in self.copy.files}
        if any(
            type(there) is not int or not 0 <= there <= file.bytes
            for file, there in zip(self.copy.files, found.values(), strict=True)
        ):
            raise self._senseless("have")
        return cast("dict[str, int]", found)

    def _names(self, again: object) -> list[str]:
        """The files that the host wants whole; raises `LaunchError`."""
        wanted: list[str] = again if isinstance(again, list) else [""]
        known = [file.file for file in self.copy.files]
        if any(name not in known for name in wanted) or len({*wanted}) != len(wanted):
            raise self._senseless("again")
        return wanted

    def _senseless(self, key: str) -> LaunchError:
        return LaunchError(
            f"host {self.copy.host} answered what cannot be ({key!r}) while files were copied there: see "
            "that it has the same version of shardrun, and run this again."
        )

    def _next(self) -> Mapping[str, object] | None:
        try:
            answer = self._answers.get(timeout=self._silence)
        except queue.Empty:
            raise LaunchError(
                f"host {self.copy.host} is gone: it has not said anything for {self._silence:g} s while "
                f"files were copied there ({self._how_far()})."
            ) from None
        if self._fault is not None:
            raise self._fault
        return answer

    def _lost(self, channel: Channel) -> LaunchError:
        code = channel.code()
        lines = [f"  {line[:300]}" for line in channel.printed[-8:] if line.strip()]
        said = "\n".join([f"{self._launcher.name} said:", *lines]) if lines else ""
        ended = "the connection was lost" if code is None else f"{self._launcher.name} {cause.how(code)}"
        how = f"host {self.copy.host} cannot be reached to copy files there: {ended}."
        if lacks := words.lacking(channel.printed):
            how = (
                f"files cannot be copied to host {self.copy.host}, which lacks what is to take them there "
                f"({lacks}): {words.INSTALL}."
            )
        if self._began:
            how = f"host {self.copy.host} is gone: {ended} while files were copied there ({self._how_far()})."
        return LaunchError("\n".join(filter(None, [how, said])))

    def _how_far(self) -> str:
        return (
            f"{human_bytes(self.got)} of {human_bytes(self.copy.bytes)} were there; the next --stage goes on "
            "behind them"
        )

    def _check_source(self, names: Sequence[str]) -> None:
        """Raises `LaunchError` for a file that has changed since it was sliced."""
        for file in self.copy.files:
            if file.file in names:
                found = sha256_of(self.copy.folder / file.file)
                if found != file.sha256:
                    raise self._changed(file.file)

    def _changed(self, name: str) -> LaunchError:
        return LaunchError(
            f"{self.copy.folder / name} is not what its manifest says, or was changed while it was copied to "
            f"host {self.copy.host}: slice the model again."
        )

    def _send_behind(self, files: Sequence[tuple[str, int]]) -> None:
        """Sends the bytes of files behind the first so many, in a thread of its own: writing waits for the
        host, which may be gone."""

        def send() -> None:
            try:
                self._send(files)
            except LaunchError as error:
                self._fault = error
            except (ConnectionError, TimeoutError, ValueError):  # its own words, or its end, say why
                return
            except OSError as error:
                self._fault = LaunchError(
                    f"{error.filename or self.copy.folder} cannot be read: {error.strerror or error}."
                )
            if self._fault is not None:
                self._answers.put({})

        threading.Thread(target=send, name=f"shardrun copy {self.copy.host}", daemon=True).start()

    def _send(self, files: Sequence[tuple[str, int]]) -> None:
        sizes = {file.file: file.bytes for file in self.copy.files}
        for name, at in files:
            with (self.copy.folder / name).open("rb") as file:
                file.seek(at)
                left = sizes[name] - at
                while left:
                    block = file.read(min(left, _BLOCK))
                    if not block:
                        raise self._changed(name)
                    self._write(block)
                    left -= len(block)
                    self.sent += len(block)

    def _write(self, data: bytes) -> None:
        assert self._to is not None
        try:
            self._to.write(data)
            self._to.flush()
        except OSError as error:  # such as that of a host that is gone, which is none of the file
            raise ConnectionError from error

    def _listen(self, channel: Channel) -> None:
        with contextlib.suppress(OSError, ValueError):  # its end says why
            self._to, stream = channel.streams()
            self._write(json.dumps(self._offer).encode() + b"\n")
            with stream:
                while line := stream.readline(_LONGEST_LINE):
                    # What a login shell prints before.
                    with contextlib.suppress(ValueError, RecursionError):
                        if isinstance(answer := json.loads(line), dict):
                            self._answers.put(answer)
        self._answers.put(None)

    def end(self) -> None:
        """Ends the copy, and what carries it."""
        self._ended = True
        if self._channel is not None:
            self._channel.end(well=False)
