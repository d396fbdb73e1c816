"""Texts as batches of tokens, with a tokenizer of words: what is cut, refused, joined and filled up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from launcher.errors import ConfigError, LaunchError, ShardrunError
from launcher.generation.text.tokenizer import TOKEN_CHARACTERS
from launcher.serving.embedding.encoder import (
    _MOST_ROWS,
    _MOST_TOKENS,
    IDS,
    KINDS,
    MASK,
    PLACES,
    Encoder,
    Ends,
    ends_of,
)
from launcher.serving.embedding.folder import EncoderFolder, read_encoder_folder, texts_beside
from ranks.common.tensors import TensorSpec

BEGIN, END, SIZE = 90, 91, 100


def ids_of(text: str) -> list[int]:
    """Each word is its number, between two special tokens."""
    return [BEGIN, *map(int, text.split()), END] if text else []


TOKENIZER: Any = SimpleNamespace(ids=ids_of, special={BEGIN, END}, size=SIZE)
FOLDER = EncoderFolder(Path("x"), Path("x"), longest=8)


def spec(name: str, *shape: Any, dtype: Any = np.int64) -> TensorSpec:
    return TensorSpec(name, np.dtype(dtype), shape or ("b", "s"))


IN = (spec(IDS), spec(MASK))
TOKENS = Ends(IN, "last_hidden_state", of_texts=False)


def encoder(**more: Any) -> Encoder:
    return replace(Encoder(FOLDER, TOKENIZER, TOKENS), **more)


@pytest.mark.parametrize(
    ("text", "most", "ids"),
    [
        ("1 2 3", None, [BEGIN, 1, 2, 3, END]),
        ("  1 2 3\n", 5, [BEGIN, 1, 2, 3, END]),
        ("1 2 3", 4, [BEGIN, 1, 2, END]),
        ("1 2 3", 2, [BEGIN, END]),
        ("1 2 3", 1, [BEGIN]),
        ([1, 2, 3], 2, [1, 2]),
        ([0, SIZE - 1], None, [0, SIZE - 1]),
    ],
)
def test_ids_of_a_text(text: Any, most: int | None, ids: list[int]) -> None:
    """What is cut keeps the special tokens at its ends."""
    assert encoder().ids(text, most) == ids


def test_a_prompt_and_small_letters() -> None:
    seen: list[str] = []
    tokenizer: Any = SimpleNamespace(ids=lambda text: seen.append(text) or [1], special=set(), size=SIZE)
    folder = replace(FOLDER, prompt="Query: ", lower=True)
    encoder(folder=folder, tokenizer=tokenizer).ids(" Ab ")
    encoder(folder=replace(folder, lower=False), tokenizer=tokenizer).ids("Ab")
    assert seen == ["query: ab", "Query: Ab"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one token, found none"),
        ([SIZE], f"there is no token {SIZE}: expected ids from 0 to {SIZE - 1}"),
        ([-1, SIZE], "there is no token -1"),
        ([1] * 9, "expected at most 8 tokens, found 9"),
        pytest.param(
            "1 " * (4 * TOKEN_CHARACTERS + 1),
            f"the text has {8 * TOKEN_CHARACTERS + 1} characters, far more",
            id="long",
        ),
    ],
)
def test_texts_that_are_refused(text: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encoder().ids(text)


def test_a_text_of_any_length_is_cut_where_that_is_asked_for() -> None:
    found = encoder().ids("1 " * 10_000, 8)
    assert found == [BEGIN, *[1] * 6, END]
    assert encoder().ids("1 " * (4 * TOKEN_CHARACTERS))[1:3] == [1, 1]  # not far more
    with pytest.raises(ConfigError, match="found 9"):
        encoder().check([1] * 9)
    encoder().check([1] * 8)
    encoder(folder=replace(FOLDER, longest=None)).check([1] * 10_000)


@pytest.mark.parametrize(("masked", "lengths"), [(True, [1, 4]), (False, [4])])
def test_texts_of_a_fixed_length(masked: bool, lengths: list[int]) -> None:
    """Where nothing says what is padding, others cannot be computed."""
    inputs = (spec(IDS, "b", 4), *([spec(MASK, "b", 4)] if masked else []))
    one = encoder(ends=Ends(inputs, "y", of_texts=False))
    assert one.longest == 4 and one.ends.length == 4 and one.ends.masked is masked
    for length in range(1, 6):
        if length in lengths or (masked and length < 5):
            one.check([1] * length)
            assert one._batch([0], [[1] * length]).feeds[IDS].shape == (1, 4)
        else:
            with pytest.raises(ConfigError):
                one.check([1] * length)


def test_a_batch_is_filled_up_as_the_mask_says() -> None:
    inputs = (*IN, spec(KINDS, dtype=np.int32), spec(PLACES), spec("other"))
    one = encoder(ends=Ends(inputs[:4], "y", of_texts=False), folder=replace(FOLDER, pad=7))
    batch = one._batch([5, 2], [[1, 2, 3], [4]])
    assert (batch.places, batch.lengths) == ([5, 2], [3, 1])
    assert {name: value.tolist() for name, value in batch.feeds.items()} == {
        IDS: [[1, 2, 3], [4, 7, 7]], MASK: [[1, 1, 1], [1, 0, 0]],
        KINDS: [[0, 0, 0]] * 2, PLACES: [[0, 1, 2]] * 2,
    }  # fmt: skip
    assert batch.feeds[KINDS].dtype == np.int32 and batch.feeds[PLACES].flags.c_contiguous


@pytest.mark.parametrize(
    ("joins", "pads", "lengths", "batches"),
    [
        (False, False, [2, 2, 1], [[2], [0], [1]]),
        (True, False, [2, 3, 2, 3], [[0, 2], [1, 3]]),
        (True, True, [2, 3, 1], [[2, 0, 1]]),
        (False, True, [2, 2], [[0], [1]]),
        (True, False, [1] * (_MOST_ROWS + 1), [[*range(_MOST_ROWS)], [_MOST_ROWS]]),
        (True, True, [_MOST_TOKENS // 2] * 2, [[0, 1]]),
        (True, True, [_MOST_TOKENS // 2, _MOST_TOKENS // 2 + 1], [[0], [1]]),
        (True, True, [_MOST_TOKENS + 1], [[0]]),  # alone it may be longer
    ],
)
def test_which_texts_are_computed_together(
    joins: bool, pads: bool, lengths: list[int], batches: list[list[int]]
) -> None:
    found = encoder(joins=joins, pads=pads).batches([[1] * length for length in lengths])
    assert [list(batch.places) for batch in found] == batches


def computed(change: float = 0.0, fail: type[Exception] | None = None) -> Any:
    """A model whose vectors are its ids; ``change``: what a row beside others does to each."""

    def compute(feeds: Any) -> Any:
        ids = feeds[IDS].astype(np.float32)
        if fail is not None and len(ids) > 1:
            raise fail("no such batch")
        return {"last_hidden_state": np.stack([ids, ids + change * (len(ids) > 1)], -1)}

    return compute


WORDS: Any = SimpleNamespace(
    ids=lambda text: [BEGIN, *(len(word) for word in text.split()), END], special={BEGIN, END}, size=SIZE
)


@pytest.mark.parametrize(
    ("compute", "inputs", "joins", "pads"),
    [
        (computed(), IN, True, True),
        (computed(), IN[:1], True, False),  # nothing says what is padding
        (computed(1.0), IN, False, False),
        (computed(fail=ShardrunError), IN, False, False),
        (computed(), (spec(IDS, 1, "s"), spec(MASK, 1, "s")), False, False),
    ],
)
def test_texts_are_joined_where_that_is_shown_to_change_nothing(
    compute: Any, inputs: Any, joins: bool, pads: bool
) -> None:
    one = encoder(tokenizer=WORDS, ends=Ends(inputs, "last_hidden_state", of_texts=False)).proved(compute)
    assert (one.joins, one.pads) == (joins, pads)


def test_ranks_that_are_lost_while_it_is_shown_are_told() -> None:
    with pytest.raises(LaunchError):
        encoder(tokenizer=WORDS).proved(computed(fail=LaunchError))


def test_vectors_and_what_is_cut_of_them() -> None:
    one = encoder(steps=[lambda found: found * 2])
    batch = one._batch([0, 1], [[1, 3], [5]])
    outputs = {"last_hidden_state": np.arange(12, dtype=np.float16).reshape(2, 2, 3)}
    found = one.vectors(batch, outputs)
    assert found.tolist() == [[3, 5, 7], [12, 14, 16]] and found.dtype == np.float32  # means, twice
    for wrong in (np.zeros((2, 3)), np.zeros((2, 3, 3)), np.zeros((1, 2, 3))):
        with pytest.raises(ConfigError, match="expected a vector for each of 2 texts of 2 tokens"):
            one.vectors(batch, {"last_hidden_state": wrong})
    whole = np.array([[0.6, 0.8, 0.0]], np.float32)
    assert one.cut(whole, 3) is not None and one.cut(whole, 3).tolist() == whole.tolist()
    assert one.cut(whole, 1).tolist() == [[1.0]]  # of length 1, as they were
    assert one.cut(whole * 2, 2) == pytest.approx(np.array([[1.2, 1.6]]))
    with pytest.raises(ConfigError, match="expected at most 3, which the model gives, found 4"):
        one.cut(whole, 4)


Y = spec("last_hidden_state", "b", "s", 8, dtype=np.float32)


@pytest.mark.parametrize(
    ("inputs", "outputs", "told", "output"),
    [
        (IN, [Y], False, "last_hidden_state"),
        (IN, [Y, spec("sentence_embedding", "b", 8, dtype=np.float32)], False, "sentence_embedding"),
        (IN, [spec("sentence_embedding", "b", "s", 8, dtype=np.float32), Y], False, "last_hidden_state"),
        (IN, [spec("y", "b", "s", 8, dtype=np.float32)], False, None),
        (IN, [spec("y", "b", "s", 8, dtype=np.float32)], True, "y"),
        (
            IN,
            [spec("pooler", "b", 8, dtype=np.float32), spec("y", "b", "s", 8, dtype=np.float16)],
            True,
            "y",
        ),
        (IN, [spec("n", "b", 8)], True, None),  # numbers of something
        ((spec(MASK),), [Y], True, None),
        ((*IN, spec("pixels")), [Y], True, None),
        ((spec(IDS, "b", "s", 2),), [Y], False, None),
        ((spec(IDS, 2, "s"),), [Y], False, None),  # two texts each time
        ((spec(IDS, 1, "s"),), [Y], False, "last_hidden_state"),
    ],
)
def test_what_is_an_encoder(inputs: Any, outputs: Any, told: bool, output: str | None) -> None:
    found = ends_of(inputs, outputs, told=told)
    assert (found and found.output) == output
    if found is not None:
        assert found.of_texts is (output == "sentence_embedding")


def saved(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("files", "field", "value"),
    [
        ({}, "longest", None),
        (
            {"sentence_bert_config": {"max_seq_length": 7}, "config": {"max_position_embeddings": 9}},
            "longest",
            7,
        ),
        (
            {"sentence_bert_config": {"max_seq_length": 9}, "config": {"max_position_embeddings": 7}},
            "longest",
            7,
        ),
        ({"tokenizer_config": {"model_max_length": 1e30}}, "longest", None),  # which says none
        ({"tokenizer_config": {"model_max_length": 512}}, "longest", 512),
        ({"sentence_bert_config": {"do_lower_case": True}}, "lower", True),
        ({"sentence_bert_config": {"do_lower_case": 1}}, "lower", False),
        ({"config": {"pad_token_id": 3}}, "pad", 3),
        ({"config": {"pad_token_id": -1}}, "pad", 0),
        ({"config": {"pad_token_id": True}}, "pad", 0),
        ({}, "told", False),
        ({"1_Pooling__config": {"pooling_mode_cls_token": True}}, "told", True),
        ({"1_Pooling__config": {"pooling_mode_cls_token": True}}, "modes", ["cls"]),
        ({}, "modes", ["mean"]),
        ({"modules": [{"type": "a.Transformer", "path": ""}]}, "told", True),
        ({"modules": [{"type": "a.Odd", "path": ""}]}, "unknown", "Odd"),
        (
            {"modules": [{"type": "a.Normalize"}, {"type": "a.Pooling"}]},
            "unknown",
            "Normalize before Pooling",
        ),
        ({"modules": [{"type": "a.Pooling"}, {"type": "a.Normalize"}]}, "unknown", ""),
        (
            {"config_sentence_transformers": {"prompts": {"q": "Q: "}, "default_prompt_name": "q"}},
            "prompt",
            "Q: ",
        ),
        ({"config_sentence_transformers": {"prompts": {"q": "Q: "}}}, "prompt", ""),
    ],
)
def test_what_a_folder_says(tmp_path: Path, files: dict[str, Any], field: str, value: object) -> None:
    assert getattr(read_encoder_folder(saved(tmp_path, files)), field) == value


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"sentence_bert_config": {"max_seq_length": 0}}, "max_seq_length: expected a whole number above 0"),
        ({"config": {"max_position_embeddings": "9"}}, "max_position_embeddings: expected a whole number"),
        ({"modules": [{"type": "a.Dense", "path": "../x"}]}, "a folder in this one"),
        ({"modules": [{"type": "a.Dense", "path": "/x"}]}, "a folder in this one"),
        ({"1_Pooling__config": {"pooling_mode": "odd"}}, "pooling_mode: expected some of"),
        ({"1_Pooling__config": {"word_embedding_dimension": 3}}, "expected a pooling"),
        ({"config_sentence_transformers": {"default_prompt_name": "q"}}, "expected one of the prompts"),
    ],
)
def test_folders_that_say_what_cannot_be(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_encoder_folder(saved(tmp_path, files))


def test_where_a_models_texts_are(tmp_path: Path) -> None:
    inner = tmp_path / "onnx"
    inner.mkdir()
    model = inner / "model.onnx"
    model.touch()
    assert texts_beside(model, None) is None
    (tmp_path / "tokenizer.json").touch()
    assert texts_beside(model, None) == tmp_path and texts_beside(tmp_path, None) == tmp_path
    assert texts_beside(model, inner) is None and texts_beside(model, tmp_path) == tmp_path
    (inner / "tokenizer.json").touch()
    assert texts_beside(model, None) == inner
