"""How sequences of different lengths lie in one batch, by what a model is fed."""

from __future__ import annotations

import numpy as np
import pytest

from ranks.common.tensors import TensorSpec
from ranks.state.session import Known
from sharding.slices.state import StatePair

TOKENS = TensorSpec("input_ids", np.dtype(np.int64), ("b", "n"))
MASK = TensorSpec("attention_mask", np.dtype(np.int64), ("b", "t"))
PLACES = TensorSpec("position_ids", np.dtype(np.int64), ("b", "n"))
LINE = TensorSpec("position_ids", np.dtype(np.int64), ("n",))
ONE = TensorSpec("past_sequence_length", np.dtype(np.int64), (1,))
KINDS = TensorSpec("token_type_ids", np.dtype(np.int64), ("b", "n"))
GROWS, BUFFER = StatePair("k", "k+", 2, "append"), StatePair("k", "k+", 2, "append", buffer=True)
LONGER = StatePair("v", "v+", 2, "append", buffer=True)

CASES = {
    "pad": ([TOKENS, MASK, PLACES], [GROWS], "pad"),
    "buffer": ([TOKENS, MASK], [BUFFER], "buffer"),
    "one of two is a buffer": ([TOKENS, MASK, PLACES], [GROWS, LONGER], ""),
    "no positions": ([TOKENS, MASK], [GROWS], ""),
    "no mask": ([TOKENS, PLACES], [GROWS], ""),
    "nothing grows": ([TOKENS, MASK, PLACES], [StatePair("k", "k+")], ""),
    "positions of all rows": ([TOKENS, MASK, LINE], [GROWS], ""),
    "one length": ([TOKENS, MASK, PLACES, ONE], [GROWS], ""),
    "types of tokens": ([TOKENS, MASK, PLACES, KINDS], [GROWS], ""),
}


@pytest.mark.parametrize("case", CASES)
def test_how_a_batch_lies(case: str) -> None:
    specs, pairs, wanted = CASES[case]
    held = [TensorSpec(pair.input, np.dtype(np.float32), ("b", 2, "p", 4)) for pair in pairs]
    filled = [spec.name for spec in specs if spec not in (TOKENS, KINDS)]
    assert Known([*specs, *held], [], pairs, filled).batches == wanted
