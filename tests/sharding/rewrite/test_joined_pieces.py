"""Heads that are cut and stacked one by one are held by the ranks as one axis; the answer stays the same."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import sharding
from sharding.reading.read import read_model
from tests.sharding import graphs, lockstep

HEADS, SIZE = 12, 4
WIDTH = HEADS * SIZE
RANKS = (2, 3, 4)
NUMBERS: dict[str, object] = {
    "zero": [0],
    "last": [-1],
    "first_axis": [1],
    "unit": [1],
    "sizes": [SIZE] * HEADS,
}
NUMBERS |= {"ones": [1] * HEADS, "three_rows": [3] * HEADS}
NUMBERS |= {"twelve": [HEADS]} | {f"unit{i}": [i] for i in range(HEADS + 1)}
NUMBERS |= {f"at_{i}": [i * SIZE] for i in range(HEADS + 1)} | {f"i{i}": i for i in range(HEADS)}


def _names(base: str) -> str:
    return ", ".join(f"{base}{i}" for i in range(HEADS))


def _each(line: str) -> str:
    """A line for every head: # is its number, + the next one's."""
    return " ".join(line.replace("#", str(i)).replace("+", str(i + 1)) for i in range(HEADS))


def _on_batch(x: str) -> str:
    return f"{_names(x)} = Split<axis = -1>({x}, sizes) {x}m = Concat<axis = 0>({_names(x)})"


def _sliced(x: str) -> str:
    return _each(f"{x}# = Slice({x}, at_#, at_+, last)") + f" {x}m = Concat<axis = 0>({_names(x)})"


def _stacked(axis: int, name: str) -> Callable[[str], str]:
    def stacked(x: str) -> str:
        text = f"{_names(x)} = Split<axis = 2, num_outputs = {HEADS}>({x}) "
        text += _each(f"{x}u# = Unsqueeze({x}#, {name})")
        return text + f" {x}m = Concat<axis = {axis}>({_names(x + 'u')})"

    return stacked


BACK = {
    "split": f"{_names('c')} = Split<axis = 0, num_outputs = {HEADS}>(c) "
    f"f = Concat<axis = -1>({_names('c')})",
    "sizes": f"{_names('c')} = Split<axis = 0>(c, three_rows) f = Concat<axis = 2>({_names('c')})",
    "computed": "sh = Shape(c) l = Gather(sh, i0) a = Add(l, i11) d = Div(a, twelve) "
    + " ".join(f"e{i} = Mul(d, unit{i})" for i in range(HEADS + 1))
    + _each(" c# = Slice(c, e#, e+, zero)").replace("e0,", "zero,")
    + f" f = Concat<axis = -1>({_names('c')})",
    "squeezed": f"{_names('cs')} = Split<axis = 0>(c, ones) "
    + _each("c# = Squeeze(cs#, zero)")
    + f" f = Concat<axis = -1>({_names('c')})",
    "looked up": _each("c# = Gather<axis = 1>(c, i#)") + f" f = Concat<axis = -1>({_names('c')})",
}
FORMS: dict[str, tuple[Callable[[str], str], str, int]] = {
    "on the batch": (_on_batch, "split", 3),
    "slices on the batch": (_sliced, "split", 3),
    "chunks of computed length": (_sliced, "computed", 3),
    "in front": (_stacked(0, "zero"), "squeezed", 4),
    "after the batch": (_stacked(1, "first_axis"), "looked up", 4),
}


def _attention(path: Path, form: str, batch: str) -> Path:
    cut, back, rank = FORMS[form]
    back = "sizes" if form == "slices on the batch" and batch == "3" else back
    body = " ".join(f"{x} = MatMul(x, w{x}) {cut(x)}" for x in "qkv")
    turned = "[0, 2, 1]" if rank == 3 else "[0, 1, 3, 2]"
    body += f" t = Transpose<perm = {turned}>(km) s = MatMul(qm, t) p = Softmax<axis = -1>(s) "
    body += f"c = MatMul(p, vm) {BACK[back]} y = MatMul(f, wo)"
    weights = {f"w{name}": graphs.array(WIDTH, WIDTH, seed=i) / 7 for i, name in enumerate("qkvo")}
    read = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split())
    weights |= {name: np.asarray(value, np.int64) for name, value in NUMBERS.items() if name in read}
    shape = f"float[{batch}, seq, {WIDTH}]"
    return graphs.save(path, f"g ({shape} x) => ({shape} y) {{ {body} }}", weights)


