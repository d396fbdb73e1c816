"""Encrypted MindIR files and checkpoints: AES-GCM and AES-CBC in blocks, as ``mindspore.export(enc_key=...)``
writes them. All that is known of keys, modes and encrypted bytes is here.

Each block: a 4-byte magic number, for GCM a 16-byte tag, then (all numbers uint32, little-endian) the
length of what follows, the length of the initialisation vector, the vector, the length of the cipher text,
the cipher text. Learnt from files that MindSpore 2.10 wrote.
"""

from __future__ import annotations

import struct
from pathlib import Path

from sharding.errors import ModelError

GCM, CBC = MODES = "AES-GCM", "AES-CBC"
"""The modes; the first one is meant where none is named."""
ENCRYPTED = "mindir_encrypted"
"""The format of such a model, as `sharding.importers.sniff.format_of` gives it."""
_MAGIC = {b"\xd8\x5e\x3a\x7f": GCM, b"\xd9\x5e\x3a\x7f": CBC}
_TAG_BYTES = 16
GCM_VECTOR = 12
"""Bytes of the vector that AES-GCM uses; the file has 16."""
_KEY_LENGTHS = (16, 24, 32)


class Key:
    """How to read an encrypted file; never printed."""

    __slots__ = ("mode", "secret")

    def __init__(self, secret: bytes, mode: str = GCM) -> None:
        self.secret, self.mode = secret, mode

    def __repr__(self) -> str:
        return f"Key({self.mode})"


def encryption_of(head: bytes) -> str | None:
    """How a file, or a block of one, that begins so is encrypted; None if it is not."""
    return _MAGIC.get(head[:4])


def unneeded(path: Path) -> str:
    """What is said of a key for a file that is not encrypted."""
    return f"{path} is not encrypted, but a key was given: leave --dec-key-file (in Python dec_key) out"


def decrypted(data: memoryview, key: Key | None, path: Path) -> tuple[memoryview, bool]:
    """A file's plain bytes, and whether they were encrypted. Raises `ModelError`: a key is missing or is not
    needed, and what `decrypt` raises."""
    method = encryption_of(bytes(data[:4]))
    if method is not None:
        return memoryview(decrypt(data, method, key, path)), True
    if key is not None:
        raise ModelError(f"{unneeded(path)}.")
    return data, False


def decrypt(data: memoryview, method: str, key: Key | None, path: Path) -> bytes:
    """The file's plain bytes. Raises `ModelError`: no key, a wrong one, another mode, a damaged file."""
    if key is None:
        raise ModelError(
            f"{path} is encrypted ({method}): give its key (--dec-key-file FILE --dec-mode {method}; in "
            f"Python dec_key=..., dec_mode={method!r} of build_from_file), or export it without enc_key."
        )
    if key.mode != method:
        raise ModelError(f"{path} is encrypted with {method}, but dec_mode is {key.mode!r} (--dec-mode).")
    if len(key.secret) not in _KEY_LENGTHS:
        raise ModelError(
            f"The key for {path} has {len(key.secret)} bytes; expected {', '.join(map(str, _KEY_LENGTHS))}."
        )
    plain = bytearray()
    position = 0
    while position < len(data):
        block, position = _block(data, position, method, key, path)
        plain += block
    return bytes(plain)


def _block(data: memoryview, start: int, method: str, key: Key, path: Path) -> tuple[bytes, int]:
    damaged = ModelError(f"{path} is encrypted, but damaged or truncated in the block at byte {start}.")

    def number(at: int) -> int:
        if at + 4 > len(data):
            raise damaged
        return int(struct.unpack_from("<I", data, at)[0])

    if encryption_of(bytes(data[start : start + 4])) != method:
        raise damaged
    position = start + 4
    tag = bytes(data[position : position + _TAG_BYTES])
    if method == GCM:
        position += _TAG_BYTES
    size = number(position)
    end = position + 4 + size
    vector_length = number(position + 4)
    cipher_at = position + 8 + vector_length
    cipher_length = number(cipher_at)
    if end > len(data) or cipher_at + 4 + cipher_length != end:
        raise damaged
    vector = bytes(data[position + 8 : cipher_at])
    return _plain(data[cipher_at + 4 : end], vector, tag, method=method, key=key, path=path), end


def _plain(cipher: memoryview, vector: bytes, tag: bytes, *, method: str, key: Key, path: Path) -> bytes:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.padding import PKCS7
    except ImportError:
        raise ModelError(f"{path} is encrypted; to decrypt it, install the package cryptography.") from None
    wrong = ModelError(f"{path} cannot be decrypted: the key is wrong, or the file is damaged.")
    try:
        algorithm = algorithms.AES(key.secret)
        if method == GCM:
            checked = Cipher(algorithm, modes.GCM(vector[:GCM_VECTOR], tag)).decryptor()
            return checked.update(cipher) + checked.finalize()
        decryptor = Cipher(algorithm, modes.CBC(vector)).decryptor()
        padded = decryptor.update(cipher) + decryptor.finalize()
        unpadder = PKCS7(128).unpadder()
        return unpadder.update(padded) + unpadder.finalize()
    except (InvalidTag, ValueError):
        raise wrong from None
