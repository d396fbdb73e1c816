"""The attacher's side of shared weights: finds the owner, proves to know the handle, takes what it gives."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping

from ranks.common import forks, waiting
from ranks.common.descriptors import Part, close_all
from ranks.common.processes import is_stopped
from ranks.errors import WeightsError
from ranks.talk.unix import credentials
from ranks.weights.shared.handle import Address, is_nonce
from ranks.weights.shared.protocol import (
    MOST_DESCRIPTORS,
    PROTOCOL,
    Packet,
    receive,
    send,
    step,
    unpack,
)
from sharding.common.text import one_line

log = logging.getLogger(__name__)

ANSWER_SECONDS = 1.0
"""How long a prediction waits for new weights; after that it goes on with those that it has."""
AGAIN_SECONDS = 10.0
"""How long a forked child whose owner did not answer waits before it tries to attach again."""


class Connection:
    """A connection to the owner, attached; it stays open as long as the model is in use.

    The owner's end is no matter: what was attached stays, but `fetch` raises.
    """

    def __init__(
        self,
        peer: socket.socket,
        owner: int,
        facts: Mapping[str, object],
        folder: int,
        parts: dict[str, Part],
    ) -> None:
        self.owner = owner
        """The owner's process id."""
        self.facts = facts
        self.parts = parts
        """What `fetch` gives, as of attaching; the descriptors are the caller's."""
        self.folder = folder
        """A descriptor of the folder with the weights; `close` closes it."""
        self._peer: socket.socket | None = peer
        self._asked = False
        """Whether an answer is still to come."""
        self._lock = threading.Lock()
        self.again: Callable[[], Connection] | None = None
        """Attaches once more, for a forked child: two processes on one connection would take each other's
        answers."""
        self._not_before = 0.0
        forks.in_child(self, Connection._hang_up_in_child)

    def fetch(self) -> dict[str, Part]:
        """The parts as they are now.

        Raises `WeightsError` where the owner has ended, `TimeoutError` where it does not answer within
        `ANSWER_SECONDS`: it may be stopped. Later calls then only look whether it has answered meanwhile.
        """
        with self._lock:
            peer = self._peer
            if peer is None:
                return self._attach_again()
            try:
                peer.settimeout(0.0 if self._asked else ANSWER_SECONDS)
                if not self._asked:
                    send(peer, {"fetch": True})
                    self._asked = True  # once: of two answers the first would be of an older version
                packet = receive(peer, MOST_DESCRIPTORS)
                self._asked = False
            except (BlockingIOError, TimeoutError):
                raise TimeoutError(
                    f"process {self.owner}, the owner of the weights, does not answer."
                ) from None
            except OSError:
                packet = None
            if packet is None or packet.data is None or "refused" in packet.data:
                close_all(packet.descriptors if packet else [])
                self.again = None
                self._hang_up()
                said = f": {_sentence(packet)}" if packet and packet.data else ""
                raise WeightsError(
                    f"process {self.owner}, the owner of the weights, has ended or closed its model{said}."
                )
            try:
                return unpack(packet.data.get("parts"), packet.descriptors)
            finally:
                close_all(packet.descriptors)

    def _attach_again(self) -> dict[str, Part]:
        """In a child that was forked while this was attached: its own connection, and the parts."""
        again = self.again
        if again is None:
            raise WeightsError("the connection to the owner of the weights is closed.")
        if time.monotonic() < self._not_before:
            raise TimeoutError
        try:
            new = again()
        except _LateError:
            self._not_before = time.monotonic() + AGAIN_SECONDS
            raise TimeoutError(f"process {self.owner}, the owner of the weights, does not answer.") from None
        except WeightsError as error:
            self.again = None
            log.warning(
                "process %d was forked from one that is attached to the weights of process %d, and keeps the "
                "values that they had: it cannot attach itself, since %s", os.getpid(), self.owner, error,
            )  # fmt: skip
            raise
        parts, new.parts = new.parts, {}
        self._peer, new._peer = new._peer, None
        new.close()
        return parts

    def close(self) -> None:
        """Ends the connection. Safe to call twice."""
        self.again = None
        self._hang_up()
        folder, self.folder = self.folder, -1
        if folder >= 0:
            close_all([folder])

    def _hang_up(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()

    def _hang_up_in_child(self) -> None:
        self._lock = threading.Lock()
        self._hang_up()
        self._asked = False


class _LateError(WeightsError):
    """The owner is there but does not answer in time."""


def connect(
    address: Address,
    seconds: float,
    *,
    wait: bool | None = None,
    check: Callable[[int], None] = lambda owner: None,
) -> Connection:
    """Attaches to the owner that listens at ``address``.

    With ``wait`` (by default where the address is an agreed name) an owner that is not there yet is waited
    for. ``seconds`` bound that, and the time that an owner which is there may take to answer, be it still
    building its model. ``check`` looks at the owner's process id before it is waited for. Raises
    `WeightsError`, and what ``check`` raises.
    """
    try:
        return _connect(address, seconds, address.is_name if wait is None else wait, check)
    except _LateError as error:
        raise WeightsError(str(error)) from None


def _connect(address: Address, seconds: float, wait: bool, check: Callable[[int], None]) -> Connection:
    """As `connect`; raises `_LateError` where the owner does not answer in time."""
    deadline = time.monotonic() + seconds
    pause, said = 0.002, False
    while True:
        found = _try(address, seconds, deadline, wait, check)
        if found is not None:
            same = functools.partial(_check_same, found.owner)
            found.again = functools.partial(_connect, address, ANSWER_SECONDS, False, same)
            return found
        left = deadline - time.monotonic()
        if left <= 0:
            raise WeightsError(
                f"nobody shared weights under {address} within {seconds:g} s: start the owner, or wait "
                "longer (timeout, or SHARDRUN_TIMEOUT)."
            )
        if seconds - left >= waiting.NOTICE_SECONDS and not said:
            said = True
            log.warning("waiting for who shares weights under %s, at most %.3g s", address, seconds)
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.05)


