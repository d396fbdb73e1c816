"""Names that nothing in a graph has yet."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from sharding.common.names import Names, all_names


def test_all_that_a_model_names_is_known() -> None:
    """In bodies of bodies too."""
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
      h = Add(x, w)
      y = If(c) <then_branch = a () => (float[2] one) {
        one = If(c) <then_branch = b () => (float[2] inner) { made = Neg(h) inner = Neg(made) },
                     else_branch = d () => (float[2] other) { other = Identity(h) }>
      }, else_branch = e () => (float[2] last) { last = Identity(h) }>
    }"""
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    named = {"c", "x", "w", "h", "y", "one", "made", "inner", "other", "last"}
    assert all_names(model) - {""} == named


def test_a_name_is_given_once() -> None:
    names = Names(["a", "a_2", "b"])
    assert [names.fresh(name) for name in ("a", "a", "c", "b", "a", "c_1", "c")] == [
        *("a_1", "a_3", "c", "b_1", "a_4", "c_1", "c_2"),
    ]