@pytest.mark.parametrize("batch", ["batch", "3"])
@pytest.mark.parametrize("form", FORMS)
def test_one_sum(tmp_path: Path, form: str, batch: str) -> None:
    path = _attention(tmp_path / "model.onnx", form, batch)
    operators = {node.op_type for node in read_model(path).model.graph}
    assert not operators & {"Split", "Squeeze", "Unsqueeze"}
    for ranks in RANKS:
        plan = sharding.plan_model(path, ranks)
        assert plan.collective_counts() == {"AllReduce": 1}
        held = {name: str(where[0]) for name, where in plan.weights.items()}
        assert held == {"wq": "split:1", "wk": "split:1", "wv": "split:1", "wo": "split:0"}
        sharding.slice_model(path, ranks, tmp_path / f"{ranks}")
        lockstep.assert_same(tmp_path / f"{ranks}", path, {"x": graphs.array(3, 5, WIDTH)}, tolerance=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_no_rows_and_no_tokens(tmp_path: Path, form: str) -> None:
    """Lengths that are open may be 0."""
    path = _attention(tmp_path / "model.onnx", form, "batch")
    sharding.slice_model(path, 2, tmp_path / "slices")
    shapes = [(2, 0, WIDTH), (1, 1, WIDTH)]
    if FORMS[form][1] != "split":  # with num_outputs ONNX Runtime itself refuses to cut nothing
        shapes.append((0, 5, WIDTH))
    for shape in shapes:
        lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(*shape)}, tolerance=1e-5)


OTHERS = {
    "another order": "a, b, c = Split<axis = 1>(x, fours) y = Concat<axis = 0>(a, c, b)",
    "not all": "a, b, c = Split<axis = 1>(x, fours) y = Concat<axis = 0>(a, b)",
    "one twice": "a, b, c = Split<axis = 1>(x, fours) y = Concat<axis = 0>(a, b, c, a)",
    "unequal": "a, b, c = Split<axis = 1>(x, unequal) d = Slice(b, zero, two, one) "
    "e = Slice(a, zero, two, one) "
    "f = Slice(c, zero, two, one) y = Concat<axis = 0>(e, d, f)",
    "of two values": "n = Neg(x) a, b, c = Split<axis = 1>(x, fours) d, e, f = Split<axis = 1>(n, fours) "
    "y = Concat<axis = 0>(a, e, c)",
    "read elsewhere": "a, b, c = Split<axis = 1>(x, fours) d = Concat<axis = 0>(a, b, c) "
    "e = Concat<axis = 0>(b, b, b) y = Add(d, e)",
    "as it was": "a, b, c = Split<axis = 1>(x, fours) y = Concat<axis = 1>(a, b, c)",
    "overlapping": "a = Slice(x, zero, four, one) b = Slice(x, two, six, one) c = Slice(x, four, eight, one) "
    "y = Concat<axis = 0>(a, b, c)",
    "other axes added": "a, b, c = Split<axis = 1>(x, fours) d = Unsqueeze(a, zero) e = Unsqueeze(b, zero) "
    "f = Unsqueeze(c, zero) y = Concat<axis = 2>(d, e, f)",
    "an axis added and dropped": "a, b, c = Split<axis = 1>(x, fours) d = Unsqueeze(a, zero) "
    "e = Squeeze(d, zero) f = Unsqueeze(b, zero) g = Squeeze(f, zero) y = Concat<axis = 0>(e, g)",
    "negative numbers": "a = Gather<axis = 1>(x, a0) b = Gather<axis = 1>(x, a11) y = Concat<axis = 0>(a, b)",
}


@pytest.mark.parametrize("form", OTHERS)
def test_what_is_not_all_pieces_in_order_stays(tmp_path: Path, form: str) -> None:
    numbers = {"fours": [4, 4, 4], "unequal": [5, 4, 3], "zero": [0], "one": [1], "two": [2], "four": [4]}
    numbers |= {"six": [6], "eight": [8]}
    weights = {name: np.asarray(value, np.int64) for name, value in numbers.items()}
    weights |= {"a0": np.asarray(0), "a11": np.asarray(-12), "w": graphs.array(12, 12)}
    joined = OTHERS[form].replace("y = ", "joined = ")  # what is itself an output stays in any case
    text = f"g (float[batch, 12] z) => (float[m, n] y) {{ x = MatMul(z, w) {joined} y = Neg(joined) }}"
    if form in {"other axes added"}:
        text = text.replace("float[m, n] y", "float[l, m, n] y")
    if form in {"negative numbers"}:
        text = text.replace("float[m, n] y", "float[m] y")
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    assert "Concat" in {node.op_type for node in read_model(path).model.graph}
    sharding.slice_model(path, 2, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"z": graphs.array(3, 12)}, tolerance=1e-5)
