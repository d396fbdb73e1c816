"""Files of MindIR that contradict themselves, or say less than a conversion needs: each is refused in a
sentence that says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.errors import ModelError
from sharding.importers import import_model
from sharding.importers.mindir import values
from sharding.importers.mindir.dtypes import ValueProblem
from sharding.importers.mindir.schema import messages
from tests.sharding.importers.mindir_files import FLOAT, TENSORS, TUPLE, File, Graph
from tests.sharding.importers.mindir_runs import Declared, Made, open_axes, open_lengths, run

X = np.arange(12, dtype=np.float32).reshape(3, 4)
WHOLE = np.arange(6)


def said(folder: Path, file: File) -> str:
    with pytest.raises(ModelError) as caught:
        import_model(file.save(folder / "invalid.mindir"))
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".")
    return text


REFUSED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], str]] = {
    "no tuple": ("TupleGetItem", ((1, 2),), {}, "expected a tuple and an index, found 1 inputs"),
    "behind a tuple": ("TupleGetItem", ((1, 2), 2), {}, "item 2 of a tuple of 2"),
    "before a tuple": ("TupleGetItem", ((1, 2), -3), {}, "item -3 of a tuple of 2"),
    "an item of a tensor": ("TupleGetItem", (X, 0), {}, "expected a tuple and an index that is known"),
    "an item that a run tells": (
        "TupleGetItem", ((X, X), np.array(1)), {}, "expected a tuple and an index that is known",
    ),
    "an item that is set": (
        "tuple_setitem", ((1, 2), 0), {}, "expected a tuple, an index and an item, found 2 inputs",
    ),
    "behind a tuple, set": ("tuple_setitem", ((1, 2), 2, 5), {}, "item 2 of a tuple of 2"),
    "nothing to read": ("Load", (), {}, "it has no inputs"),
    "nothing to wait for": ("Depend", (), {}, "it has no inputs"),
    "no graph": ("Partial", (X,), {}, "its first input is no graph"),
    "one of two": ("Switch", (np.array(True), X), {}, "expected 3 inputs, found 2"),
    "one of no graphs": ("SwitchLayer", (np.array(1), X), {}, "expected an index and a tuple of graphs"),
    "a text": ("Relu", ("text",), {}, "Relu"),
    "an order twice": ("Transpose", (X, (0, 0)), {}, "perm [0, 0] is no order of axes"),
    "an axis that is none": ("Concat", ((X, X), 2), {}, "axis 2 is none of a tensor with 2 axes"),
    "an axis before all": ("Concat", ((X, X), -3), {}, "axis -3 is none of a tensor with 2 axes"),
    "an axis twice": ("ReduceSum", (X, (0, -2)), {}, "axis [0, 0] names one axis twice"),
    "a number that a run tells": (
        "LinSpace", (0.0, 1.0, (np.array(2), 3)), {}, "num must be one integer that is known before a run",
    ),
    "no point": ("LinSpace", (0.0, 1.0, 0), {}, "num must be positive, found 0"),
    "fewer than no marks": ("OneHot", (WHOLE, -1, 1.0, 0.0), {}, "depth must not be negative, found -1"),
    "halves of axes": ("DiagPart", (X[None],), {}, "a tensor with 3 axes has not each of them twice"),
    "halves of open axes": (
        "DiagPart", (open_lengths(np.zeros((2, 2, 2, 2), np.float32)),), {}, "its lengths must be known",
    ),
    "quotients of whole numbers by place": (
        "TensorScatterDiv", (WHOLE, np.array([[1]]), np.array([2])), {},
        "integers divided by place have no conversion",
    ),
    "extremes of truths": (
        "UnsortedSegmentMax", (WHOLE > 2, WHOLE, 6), {}, "segments of bool have no extremes",
    ),
    "batch axes behind the axis": (
        "Gather", (X, np.zeros((3, 2), np.int64), 0), {"batch_dims": 1}, "batch_dims 1 lies behind axis 0",
    ),
    "rows that are renormalized": (
        "Embedding", (WHOLE, X, None, 1.0), {},
        "it renormalizes rows (max_norm), which changes its own table",
    ),
    "a median of no numbers": ("Median", (X, False, 0, False, True), {}, "ignore_nan has no conversion"),
    "a median of nothing": ("Median", (X[:0], False, 0), {}, "there is no element that is the median"),
    "no order": ("InvertPermutation", ((0, 2),), {}, "(0, 2) is no order"),
    "blocks that do not fit": (
        "SpaceToBatchND", (X[None, None],), {"block_shape": (2, 2), "paddings": (0, 0, 0, 0)},
        "a length of 3 has no blocks of 2",
    ),
    "as many as the length has not": (
        "Split", (X, 0, 2), {}, "a length of 3 cannot be cut into 2 equal parts",
    ),
    "in no parts": ("Split", (X, 0, 0), {}, "a length of 3 cannot be cut into 0 equal parts"),
    "open parts": (
        "SplitTensor", (open_lengths(X), 2, 0), {},
        "the length along axis 0 must be known, and split_size positive",
    ),
    "parts of no length": ("SplitTensor", (X, 0, 0), {}, "and split_size positive"),
    "open chunks": ("Chunk", (open_lengths(X), 2, 1), {}, "the length along axis 1 must be known"),
    "no chunks": ("Chunk", (X, 0, 1), {}, "and chunks positive"),
    "what is left of an open length": (
        "SplitWithSize", (open_lengths(X), (1, -1), 0), {},
        "the length along the axis must be known for a part of length -1",
    ),
    "unpacked of an open length": (
        "Unstack", (open_lengths(X),), {"axis": 0}, "the number of results must be known",
    ),
    "-1 of what is not there": (
        "BroadcastTo", (X, (-1, 3, 4)), {}, "has -1 for an axis that the operand does not have",
    ),
    "repetitions without a number": (
        "Tile", (X, open_lengths(np.array([1, 2]))), {}, "the number of repetitions must be known",
    ),
    "an equation that is missing": ("Einsum", ((X, X),), {}, "its equation is missing"),
    "bits of numbers": ("BitwiseAnd", (X, X), {}, "bits of float32 cannot be combined"),
    "no axis of 3": (
        "Cross", (X[:2, :2].copy(), X[:2, :2].copy()), {}, "no axis is known to have the length 3",
    ),
    "exclusive": (
        "CumulativeLogsumexp", (X, 0), {"exclusive": True}, "it has no conversion for exclusive",
    ),
    "diagonals in the wrong order": ("MatrixDiagPartV3", (X, (1, 0), 0.0), {}, "k must be one diagonal"),
    "diagonals beyond a matrix": ("MatrixDiagPartV3", (X, 9, 0.0), {}, "has no diagonals 9 to 9"),
    "diagonals of open lengths": (
        "MatrixDiagPartV3", (open_lengths(X), 0, 0.0), {}, "two lengths must be known before a run",
    ),
    "no matrix": ("Cholesky", (X[0],), {}, "a tensor with 1 axes is no matrix"),
    "neighbours of whole numbers": (
        "NextAfter", (np.float16([1]), np.float16([2])), {}, "it is for float32 and float64, found float16",
    ),
    "grids of no image": (
        "AffineGrid", (X[None, :2, :3].copy(), (1, 1, 4)), {}, "is that of no image and no volume",
    ),
    "lots of three axes": ("Multinomial", (X[None], 2), {}, "it needs an operand with one or two axes"),
    "padded by three": ("ConstantPadND", (X, (1, 2, 3), 0.0), {}, "do not fit a tensor with 2 axes"),
    "padded too often": ("ConstantPadND", (X, (1,) * 6, 0.0), {}, "do not fit a tensor with 2 axes"),
    "any number of axes": (
        "SearchSorted", (open_axes(X[0]), X[0]), {}, "it needs an operand whose number of axes is known",
    ),
    "slices without a number": (
        "StridedSlice", (X, open_lengths(np.array([0])), (1,), (1,)), {},
        "the number of integers in begin must be known",
    ),
    "slices of other numbers": (
        "StridedSlice", (X, (0,), (1, 2), (1,)), {}, "begin, end and strides have 1, 2 and 1 numbers",
    ),
    "slices of more axes": (
        "StridedSlice", (X, (0, 0, 0), (1, 1, 1), (1, 1, 1)), {}, "it slices 3 axes of a tensor with 2",
    ),
    "a kind of segments": ("Complex", (X,), {}, "expected 2 operands, found 1"),
    "too many operands": ("Sqrt", (X, X), {}, "expected at most 1 operands and settings, found 2"),
    "integers of numbers": ("Reshape", (X, (1.5, 2.0)), {}, "Reshape"),
    "an open length that squeezes": (
        "Squeeze", (Declared(X, (-1, 4)),), {"types": (("float32", (4,)),)},
        "it squeezes axes of which it is not known whether their length is 1",
    ),
    "complex numbers": ("ReLU", (Made("Complex", X, X),), {}, "it has no conversion for complex numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    kind, operands, settings, why = REFUSED[name]
    with pytest.raises(ModelError) as caught:
        run(tmp_path, kind, *operands, **settings)
    assert f"{kind}: " in str(caught.value) and why in str(caught.value), str(caught.value)


def _plain() -> tuple[File, Graph]:
    file = File()
    graph = file.graph("main", ("x", "float32", (3,)))
    graph.gives(graph.prim("Neg", graph["x"]))
    return file, graph


def two_outputs(file: File, graph: Graph) -> None:
    graph.gives(graph["x"])


def named_twice(file: File, graph: Graph) -> None:
    graph.message.node[0].output.append("more")


def two_graphs(file: File, graph: Graph) -> None:
    for _ in range(2):
        inner = file.graph("inner", ("y", "float32", (3,)))
        inner.gives(inner["y"])


def two_values(file: File, graph: Graph) -> None:
    name = graph.const(1)
    node = graph.message.node[-1]
    node.attribute.add().CopyFrom(node.attribute[0])
    graph.message.node[0].input[0] = name


def unknown_constant(file: File, graph: Graph) -> None:
    name = graph.const(1)
    graph.message.node[-1].attribute[0].type = 99
    graph.message.node[0].input[0] = name


def no_graph(file: File, graph: Graph) -> None:
    graph.message.output[0].name = graph.call("nothing", graph["x"])


def called_number(file: File, graph: Graph) -> None:
    graph.message.output[0].name = graph.call(graph.const(1), graph["x"])


def no_tensor(file: File, graph: Graph) -> None:
    graph.message.output[0].name = graph.prim("MakeTuple")


def a_text(file: File, graph: Graph) -> None:
    graph.message.output[0].name = graph.const("text")


def no_shape(file: File, graph: Graph) -> None:
    graph.message.input[0].tensor[0].dims[0] = -5


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (two_outputs, "its graph 'main' has 2 outputs; expected one (several results are one tuple)"),
        (named_twice, "expected one name of its own"),
        (two_graphs, "it has two graphs named 'inner'"),
        (two_values, "has 2 values; expected one"),
        (unknown_constant, "is of kind 99, which has no conversion"),
        (no_graph, "nothing"),
        (called_number, "a node calls what is no graph"),
        (no_tensor, "gives no tensor"),
        (a_text, "gives str; expected tensors"),
        (no_shape, "its shape [-5] cannot be"),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_contradictions(change: Callable[[File, Graph], None], why: str, tmp_path: Path) -> None:
    file, graph = _plain()
    change(file, graph)
    assert why in said(tmp_path, file)


def test_more_reasons_than_are_told(tmp_path: Path) -> None:
    file = File()
    graph = file.graph("main", ("x", "float32", (3,)))
    found = graph["x"]
    for number in range(60):
        found = graph.prim(f"Unknown{number:02}", found)
    graph.gives(found)
    text = said(tmp_path, file)
    shown = text.count(": no conversion")
    assert "for 60 reasons" in text and 0 < shown < 60 and f"and {60 - shown} more." in text


def test_what_attributes_hold() -> None:
    def attribute(kind: int, **fields: Any) -> Any:
        item = messages()["Graph"]().node.add().attribute.add(name="a", type=kind)
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(item, name).extend(value)
            else:
                setattr(item, name, value)
        return item

    assert values.attribute(attribute(11, d=0.5)) == 0.5
    assert values.attribute(attribute(11, d=0.5, doubles=[0.25]), element=True) == 0.25
    assert values.attribute(attribute(11, d=0.5, doubles=[0.25])) == 0.5
    assert values.attribute(attribute(11, d=0.5), element=True) == 0.5
    assert values.attribute(attribute(FLOAT, f=0.5, floats=[0.25]), element=True) == 0.25
    assert values.attribute(attribute(9, i=1)) is True
    assert values.attribute(attribute(9, i=1, ints=[0]), element=True) is False
    assert values.attribute(attribute(8, s=b"a", strings=[b"b"]), element=True) == "b"
    deep = attribute(TUPLE)
    inner = deep
    for _ in range(values.MAX_DEPTH):
        inner = inner.values.add(type=TUPLE)
    assert values.attribute(deep)
    inner.values.add(type=TUPLE)
    with pytest.raises(ValueProblem, match="it is nested too deeply"):
        values.attribute(deep)


def test_what_constants_hold() -> None:
    def tensor(dims: list[int], raw: bytes | None = None, **fields: Any) -> Any:
        item = messages()["Graph"]().node.add().attribute.add(name="a", type=TENSORS)
        made = item.tensors.add(data_type=1, dims=dims)
        if raw is not None:
            made.raw_data = raw
        for name, value in fields.items():
            getattr(made, name).extend(value)
        return item

    assert values.attribute(tensor([])) == np.float32
    assert values.attribute(tensor([0, 2])).shape == (0, 2)
    assert values.attribute(tensor([2], np.float32([1, 2]).tobytes())).tolist() == [1, 2]
    for item, why in (
        (tensor([2]), "it has no data"),
        (tensor([2], b"abcd"), "it needs 8 bytes for its type and shape, but has 4"),
        (tensor([2], b"", float_data=[1.0, 2.0]), "it keeps its data in float_data; expected raw_data"),
        (tensor([-2, 1], b""), r"its shape \[-2, 1\] cannot be"),
        (tensor([1] * 65, b"abcd"), "cannot be"),
    ):
        with pytest.raises(ValueProblem, match=why):
            values.attribute(item)
    assert values.lengths([1] * 64) == (1,) * 64
    assert values.lengths([-2]) is None and values.lengths([-1, 3]) == (None, 3)
    assert values.lengths([-7, 3], computed=True) == (None, 3)
