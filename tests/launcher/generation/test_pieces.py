"""The bytes that tokens stand for, by what a tokenizer says of how they are decoded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.generation.text.pieces import byte_names, pieces_of

BYTES = {"type": "ByteLevel"}
PIECES = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]}  # fmt: skip


@pytest.mark.parametrize(
    ("decoder", "tokens"),
    [
        (None, {"a": b"a", "▁b": "▁b".encode(), "<0x41>": b"<0x41>"}),
        (BYTES, {"Ġa": b" a", "Ċ": b"\n", "ÿ": b"\xff", "Ã": b"\xc3", "¡": b"\xa1", "Ń": b"\xad"}),
        (BYTES, {"你": "你".encode()}),
        ({"type": "Sequence", "decoders": [{"type": "Fuse"}, BYTES]}, {"Ġa": b" a"}),
        (PIECES, {"▁a▁b": b" a b", "<0xE4>": b"\xe4", "<0x0A>": b"\n", "<0xZZ>": b"<0xZZ>"}),
        (PIECES, {"<0x1>": b"<0x1>"}),
        (PIECES, {"<0x41>>": b"<0x41>>", "x0x41>": b"x0x41>", "<0x41]": b"<0x41]"}),
        ({"type": "Metaspace", "replacement": "_"}, {"_a": b" a", "▁a": "▁a".encode()}),
        ({"type": "Metaspace"}, {"▁a": b" a", "<0x41>": b"<0x41>"}),
        ({"type": "Replace", "pattern": {"Regex": "x"}, "content": "y"}, {"x": b"x"}),
        ({"type": "Replace", "pattern": {"String": "x"}}, {"axb": b"ab"}),
        ({"type": "WordPiece"}, {"the": b" the", "##re": b"re", "a##": b" a##"}),
        ({"type": "WordPiece", "prefix": "@"}, {"@re": b"re", "##re": b" ##re"}),
        ({"type": "WordPiece", "prefix": ""}, {"re": b" re"}),
        ({"type": "BPEDecoder"}, {"the</w>": b"the ", "re": b"re", "</w>re": b"</w>re"}),
        ({"type": "BPEDecoder", "suffix": "@"}, {"re@": b"re ", "re</w>": b"re</w>"}),
        ({"type": "BPEDecoder", "suffix": ""}, {"re": b"re"}),
    ],
)  # fmt: skip
def test_what_a_token_stands_for(decoder: Any, tokens: dict[str, bytes]) -> None:
    """In its place; one that was added stands for its name."""
    ids = {name: 2 * number + 1 for number, name in enumerate(tokens)} | {"<Ġ▁##>": 0}
    found = pieces_of(json.dumps(decoder), ids, {0})
    assert found[0] == "<Ġ▁##>".encode() and len(found) == 2 * len(tokens)
    assert found[1::2] == list(tokens.values())
    assert set(found[2::2]) <= {b""}


def test_no_tokens() -> None:
    assert pieces_of("null", {}, ()) == []


def test_each_byte_has_a_sign_of_its_own() -> None:
    names = byte_names()
    assert sorted(names.values()) == list(range(256))
    assert (names["A"], names["Ā"], names["Ġ"], names["ġ"], names["ł"], names["Ń"]) == (
        65,
        0,
        32,
        127,
        160,
        173,
    )
