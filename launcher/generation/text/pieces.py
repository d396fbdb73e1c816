"""The bytes that each token of a tokenizer stands for: a token may hold half a character."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping

_WORD_PIECE, _WORD_END = "##", "</w>"


def pieces_of(decoder: str, ids: Mapping[str, int], added: Collection[int]) -> list[bytes]:
    """By id, as in the middle of a text; nothing for ids that there are not. ``decoder``: that part of a
    ``tokenizer.json``; ``ids``: its whole vocabulary; ``added``: ids whose names are their texts."""
    bytes_of = _reader(list(_decoders(json.loads(decoder))))
    found = [b""] * (max(ids.values(), default=-1) + 1)
    for token, number in ids.items():
        found[number] = token.encode() if number in added else bytes_of(token)
    return found


def _decoders(decoder: Mapping[str, object] | None) -> Iterator[Mapping[str, object]]:
    """One decoder, or those of a sequence."""
    if not decoder:
        return
    if decoder.get("type") == "Sequence":
        inner = decoder.get("decoders")
        for one in inner if isinstance(inner, list) else ():
            yield from _decoders(one)
    else:
        yield decoder


def _reader(decoders: list[Mapping[str, object]]) -> Callable[[str], bytes]:
    """What makes bytes of a token's name, as the decoders do with all of a text."""
    kinds = {one.get("type"): one for one in decoders}
    if "ByteLevel" in kinds:
        table = {ord(sign): byte for sign, byte in byte_names().items()}

        def of_bytes(token: str) -> bytes:
            try:
                return token.translate(table).encode("latin-1")
            except UnicodeEncodeError:
                return token.encode()

        return of_bytes
    if "WordPiece" in kinds:
        prefix = str(kinds["WordPiece"].get("prefix", _WORD_PIECE))
        return lambda token: (
            token[len(prefix) :] if prefix and token.startswith(prefix) else f" {token}"
        ).encode()
    if "BPEDecoder" in kinds:
        suffix = str(kinds["BPEDecoder"].get("suffix", _WORD_END))
        return lambda token: (
            f"{token[: -len(suffix)]} " if suffix and token.endswith(suffix) else token
        ).encode()
    replaced = [pair for one in decoders if (pair := _replacement(one)) is not None]

    def of_text(token: str) -> bytes:
        if "ByteFallback" in kinds and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                return token.encode()
        for old, new in replaced:
            token = token.replace(old, new)
        return token.encode()

    return of_text


def _replacement(decoder: Mapping[str, object]) -> tuple[str, str] | None:
    """The text that a decoder replaces, and by what."""
    if decoder.get("type") == "Metaspace":
        return str(decoder.get("replacement", "▁")), " "
    pattern = decoder.get("pattern")
    if decoder.get("type") == "Replace" and isinstance(pattern, dict) and "String" in pattern:
        return str(pattern["String"]), str(decoder.get("content", ""))
    return None


def byte_names() -> dict[str, int]:
    """The byte that each sign in tokens of byte-level tokenizers stands for: printable Latin-1 bytes stand
    for themselves, all others are numbered from U+0100 on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}