def _check_same(owner: int, pid: int) -> None:
    if pid != owner:
        raise WeightsError(f"process {owner}, the owner of the weights, has ended or closed its model.")


def _try(
    address: Address, seconds: float, deadline: float, wait: bool, check: Callable[[int], None]
) -> Connection | None:
    """A connection, or None where the owner is not there but may yet come."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        try:
            peer.settimeout(max(0.001, deadline - time.monotonic()))
            peer.connect(address.socket_name)
        except BlockingIOError:  # there, but many others connect
            if time.monotonic() < deadline:
                peer.close()
                return None
            raise _LateError(
                f"the owner of {address} did not take this connection within {seconds:g} s."
            ) from None
        except OSError:
            if wait:
                peer.close()
                return None
            raise WeightsError(
                f"nobody shares weights under {address}: it is wrong, or it is stale because its owner has "
                "ended or closed its model."
            ) from None
        step("connected")
        pid, uid = credentials(peer)
        if uid != os.getuid():
            raise WeightsError(
                f"process {pid} shares these weights as user {uid}, but this process runs as user "
                f"{os.getuid()}: only processes of one user share weights."
            )
        check(pid)
        return _shake_hands(peer, pid, address, seconds=seconds, deadline=deadline, wait=wait)
    except BaseException:
        peer.close()
        raise


def _shake_hands(
    peer: socket.socket, owner: int, address: Address, *, seconds: float, deadline: float, wait: bool
) -> Connection | None:
    try:
        challenge = _heard(peer, owner, seconds, deadline)
        if challenge is None and wait:  # the owner failed to build: another may come
            peer.close()
            return None
        theirs = _told(challenge, owner).get("nonce")
        spoken = challenge and challenge.data and challenge.data.get("protocol")
        if spoken != PROTOCOL or not isinstance(theirs, str) or not is_nonce(theirs):
            raise WeightsError(f"process {owner} shares weights in the way of another version of shardrun.")
        step("challenged")
        ours = secrets.token_hex(16)
        peer.settimeout(max(0.001, deadline - time.monotonic()))
        with contextlib.suppress(OSError):  # it has closed; why stands in what it sent
            send(peer, {"nonce": ours, "proof": address.prove("attacher", theirs, ours)})
        step("proved")
        answer = _heard(peer, owner, seconds, deadline, MOST_DESCRIPTORS)
    except (BlockingIOError, TimeoutError):
        late = f"the owner of the weights, did not answer within {seconds:g} s: it"
        if is_stopped(owner):
            raise _LateError(f"process {owner}, {late} is {waiting.in_words(owner)}.") from None
        raise _LateError(f"process {owner}, {late} may still be building its model, or be stopped.") from None
    descriptors = answer.descriptors if answer else []
    try:
        data = _told(answer, owner)
        if not address.is_proof(data.get("proof"), "owner", ours, theirs):
            raise WeightsError(f"process {owner} listens there, but does not know the handle itself.")
        facts = data.get("facts")
        if not isinstance(facts, dict) or not descriptors:
            raise WeightsError(f"process {owner} sent no weights.")
        folder = descriptors.pop(0)
        try:
            parts = unpack(data.get("parts"), descriptors)
        except BaseException:
            close_all([folder])
            raise
    finally:
        close_all(descriptors)
    step("attached")
    peer.settimeout(None)
    return Connection(peer, owner, facts, folder, parts)


def _heard(
    peer: socket.socket, owner: int, seconds: float, deadline: float, descriptors: int = 0
) -> Packet | None:
    """What the owner says next; where that takes long it is said who is waited for."""
    left = deadline - time.monotonic()
    if left > waiting.NOTICE_SECONDS:
        peer.settimeout(waiting.NOTICE_SECONDS)
        with contextlib.suppress(BlockingIOError, TimeoutError):
            return receive(peer, descriptors)
        log.warning(
            "waiting for %s, at most %.3g s: it shares the weights and does not answer yet",
            waiting.in_words(owner),
            seconds,
        )
    peer.settimeout(max(0.001, deadline - time.monotonic()))
    return receive(peer, descriptors)


def _told(packet: Packet | None, owner: int) -> dict[str, object]:
    """What the owner said; raises `WeightsError` where it refused or said nothing."""
    if packet is None:
        raise WeightsError(f"process {owner}, the owner of the weights, ended or closed its model meanwhile.")
    if packet.data is None:
        raise WeightsError(f"process {owner} sent something that no owner of weights sends.")
    if "refused" in packet.data:
        raise WeightsError(
            f"process {owner}, the owner of the weights, refused this process: {_sentence(packet)}."
        )
    return packet.data


def _sentence(packet: Packet) -> str:
    """The owner's reason, made fit to be printed."""
    return one_line(str((packet.data or {}).get("refused", "")).rstrip(".")[:600])
