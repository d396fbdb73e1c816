"""Ranks that add up no parts of sums give the numbers of one process, to the bit."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from launcher import start
from sharding.demands.choices import SUMS
from sharding.demands.options import SliceOptions
from tests.sharding import lockstep
from tests.sharding.planning.test_language_models import Builder, Form, feeds_of

FORMS = {
    "biased": Form(bits=4, bias=True, accuracy=4),
    "dequantized": Form(bits=4, points=True, dequantized=True),
}
"""ONNX Runtime puts biases, and dequantized weights, into products that round what they read."""


@pytest.mark.parametrize("name", FORMS)
def test_products_that_round(name: str, tmp_path: Path) -> None:
    form, path = FORMS[name], tmp_path / "model.onnx"
    onnx.save(Builder(form).model(), path)
    feeds = feeds_of(form, 8, 24, 0)
    expected = lockstep.reference(path, feeds)
    found = {}
    for sums in SUMS:
        options = SliceOptions(sums=sums)
        with start(path, ranks=2, launcher="local", threads=1, options=options) as group:
            found[sums] = group.predict(feeds)
    for output, value in expected.items():
        np.testing.assert_array_equal(found["whole"][output], value, output)
    np.testing.assert_array_equal(found["auto"]["logits"], expected["logits"])
    # The check is one: parts that are added up give other bits.
    assert not np.array_equal(found["parts"]["logits"], expected["logits"])
