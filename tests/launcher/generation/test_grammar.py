"""Texts that follow a JSON schema: the tokens are the likeliest of those that fit, by plain ONNX Runtime's
logits, on any number of ranks; and hostile schemas end in one sentence."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import launcher
from launcher.errors import ConfigError, ShardrunError
from launcher.generation.model import LanguageModel
from launcher.generation.options import MOST_SCHEMA
from launcher.generation.text.grammar import ANY_OBJECT, check_schema, grammar_of
from launcher.generation.text.tokenizer import Tokenizer
from tests.launcher.generation import tiny, tokenizers_made

PROMPT = "hello world"
ENUM = ["abacus", "abba", "the quick brown fox", "größe", "你好"]
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"enum": ENUM},
            "age": {"type": "integer", "minimum": 0, "maximum": 199},
            "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_folder(tmp_path_factory.mktemp("texts") / "tiny")


@pytest.fixture(scope="module")
def one(folder: Path) -> Iterator[LanguageModel]:
    with launcher.load_language_model(folder, ranks=1) as model:
        yield model


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[LanguageModel]:
    with launcher.load_language_model(folder, ranks=2, launcher="local", threads=1) as model:
        yield model


def likeliest(folder: Path, prompt: Sequence[int], texts: Sequence[str], banned: Sequence[int] = ()) -> str:
    """The greedy text among a few, by plain ONNX Runtime's logits: at each place the likeliest token by which
    one of them goes on."""
    plain, tokenizer = tiny.Plain(folder / "model.onnx"), Tokenizer(folder / "tokenizer.json")
    wanted, found, ids = [text.encode() for text in texts], b"", list(prompt)
    while found not in wanted:
        row = plain.logits(ids)[-1].copy()
        for token, piece in enumerate(tokenizer.pieces):
            fits = piece and token not in tokenizer.special and token not in banned
            if not fits or not any(text.startswith(found + piece) for text in wanted):
                row[token] = -np.inf
        row[len(tokenizer.pieces) :] = -np.inf
        ids.append(int(row.argmax()))
        found += tokenizer.pieces[ids[-1]]
    return found.decode()


@pytest.mark.parametrize("ranks", ["one", "two"])
def test_the_likeliest_text_of_those_that_fit(
    folder: Path, ranks: str, request: pytest.FixtureRequest
) -> None:
    model: LanguageModel = request.getfixturevalue(ranks)
    schema = json.dumps({"enum": ENUM})
    made = model.generate(PROMPT, json_schema=schema, temperature=0, max_new_tokens=60)
    text = made.finish()[0]
    fitting = [json.dumps(text, ensure_ascii=False) for text in ENUM]
    assert text.text in fitting and text.reason == "end"
    # Where only one goes on, the package takes the tokens that the tokenizer itself would.
    assert text.text == likeliest(folder, made.prompt, fitting)


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0}, {"temperature": 0, "logprobs": 3}, {"temperature": 1.0},
        {"temperature": 2.0, "top_k": 9},
        {"top_p": 0.8, "temperature": 1.5}, {"temperature": 1.0, "min_p": 0.1, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.5, "temperature": 0}, {"samples": 3, "temperature": 1.0},
    ],
    ids=str,
)  # fmt: skip
def test_texts_fit_and_are_the_same_on_any_number_of_ranks(
    one: LanguageModel, two: LanguageModel, how: dict[str, Any]
) -> None:
    own = {"json_schema": SCHEMA, "max_new_tokens": 90, "seed": 11, **how}
    found = [model.generate("x", **own).finish() for model in (one, two)]
    with two.engine() as engine:
        found.append(engine.submit("x", **own).finish())
    for text in found[0]:
        assert text.reason == "end", text.text
        jsonschema.validate(json.loads(text.text or ""), json.loads(SCHEMA))
    assert (
        [text.ids for text in found[0]] == [text.ids for text in found[1]] == [text.ids for text in found[2]]
    )
    if "logprobs" in how:
        assert found[0][0].logprobs == pytest.approx(found[1][0].logprobs, rel=1e-4)


def test_different_schemas_and_free_texts_grow_together(two: LanguageModel) -> None:
    free = two.generate(PROMPT, temperature=0, max_new_tokens=20).finish()[0].ids
    with two.engine() as engine:
        texts = [
            engine.submit(PROMPT, temperature=0, max_new_tokens=20),
            engine.submit(PROMPT, json_schema=ANY_OBJECT, seed=1, temperature=1.0, max_new_tokens=80),
            engine.submit("x", json_schema='{"type": "integer", "minimum": 10, "maximum": 99}', seed=2),
        ]
        found = [stream.finish()[0] for stream in texts]
    assert found[0].ids == free
    assert 10 <= int(found[2].text or "") <= 99
    if found[1].reason == "end":
        assert isinstance(json.loads(found[1].text or ""), dict)


def test_pieces_join_to_the_text(tmp_path: Path) -> None:
    text = "The quick größe 你好 😀 fox"
    for make in (tokenizers_made.byte_level, tokenizers_made.byte_fallback):
        tokenizer = Tokenizer(make(tmp_path / f"{make.__name__}.json"))
        whole = b"".join(tokenizer.pieces[token] for token in tokenizer.ids(text))
        assert whole.decode().removeprefix(" ") == text
        assert tokenizer.special and all(not tokenizer.text([token]) for token in tokenizer.special)


@pytest.mark.parametrize("make", [tokenizers_made.byte_level, tokenizers_made.byte_fallback])
def test_both_kinds_of_tokenizers_can_write_it(tmp_path: Path, make: Any) -> None:
    tokenizer = Tokenizer(make(tmp_path / "tokenizer.json"))
    random = np.random.default_rng(3)
    for _ in range(5):
        grammar, text, whole = grammar_of(tokenizer, SCHEMA, sorted(tokenizer.special)), b"", False
        while not whole:
            token = int(random.choice(grammar.allowed))
            text += tokenizer.pieces[token]
            whole = grammar.read(token)
            assert not grammar.error
        jsonschema.validate(json.loads(text), json.loads(SCHEMA))


def nested(depth: int) -> str:
    return '{"items": ' * depth + "{}" + "}" * depth


def _of(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "null"} for name in names}}


HOSTILE = {
    "huge": (json.dumps({"enum": ["x" * MOST_SCHEMA]}), "expected at most"),
    "deep": (nested(3000), "levels deep"),
    "too deep": (nested(100), "levels deep"),
    "endless": ('{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}', "nothing fits it"),
    "elsewhere": ('{"$ref": "http://127.0.0.1:1/x.json"}', "cannot be followed"),
    "a file": ('{"$ref": "file:///etc/passwd"}', "cannot be followed"),
    "products": (
        json.dumps({"allOf": [{"anyOf": [_of(f"{kind}{at}") for kind in "ab"]} for at in range(16)]}),
        "cannot be followed",
    ),
    "no type": ('{"type": "nonsense"}', "nonsense"),
    "unknown words": ('{"type": "object", "if": {}}', "if"),
    "a pattern that is none": ('{"type": "string", "pattern": "(("}', "cannot be followed"),
    "impossible": ('{"type": "integer", "minimum": 3, "maximum": 2}', "cannot be followed"),
    "no JSON": ("{", "no JSON"),
    "a list": ("[]", "expected a JSON object"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_schemas_that_cannot_be_followed(tmp_path: Path, kind: str) -> None:
    schema, said = HOSTILE[kind]
    tokenizer = Tokenizer(tokenizers_made.byte_level(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError) as raised:
        grammar_of(tokenizer, schema, [0])
    assert said in str(raised.value) and len(str(raised.value)) < 500


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(((a{1,500}){1,500}){1,500})$"},
        {"type": "string", "pattern": "(.*a){200}"},
        {"type": "string", "pattern": "^(a|aa|aaa)*b(.*x){50}$"},
        {"type": "array", "items": {"type": "integer"}, "minItems": 100_000, "maxItems": 10**8},
        {"anyOf": [_of(*(f"k{i}{j}" for j in range(9))) for i in range(99)]},
    ],
    ids=lambda schema: str(schema)[:40],
)  # fmt: skip
def test_costly_schemas_are_bounded(tmp_path: Path, schema: Any) -> None:
    """Either refused, or followed as far as it is cheap; a hang is what this guards against."""
    tokenizer = Tokenizer(tokenizers_made.byte_level(tmp_path / "tokenizer.json"))
    random, began = np.random.default_rng(0), time.perf_counter()
    try:
        grammar = grammar_of(tokenizer, json.dumps(schema), [0])
        for _ in range(100):
            if not len(grammar.allowed) or grammar.read(int(random.choice(grammar.allowed))):
                break
        assert len(grammar.error) <= 300
    except ConfigError as error:
        assert "JSON schema" in str(error)
    assert time.perf_counter() - began < 60


def test_a_grammar_that_fails_later_ends_its_text_alone(
    one: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.generation.text.grammar.Grammar.read", _broken)
    with one.engine() as engine:
        stream = engine.submit("x", json_schema=SCHEMA, seed=1)
        with pytest.raises(ShardrunError, match="cannot be followed any further: too complex"):
            stream.finish()
        assert engine.submit("x", max_new_tokens=2).finish()[0].ids


def _broken(self: Any, token: int) -> bool:
    self.error = "too complex"
    return False


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"beams": 2}, "json_schema and beams"),
        ({"speculate": 2}, "json_schema and beams or speculate"),
        ({"json_schema": ""}, "json_schema: expected"),
    ],
)
def test_what_excludes_each_other(one: LanguageModel, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        one.generate("x", **{"json_schema": SCHEMA, **more})


def test_what_else_leaves_nothing(one: LanguageModel) -> None:
    """All tokens that the schema allows are suppressed."""
    made = one.generate("x", json_schema='{"enum": [1]}', suppressed=list(range(1, 300)), temperature=0)
    with pytest.raises(ShardrunError, match="no token can come next"):
        made.finish()


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    tokenizer = Tokenizer(tokenizers_made.byte_level(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"need the package llguidance.*shardrun\[json\]"):
        grammar_of(tokenizer, SCHEMA, [0])
    with pytest.raises(ConfigError, match="only with a tokenizer"):
        grammar_of(None, SCHEMA, [0])
    check_schema(SCHEMA)


def test_the_schema_of_anything(tmp_path: Path) -> None:
    tokenizer = Tokenizer(tokenizers_made.byte_level(tmp_path / "tokenizer.json"))
    found = [grammar_of(tokenizer, schema, []).allowed.tolist() for schema in ("true", "{}")]
    assert found[0] == found[1] and len(found[0]) > 10
    with pytest.raises(ConfigError, match="cannot be followed"):
        grammar_of(tokenizer, "false", [])


def test_tokens_that_are_too_long_never_come(tmp_path: Path) -> None:
    """They are in no trie of the package; all others are as without them."""
    path = tokenizers_made.byte_level(tmp_path / "tokenizer.json")
    plain = Tokenizer(path)
    said, size = json.loads(path.read_text()), plain.size
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for more, special in enumerate((False, True)):
        added = {"id": size + more, "content": "[" * (1025 + more), "special": special, **flags}
        said["added_tokens"].append(added)
    path.write_text(json.dumps(said))
    long = Tokenizer(path)
    assert len(long.pieces[size]) == 1025
    both = [grammar_of(tokenizer, '{"type": "array"}', []) for tokenizer in (plain, long)]
    for _ in range(3):
        assert both[0].allowed.tolist() == both[1].allowed.tolist()
        token = int(both[0].allowed[0])
        for one in both:
            one.read(token)


def test_tokenizers_that_the_package_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """As the package has them."""

    def panic(vocabulary: object) -> None:
        raise Panic("assertion failed: some, where")

    tokenizer = Tokenizer(tokenizers_made.byte_level(tmp_path / "tokenizer.json"))
    monkeypatch.setattr("llguidance.LLTokenizer", panic)
    tokenizer.warm()  # texts of any form can still be written
    with pytest.raises(ConfigError, match="can follow a JSON schema: assertion failed: some, where"):
        grammar_of(tokenizer, ANY_OBJECT, [])
