"""What a session fills in by itself: masks, positions and lengths, by what has been read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranks.common.tensors import TensorSpec
from ranks.errors import ShardrunError
from ranks.state import feeds

IDS = {"input_ids": np.zeros((2, 3), np.int64)}


def spec(name: str, *shape: Any, dtype: Any = np.int64, open_rank: bool = False) -> TensorSpec:
    return TensorSpec(name, np.dtype(dtype), shape, open_rank=open_rank)


LINE, LINES = [4, 5, 6], [[4, 5, 6]] * 2
CASES: list[tuple[TensorSpec, Any]] = [
    # an input, and what it is where 4 positions were read and two rows have 3 new ones
    (spec("attention_mask", "b", "t"), [[1] * 7] * 2),
    (spec("decoder_attention_mask", "b", "t", dtype=np.float32), [[1.0] * 7] * 2),
    (spec("position_ids", "b", "n"), LINES),
    (spec("decoder_position_ids", "b", "n", dtype=np.int32), LINES),
    (spec("position_ids", "n"), LINE),
    (spec("position_ids", open_rank=True), LINES),
    (spec("cache_position", "n"), LINE),
    (spec("cache_position", open_rank=True), LINE),
    (spec("position_ids", 3, "b", "n"), [LINES] * 3),
    (spec("position_ids", "axes", "b", "n"), [LINES]),
    (spec("position_ids", 0, "b", "n"), [LINES]),
    (spec("position_ids", 1, 3, "b", "n"), [[LINES] * 3]),
    (spec("past_sequence_length", 1), [4]),
    (spec("past_seq_len", 1, 1), [[4]]),
    (spec("total_sequence_length"), 7),
    (spec("use_cache_branch", 1, dtype=bool), [True]),
    (spec("num_logits_to_keep"), 0),
]


@pytest.mark.parametrize(("wanted", "value"), CASES, ids=[str(one) + one.name for one, _ in CASES])
def test_what_follows_from_how_much_was_read(wanted: TensorSpec, value: Any) -> None:
    made = feeds.fill([wanted], IDS, 4)[wanted.name]
    assert made.dtype == wanted.dtype and made.tolist() == value
    assert feeds.filled([wanted, spec("input_ids", "b", "n")]) == [wanted]


def test_a_first_step() -> None:
    made = feeds.fill([spec("use_cache_branch", 1, dtype=bool), spec("position_ids", "b", "n")], IDS, 0)
    assert made["use_cache_branch"].tolist() == [False] and made["position_ids"].tolist() == [[0, 1, 2]] * 2


def test_what_was_given_stays() -> None:
    given = {**IDS, "position_ids": np.array([[9, 9, 9]] * 2)}
    wanted = [spec("position_ids", "b", "n"), spec("attention_mask", "b", "t")]
    made = feeds.fill(wanted, given, 1)
    assert made.keys() == {"input_ids", "position_ids", "attention_mask"}
    assert made["position_ids"] is given["position_ids"]


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({"input_ids": np.zeros((2, 3))}, (2, 3)),
        ({"decoder_input_ids": np.zeros((2, 1)), "other": np.zeros((7, 7))}, (2, 1)),
        ({"inputs_embeds": np.zeros((1, 5, 8))}, (1, 5)),
        ({"input_ids": np.zeros(3)}, None),
        ({"input_ids": np.zeros(3), "inputs_embeds": np.zeros((1, 5, 8))}, (1, 5)),
        ({"hidden": np.zeros((2, 3))}, None),
        ({}, None),
    ],
)
def test_how_many_rows_and_positions_a_step_has(given: Any, size: tuple[int, int] | None) -> None:
    assert feeds.size(given) == size
    if size is None:  # nothing follows from it
        assert feeds.fill([spec("attention_mask", "b", "t")], given, 2).keys() == given.keys()
        feeds.check_masks({**given, "attention_mask": np.ones((9, 9))}, 0)


def test_only_numbers_beside_tokens_are_filled() -> None:
    tokens, mask = spec("input_ids", "b", "n"), spec("attention_mask", "b", "t")
    assert feeds.filled([mask]) == []
    text = TensorSpec("position_ids", np.dtype(object), ("b", "n"))
    assert feeds.filled([tokens, mask, text, spec("token_type_ids", "b", "n"), spec("pixels", "b")]) == [mask]


@pytest.mark.parametrize("name", ["attention_mask", "decoder_attention_mask"])
def test_a_mask_of_more_positions_than_there_are(name: str) -> None:
    for shape in ((2, 7), (2, 3), (2, 1, 3, 9)):
        feeds.check_masks({**IDS, name: np.ones(shape)}, 4)
    with pytest.raises(ShardrunError, match=f"'{name}' has 8 positions, but .* the sequence has 7: give"):
        feeds.check_masks({**IDS, name: np.ones((2, 8))}, 4)
