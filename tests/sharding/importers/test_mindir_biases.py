"""Products and what is added to them, as one operator."""

from __future__ import annotations

import pytest
from onnx import helper

from sharding.importers.mindir.biases import with_biases


@pytest.mark.parametrize(
    ("terms", "kept", "merged"),
    [
        (["p", "b"], ["y"], True),
        (["b", "p"], ["y"], True),
        (["p", "b"], ["y", "p"], False),  # the product is an output itself
        (["p", "other"], ["y"], False),  # no vector
        (["p", "p"], ["y"], False),
    ],
)
def test_only_a_product_that_nothing_else_reads_takes_its_bias(
    terms: list[str], kept: list[str], merged: bool
) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w"], ["p"]), helper.make_node("Add", terms, ["y"])]
    found = with_biases(nodes, frozenset({"b"}), kept)
    shown = [(node.op_type, [*node.input], [*node.output]) for node in found]
    apart = [("Gemm", ["x", "w"], ["p"]), ("Add", terms, ["y"])]
    assert shown == ([("Gemm", ["x", "w", "b"], ["y"])] if merged else apart)
