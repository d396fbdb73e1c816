"""What the owner of shared weights and a process that attaches both know: a handle, or a name they agree on.

From it both derive the same two values: the name of the abstract Unix socket where the owner listens, which
every user of the host can list, and a key that proves to know the handle without sending it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass, field

from ranks.errors import WeightsError

LARGEST_HANDLE = 2**64 - 1
LARGEST_NEW = 2**63 - 1
"""New handles fit into a signed number of 64 bits, in which programs hand them on (`ctypes.c_int64`)."""
LONGEST_NAME = 200

# The socket's name can be listed, so handles could be tried against it without asking the owner. 2**63 tries
# of this many hashes each are out of reach, and one costs a few milliseconds.
_ROUNDS = 10_000
_SALT = b"shardrun shared weights 1"
_NUMBER = re.compile(r"[+-]?(0x[0-9a-f]+|[0-9][0-9_]*(\.[0-9]*)?(e[+-]?[0-9]+)?)", re.IGNORECASE)


@dataclass(frozen=True)
class Address:
    """Where an owner listens, and what proves that a process was told of it."""

    given: int | str
    """The handle, or the agreed name."""
    socket_name: bytes = field(repr=False)
    key: bytes = field(repr=False)

    @property
    def is_name(self) -> bool:
        """Whether this is an agreed name, which may be used before there is an owner."""
        return isinstance(self.given, str)

    def __str__(self) -> str:
        # A handle is a secret: it is in no message.
        return f"the name {self.given!r}" if self.is_name else "this handle"

    def prove(self, who: str, *nonces: str) -> str:
        """Proof of knowing the key, of ``who`` ("attacher" or "owner"), good for these nonces only."""
        return hmac.new(self.key, "|".join((who, *nonces)).encode(), hashlib.sha256).hexdigest()

    def is_proof(self, proof: object, who: str, *nonces: str) -> bool:
        """Whether ``proof`` is that of `prove`, in a time that does not depend on where they differ."""
        if not isinstance(proof, str) or not proof.isascii():
            return False
        return hmac.compare_digest(proof, self.prove(who, *nonces))


def is_nonce(value: object) -> bool:
    """Whether what the other side sent is a nonce: letters and digits, not too many."""
    return isinstance(value, str) and value.isascii() and value.isalnum() and len(value) <= 64


def new_handle() -> int:
    """A handle that nobody can guess: 63 bits from the system's generator, never 0."""
    return secrets.randbelow(LARGEST_NEW) + 1


def unsigned(number: int) -> int:
    """A handle that went through a signed number of 64 bits, which from 2**63 on made it negative."""
    return number + 2**64 if -(2**63) <= number < 0 else number


def is_number(text: str) -> bool:
    """Whether ``text`` is meant as a handle, and not as a name: a number, however it is written.

    A handle that was taken for a name would be waited for, and shown.
    """
    return _NUMBER.fullmatch(text.strip()) is not None


def check(given: int | str) -> None:
    """Raises `WeightsError` for a handle out of range, and for a name that is empty, too long or a number."""
    if not isinstance(given, str):
        if not 0 < given <= LARGEST_HANDLE:
            raise WeightsError("a handle of shared weights must be a number from 1 to 2**64 - 1.")
    elif is_number(given):
        raise WeightsError("the name of shared weights must not be a number, since handles are numbers.")
    elif not given.strip() or len(given) > LONGEST_NAME:
        raise WeightsError(
            f"the name of shared weights must have 1 to {LONGEST_NAME} characters, but has {len(given)}."
        )


def address(given: int | str) -> Address:
    """The address for a handle, or for an agreed name. Raises `WeightsError` as `check`."""
    check(given)
    if isinstance(given, str):
        # Names of different users are different, so that nobody takes another's by chance.
        return _derive(given, f"name:{os.getuid()}:{given}".encode(errors="surrogatepass"))
    return _derive(given, b"handle:%d" % given)


def _derive(given: int | str, secret: bytes) -> Address:
    derived = hashlib.pbkdf2_hmac("sha256", secret, _SALT, _ROUNDS, 48)
    return Address(given, b"\0shardrun-weights-" + derived[:16].hex().encode(), derived[16:])
