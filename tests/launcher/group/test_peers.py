"""What is sent to one rank by several threads."""

from __future__ import annotations

from typing import Any

from launcher.group.control import Peer
from ranks.talk import wire


def test_one_message_at_a_time() -> None:
    """Bytes of two at once would be none: each is sent under the rank's lock, which is given back."""
    held: list[bool] = []

    class Stream:
        def send(self, *_: object) -> None:
            held.append(peer.sending.locked())
            raise BrokenPipeError

        send_frame = send

    stream: Any = Stream()
    peer = Peer(0, "h", 1, stream)
    for send in (lambda: peer.send(wire.Kind.PING), lambda: peer.send_frame(b"x")):
        try:
            send()
        except BrokenPipeError:
            held.append(peer.sending.locked())
    assert held == [True, False] * 2
