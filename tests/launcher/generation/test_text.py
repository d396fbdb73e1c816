"""Text as its ids come: never half a character, no stop text, and together what the tokenizer says of all."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers as tk

from launcher.errors import ConfigError
from launcher.generation.folder import read_folder
from launcher.generation.generate import Manner
from launcher.generation.model import _settled, read_texts
from launcher.generation.sample import Shown
from launcher.generation.text.detokenizer import Detokenizer
from launcher.generation.text.grammar import ANY_OBJECT, grammar_of
from launcher.generation.text.stops import Stops
from launcher.generation.text.tokenizer import Tokenizer
from tests.launcher.generation import tokenizers_made

TEXTS = [
    "The quick fox",
    "größe 你好吗 😀😀 end",
    "😀",
    "a  b\n\tc ",
    "e\u0301 \u200d👩\u200d🚀 x",
    "dogs. 的的的的的的的",
]


@pytest.fixture(scope="module", params=["byte_level", "byte_fallback"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    return Tokenizer(getattr(tokenizers_made, request.param)(path))


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    growing = Detokenizer(tokenizer)
    return [growing.add(token) for token in ids] + [growing.end()]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_whole_and_together_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.ids(text)
    found = pieces(tokenizer, ids)
    assert "".join(found) == tokenizer.text(ids) == text
    assert "�" not in "".join(found)
    assert sum(map(bool, found)) > 1 or len(text) == 1


@pytest.mark.parametrize("text", TEXTS)
def test_an_end_within_a_character_shows_none_of_it(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.ids(text)
    for count in range(len(ids)):
        shown = "".join(pieces(tokenizer, ids[:count]))
        assert text.startswith(shown) and "�" not in shown


@pytest.mark.parametrize("text", TEXTS)
def test_what_goes_on_from_a_text_has_the_space_between(tokenizer: Tokenizer, text: str) -> None:
    """Wherever it is cut: a tokenizer of pieces leaves out the space before the first word of all."""
    ids = tokenizer.ids(text)
    for cut in range(1, len(ids)):
        before = tokenizer.text(ids[:cut])
        growing = Detokenizer(tokenizer, ids[:cut])
        after = "".join(map(growing.add, ids[cut:])) + growing.end()
        if "�" not in before:  # else what was asked to be continued ends within a character
            assert before + after == text, cut


def test_nothing_is_made_of_what_comes_before_alone(tokenizer: Tokenizer) -> None:
    """Special tokens, half characters, no tokens: what follows begins a text."""
    mark, ids = tokenizer.id_of(tokenizers_made.END), tokenizer.ids("The 😀 dog")
    assert mark is not None
    half = tokenizer.ids("😀")[-3:-1]
    for before in ([], [mark], [mark] * 40, half):
        growing = Detokenizer(tokenizer, before)
        assert "".join(map(growing.add, ids)) + growing.end() == "The 😀 dog"
    growing = Detokenizer(tokenizer, [*ids, mark, mark])
    assert "".join(map(growing.add, tokenizer.ids(" dog"))).lstrip() == "dog"


def test_bytes_that_are_no_characters(tokenizer: Tokenizer) -> None:
    """They are shown as what the tokenizer shows, and hold nothing back for long."""
    lone = [token for token in map(tokenizer.id_of, ("<0xFF>", "ÿ")) if token is not None][:1] * 40
    word = tokenizer.ids("The dog")
    growing = Detokenizer(tokenizer)
    first = "".join(map(growing.add, lone))
    assert 30 <= len(first) <= 40 and set(first) == {"�"}
    rest = "".join(map(growing.add, word)) + growing.end()
    assert (first + rest).lstrip("�").strip() == "The dog"
    assert (first + rest).count("�") == tokenizer.text([*lone, *word]).count("�") == 40


def test_random_ids_give_the_text_of_all(tmp_path: Path) -> None:
    """Where bytes stand for themselves; in the other kind, all bytes around one say what it is."""
    tokenizer = Tokenizer(tokenizers_made.byte_level(tmp_path / "tokenizer.json"))
    random = np.random.default_rng(0)
    for _ in range(60):
        ids = random.integers(1, tokenizer.size, 60).tolist()
        whole = tokenizer.text(ids)
        shown = "".join(pieces(tokenizer, ids))
        assert whole.startswith(shown) and set(whole[len(shown) :]) <= {"�"}


@pytest.mark.parametrize(
    ("said", "known", "ends"),
    [((), True, (0,)), ((7, 9), True, (7, 9)), ((), False, ()), ((7,), False, (7,))],
)
def test_the_tokenizers_end_where_the_folder_names_none(
    tmp_path: Path, said: tuple[int, ...], known: bool, ends: tuple[int, ...]
) -> None:
    """A folder may name several; the tokenizer has one of them at most."""
    tokenizer = Tokenizer(tokenizers_made.byte_level(tmp_path / "tokenizer.json"))
    special = {"eos_token": tokenizers_made.END} if known else {}
    folder: Any = SimpleNamespace(manner=Manner(ends=said), special=special, encoder=None)
    assert _settled(folder, tokenizer).ends == ends
    assert _settled(folder, None).ends == said


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("stops", [["STOP"], ["\n\n", "END."], ["aab", "ab", "b"], ["aaab"]])
def test_stop_texts(size: int, stops: list[str]) -> None:
    """As a search in the whole text finds them, however it is cut into pieces."""
    for text in (
        "aaaab tail",
        "xxSTOPyy",
        "no",
        "a\n\nb",
        "a\nb EN END.",
        "STSTOP",
        "ST",
        "aaaaab",
        "",
        "ENDEND",
    ):
        kept, held = "", Stops(stops)
        for begin in range(0, len(text), size):
            kept += held.add(text[begin : begin + size])
            if held.found is None:  # what is held may still become one
                assert any(stop.startswith(text[len(kept) : begin + size]) for stop in stops)
        kept += held.end()
        first = re.search("|".join(map(re.escape, sorted(stops, key=len, reverse=True))), text)
        assert kept == (text[: first.start()] if first and size == 100 else kept)
        assert (held.found is not None) == (first is not None)
        assert text.startswith(kept) and not any(stop in kept for stop in stops)
        if first is None:
            assert kept == text


@pytest.mark.parametrize("text", ["<|end|>", "a<|end|>b", "<|end", "größe <|end|>"])
def test_the_name_of_a_special_token_in_a_schema_is_text(tokenizer: Tokenizer, text: str) -> None:
    """The token itself would be none of the text."""
    (special,) = tokenizer.special
    grammar, found = grammar_of(tokenizer, json.dumps({"const": text}), [special]), list[int]()
    while special not in grammar.allowed:
        found.append(int(max(grammar.allowed, key=lambda token: len(tokenizer.pieces[token]))))
        grammar.read(found[-1])
    assert not grammar.error and json.loads(tokenizer.text(found)) == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "this is no tokenizer: "),
        (b"[]", "this is no tokenizer: "),
        (b'{"model": {"type": "Nonsense"}}', "this is no tokenizer: "),
        (b"\xff\xfe", "UTF-8 text, found another byte at offset 0"),
    ],
)
def test_files_that_are_no_tokenizer(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        Tokenizer(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_truncated_tokenizer(tmp_path: Path) -> None:
    path = tokenizers_made.byte_level(tmp_path / "tokenizer.json")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="no tokenizer"):
        Tokenizer(path)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="has at most 268435456 bytes"):
        Tokenizer(path)


def test_a_tokenizer_of_another_model(tokenizer: Tokenizer) -> None:
    tokenizer.check(tokenizer.size, "model")
    with pytest.raises(ConfigError, match=f"ids up to {tokenizer.size - 1}, but .* ends at 99"):
        tokenizer.check(100, "model")


def test_prompts_are_neither_cut_nor_filled_up(tmp_path: Path) -> None:
    """Whatever the file says of batches."""
    path = tokenizers_made.byte_level(tmp_path / "tokenizer.json")
    plain = Tokenizer(path).ids("The quick brown fox")
    made = tk.Tokenizer.from_file(str(path))
    made.enable_truncation(2)
    made.enable_padding(length=50)
    made.save(str(path))
    assert made.encode("The quick brown fox").ids != plain
    assert Tokenizer(path).ids("The quick brown fox") == plain


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are refused; the same model takes token ids."""
    path = tokenizers_made.byte_level(tmp_path / "tokenizer.json")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"is read by the package tokenizers.*pip install"):
        Tokenizer(path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "model.onnx").touch()
    assert read_texts(read_folder(tmp_path)).tokenizer is None


