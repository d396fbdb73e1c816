"""What takes long is done in pieces: a parser lets no other thread of Python in until it is done."""

from __future__ import annotations

import time

LARGE = 256 << 10
"""Bytes of a body from which on others would notice if it were read, or written, between their requests."""
PIECE = 64 << 10
"""Bytes that are read at once: a third of a millisecond of JSON."""
_BREATH = 2e-5


def breathe() -> None:
    """Between two pieces, in a thread of their own: the others come in now, and need not ask for the
    interpreter, which takes 5 ms each time."""
    time.sleep(_BREATH)
