"""What is said of a program at the port where ranks meet, by what it answers."""

from __future__ import annotations

import socket

import pytest

from ranks.collectives.torch import strangers
from ranks.collectives.torch.strangers import Found


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", Found.OTHER),
        (strangers._ANSWER[:1] + b"?" * len(strangers._ANSWER), Found.OTHER),
        (strangers._ANSWER[:-1], Found.OTHER),
        (b"", Found.CLOSED),
    ],
)
def test_what_answers_something_else_or_nothing(said: bytes, found: Found) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        assert strangers._asked(ours, 10.0) is found
        assert theirs.recv(len(strangers._QUESTION)) == strangers._QUESTION