@pytest.mark.parametrize("length", [3, 10_000])
def test_texts_of_which_a_tokenizer_makes_no_tokens(tmp_path: Path, length: int) -> None:
    """A damaged one: it has no token for words that it does not know."""
    made = tk.Tokenizer(tk.models.WordLevel({"hello": 0}, unk_token="[UNK]"))
    made.save(str(path := tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(path)
    assert tokenizer.ids("hello") == [0]
    with pytest.raises(
        ConfigError, match=r"tokenizer\.json: this tokenizer makes no tokens of the text: .*UNK"
    ):
        tokenizer.ids("x" * length)
    tokenizer.warm()
    with pytest.raises(ConfigError, match="makes no tokens"):
        grammar_of(tokenizer, ANY_OBJECT, [])


def test_tokens_of_which_a_tokenizer_makes_no_text(tmp_path: Path) -> None:
    """Whose pattern takes too many steps: the package panics, which is no `Exception`."""
    path = tokenizers_made.byte_level(tmp_path / "tokenizer.json")
    content = json.loads(path.read_text())
    slow = {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": "z"}
    content["decoder"] = {"type": "Sequence", "decoders": [content["decoder"], {"type": "Fuse"}, slow]}
    path.write_text(json.dumps(content))
    tokenizer = Tokenizer(path)
    with pytest.raises(ConfigError, match="makes no text of the tokens: Onig") as caught:
        tokenizer.text(tokenizer.ids("x" * 60))
    assert str(path) in str(caught.value)


def test_a_stop_text_may_be_a_token_that_is_not_in_the_text(tokenizer: Tokenizer) -> None:
    """Or a text as any other."""
    (end,) = tokenizer.ids(tokenizers_made.END, special=False)
    ids = tokenizer.ids("The dog")
    for stops, ended in (((tokenizers_made.END,), True), (("fox",), False), ((), False)):
        shown = Shown(tokenizer, stops)
        for token in ids:
            shown.add(token)
            assert not shown.stopped
        shown.add(end)
        assert shown.stopped is ended
        shown.end()
        assert shown.text == "The dog"
    shown = Shown(tokenizer, ("do",))
    for token in ids:
        shown.add(token)
    assert shown.stopped and (shown.text or "").strip() == "The"
    assert not Shown(None, (tokenizers_made.END,)).add(end) and Shown(None).text is None
