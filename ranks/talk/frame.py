"""What a message between a rank and its launcher begins with, and what it is; see `ranks.talk.wire`.

Nothing heavy is imported: `ranks.talk.keeper` sends from a process that is to stay small.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from enum import IntEnum

from ranks.errors import ShardrunError

MAGIC = b"shrd"
VERSION = 2
"""2: a request may be whole on every rank (`ranks.talk.reports.WHOLE`)."""
PREFIX = struct.Struct("<4sHHIQ")
MAX_HEADER = 16 << 20
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class WireError(ShardrunError):
    """A message is malformed, of another version, or too large."""


class Kind(IntEnum):
    """What a message is; see docs/internals.md, "Control messages"."""

    HELLO = 1
    READY = 2
    PREDICT = 3
    RESULT = 4
    FAILED = 5
    ERROR = 6
    STOP = 7
    BYE = 8
    SESSION = 9
    TOKENS = 10
    LIMIT = 11
    PING = 12
    PONG = 13
    TOLD = 14
    LOADING = 15
    RESUME = 16
    WEIGHTS = 17
    STATS = 18


def head(kind: Kind, header: Mapping[str, object], payload: int = 0) -> tuple[bytes, bytes]:
    """A frame's prefix and header; ``payload``: bytes of what follows. Raises `WireError`."""
    data = _ENCODER.encode(header).encode()
    if len(data) > MAX_HEADER:
        raise WireError(f"a message's header has {len(data)} bytes; at most {MAX_HEADER} are allowed")
    return PREFIX.pack(MAGIC, VERSION, kind, len(data), payload), data
