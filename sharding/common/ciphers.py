"""How MindIR files and checkpoints are encrypted, told by their first bytes."""

from __future__ import annotations

GCM, CBC = MODES = "AES-GCM", "AES-CBC"
"""The modes; the first one is meant where none is named."""
_MAGIC = {b"\xd8\x5e\x3a\x7f": GCM, b"\xd9\x5e\x3a\x7f": CBC}


def encryption_of(head: bytes) -> str | None:
    """How a file, or a block of one, that begins so is encrypted; None if it is not."""
    return _MAGIC.get(head[:4])
