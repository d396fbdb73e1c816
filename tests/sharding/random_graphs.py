"""Random graphs that are valid by construction, and random ways to place what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from sharding.search.cost import IMPOSSIBLE, reshard_seconds
from sharding.search.steps import Step
from sharding.slices.placement import PARTIAL, REPLICATED, Placement
from tests.releases import INSTALLED

BATCH = 4
"""The length of the axis that the model calls n."""
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 12, 24)
MAX_ELEMENTS = 20_000
MAX_RANK = 5
Array = np.ndarray[Any, Any]
Shape = tuple[Any, ...]


class RandomGraph:
    """A model and inputs for it."""

    def __init__(self, model: onnx.ModelProto, feeds: dict[str, Array]) -> None:
        self.model, self.feeds = model, feeds

    def __repr__(self) -> str:
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        del model.graph.initializer[:]
        weights = [f"{item.name}{list(item.dims)}" for item in self.model.graph.initializer]
        return f"{onnx.printer.to_text(model)}\nweights: {', '.join(weights)}"

    def save(self, path: Path) -> Path:
        """Writes the model; checked by the onnx library."""
        onnx.checker.check_model(self.model)
        path.write_bytes(self.model.SerializeToString())
        return path


@dataclass
class Builder:
    """Adds operators to a graph; every float value made so far can be an operator's input."""

    draw: Callable[[Any], Any]
    opset: int
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Shape] = field(default_factory=dict)
    count: int = 0

    # Drawing.

    def pick(self, items: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(items)))

    def value(self, fits: Callable[[Shape], bool] = lambda shape: True) -> tuple[str, Shape] | None:
        """A value of a fitting shape, likely a late one."""
        found = [name for name, shape in self.values.items() if fits(shape)]
        if not found:
            return None
        recent = found[-3:]
        name = self.pick(recent + found)
        return name, self.values[name]

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        """A new weight, or one of this shape that there is already."""
        tied = [name for name, array in self.weights.items() if array.shape == shape and array.dtype == "f4"]
        if tied and self.draw(st.integers(0, 3)) == 0:
            return self.pick(tied)
        random = np.random.default_rng([len(self.weights), *shape])
        return self.constant(random.standard_normal(shape).astype(np.float32) * np.float32(scale))

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.asarray(values, np.int64))

    # Adding.

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> list[str]:
        names = [f"v{self.count + number}" for number in range(outputs)]
        self.count += outputs
        self.nodes.append(helper.make_node(op, inputs, names, name=f"{op}_{names[0]}", **attributes))
        return names

    def add(self, op: str, inputs: Sequence[str], shape: Shape, **attributes: Any) -> str:
        """A node whose output, of this shape, may be used further."""
        name = self.node(op, inputs, **attributes)[0]
        self.values[name] = shape
        return name


def _size(shape: Shape) -> int:
    return math.prod(BATCH if axis == "n" else axis for axis in shape)


def _fixed(shape: Shape) -> list[int]:
    return [axis for axis, length in enumerate(shape) if length != "n"]


def _unary(b: Builder) -> None:
    name, shape = b.value() or ("", ())
    op = b.pick(
        ("Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Erf", "Identity", "Softsign", "HardSigmoid", "Elu")
    )
    b.add(op, [name], shape)


def _binary(b: Builder) -> None:
    name, shape = b.value() or ("", ())
    other = b.value(lambda s: s == shape)
    assert other is not None
    b.add(b.pick(("Add", "Sub", "Mul", "Max", "Min", "Mean", "Sum")), [name, other[0]], shape)


def _with_weight(b: Builder) -> None:
    name, shape = b.value() or ("", ())
    axes = [1 if axis == "n" or b.draw(st.booleans()) else axis for axis in shape]
    axes = axes[b.draw(st.integers(0, len(axes))) :]
    weight = b.weight(*axes)
    b.add(b.pick(("Add", "Sub", "Mul", "PRelu", "Max")), [name, weight], shape)


def _where(b: Builder) -> None:
    name, shape = b.value() or ("", ())
    axes = [1 if axis == "n" else axis for axis in shape]
    mask = np.random.default_rng(b.count).random(axes) > 0.5
    other = b.pick([*(n for n, s in b.values.items() if s == shape), b.weight()])
    b.add("Where", [b.constant(mask), name, other], shape)


def _matmul(b: Builder) -> None:
    found = b.value(lambda s: len(s) >= 2 and s[-1] != "n")
    if found:
        name, shape = found
        out = b.pick(LENGTHS)
        weight = b.weight(shape[-1], out, scale=shape[-1] ** -0.5)
        if len(shape) == 2 and b.draw(st.booleans()):
            b.add("Gemm", [name, weight, b.weight(out)], (*shape[:-1], out))
        else:
            b.add("MatMul", [name, weight], (*shape[:-1], out))


def _scores(b: Builder) -> None:
    """A value times its own transpose, as attention does."""
    found = b.value(lambda s: len(s) >= 3 and s[-1] != "n" and s[-2] != "n")
    if found:
        name, shape = found
        perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        flipped = b.node("Transpose", [name], perm=perm)[0]
        b.add("MatMul", [name, flipped], (*shape[:-1], shape[-2]))


def _reshape(b: Builder) -> None:
    found = b.value(lambda s: len(s) >= 2)
    if not found:
        return
    name, shape = found
    axis = b.pick(range(len(shape)))
    length = shape[axis]
    if length != "n" and length > 3 and len(shape) < MAX_RANK and b.draw(st.booleans()):
        factor = b.pick([n for n in (2, 3, 4, 6) if length % n == 0] or [length])
        target: list[Any] = [*shape[:axis], factor, length // factor, *shape[axis + 1 :]]
    elif axis + 1 < len(shape) and "n" not in shape[axis : axis + 2]:
        target = [*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]]
    else:
        return
    if "n" not in target:
        b.add("Reshape", [name, b.ints(*target)], tuple(target))
    elif target[0] == "n" == shape[0] and b.draw(st.booleans()):
        b.add("Reshape", [name, b.ints(0, *target[1:])], tuple(target))
    elif b.draw(st.booleans()):
        b.add("Reshape", [name, b.ints(*(-1 if n == "n" else n for n in target))], tuple(target))
    else:
        place = shape.index("n")
        length_of = b.node("Gather", [b.node("Shape", [name])[0], b.ints(place)], axis=0)[0]
        pieces = [length_of if n == "n" else b.ints(n) for n in target]
        b.add("Reshape", [name, b.node("Concat", pieces, axis=0)[0]], tuple(target))


def _transpose(b: Builder) -> None:
    name, shape = b.value() or ("", ())
    perm = b.draw(st.permutations(range(len(shape))))
    b.add("Transpose", [name], tuple(shape[axis] for axis in perm), perm=list(perm))


def _concat(b: Builder) -> None:
    name, shape = b.value(lambda s: bool(_fixed(s)) and _size(s) * 2 <= MAX_ELEMENTS) or ("", ())
    if name:
        axis = b.pick(_fixed(shape))
        other = b.pick([n for n, s in b.values.items() if s == shape])
        out = (*shape[:axis], shape[axis] * 2, *shape[axis + 1 :])
        b.add("Concat", [name, other], out, axis=axis - len(shape) if b.draw(st.booleans()) else axis)


def _split(b: Builder) -> None:
    found = b.value(lambda s: any(s[axis] % 2 == 0 or s[axis] % 3 == 0 for axis in _fixed(s)))
    if found:
        name, shape = found
        axis = b.pick([a for a in _fixed(shape) if shape[a] % 2 == 0 or shape[a] % 3 == 0])
        parts = b.pick([n for n in (2, 3) if shape[axis] % n == 0])
        size = shape[axis] // parts
        for output in b.node("Split", [name, b.ints(*[size] * parts)], parts, axis=axis):
            b.values[output] = (*shape[:axis], size, *shape[axis + 1 :])


def _slice(b: Builder) -> None:
    found = b.value(lambda s: bool(_fixed(s)))
    if found:
        name, shape = found
        axis = b.pick(_fixed(shape))
        start = b.draw(st.integers(0, shape[axis] - 1))
        end = b.draw(st.integers(start + 1, shape[axis]))
        step = b.pick((1, 1, 2))
        out = (*shape[:axis], len(range(start, end, step)), *shape[axis + 1 :])
        b.add("Slice", [name, b.ints(start), b.ints(end), b.ints(axis), b.ints(step)], out)


def _gather(b: Builder) -> None:
    found = b.value(lambda s: bool(_fixed(s)))
    if found:
        name, shape = found
        axis = b.pick(_fixed(shape))
        indices = b.draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=6))
        b.add(
            "Gather", [name, b.ints(*indices)], (*shape[:axis], len(indices), *shape[axis + 1 :]), axis=axis
        )


def _embedding(b: Builder) -> None:
    table = b.weight(b.pick((6, 12, 24)), b.pick((4, 6, 12)))
    b.add("Gather", [table, "ids"], ("n", 6, b.weights[table].shape[1]), axis=0)


def _softmax(b: Builder) -> None:
    name, shape = b.value(lambda s: len(s) > 0) or ("", ())
    if name:
        axis = b.pick(range(-len(shape), len(shape)))
        b.add(b.pick(("Softmax", "LogSoftmax")), [name], shape, axis=axis)


def _layer_norm(b: Builder) -> None:
    # ONNX Runtime 1.23 does not normalize one element.
    least = 1 if INSTALLED >= (1, 24) else 2
    found = b.value(lambda s: len(s) >= 2 and s[-1] != "n" and s[-1] >= least)
    if found:
        name, shape = found
        inputs = [name, b.weight(shape[-1])] + ([b.weight(shape[-1])] if b.draw(st.booleans()) else [])
        b.add("LayerNormalization", inputs, shape, axis=-1, epsilon=0.1)


def _reduce(b: Builder) -> None:
    found = b.value(lambda s: bool(_fixed(s)))
    if found:
        name, shape = found
        axes = b.draw(st.lists(st.sampled_from(_fixed(shape)), min_size=1, max_size=2, unique=True))
        keep = b.draw(st.booleans())
        op = b.pick(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceL2"))
        out = [1 if axis in axes else n for axis, n in enumerate(shape) if keep or axis not in axes]
        if out:
            if op == "ReduceSum" or b.opset >= 18:
                b.add(op, [name, b.ints(*axes)], tuple(out), keepdims=int(keep))
            else:
                b.add(op, [name], tuple(out), keepdims=int(keep), axes=axes)


def _is_image(shape: Shape) -> bool:
    return 3 <= len(shape) <= 4 and "n" not in shape[1:] and min(shape[2:]) >= 2


def _conv(b: Builder) -> None:
    found = b.value(_is_image)
    if found:
        name, shape = found
        groups = b.pick([n for n in (1, 1, 2, 3, shape[1]) if shape[1] % n == 0])
        out = b.pick((1, 2, 4, 6)) * groups
        space = [3] * (len(shape) - 2)
        if out * _size(shape) // shape[1] > MAX_ELEMENTS:
            return
        inputs = [name, b.weight(out, shape[1] // groups, *space, scale=0.3)]
        if b.draw(st.booleans()):
            inputs.append(b.weight(out))
        b.add("Conv", inputs, (shape[0], out, *shape[2:]), group=groups, pads=[1] * 2 * len(space))


def _pool(b: Builder) -> None:
    found = b.value(_is_image)
    if found:
        name, shape = found
        op = b.pick(("MaxPool", "AveragePool", "GlobalAveragePool", "InstanceNormalization"))
        if op == "GlobalAveragePool":
            b.add(op, [name], (*shape[:2], *[1] * (len(shape) - 2)))
        elif op == "InstanceNormalization":
            b.add(op, [name, b.weight(shape[1]), b.weight(shape[1])], shape, epsilon=0.1)
        else:
            space = [2] * (len(shape) - 2)
            out = tuple((n - 2) // 2 + 1 for n in shape[2:])
            b.add(op, [name], (*shape[:2], *out), kernel_shape=space, strides=space)


def _axes(b: Builder) -> None:
    """Unsqueeze, or Squeeze of an axis of length 1."""
    name, shape = b.value() or ("", ())
    ones = [axis for axis in _fixed(shape) if shape[axis] == 1 and len(shape) > 1]
    if ones and b.draw(st.booleans()):
        axis = b.pick(ones)
        b.add("Squeeze", [name, b.ints(axis)], shape[:axis] + shape[axis + 1 :])
    elif len(shape) < MAX_RANK:
        axis = b.draw(st.integers(0, len(shape)))
        b.add("Unsqueeze", [name, b.ints(axis)], (*shape[:axis], 1, *shape[axis:]))


def _grow(b: Builder) -> None:
    """Pad, Tile or Expand."""
    found = b.value(lambda s: bool(_fixed(s)) and _size(s) * 3 <= MAX_ELEMENTS)
    if not found:
        return
    name, shape = found
    axis = b.pick(_fixed(shape))
    op = b.pick(("Pad", "Tile", "Expand"))
    if op == "Pad":
        before, after = b.draw(st.integers(0, 2)), b.draw(st.integers(0, 2))
        pads = [0] * 2 * len(shape)
        pads[axis], pads[axis + len(shape)] = before, after
        # ONNX Runtime 1.31 takes a Pad into a MaxPool after it, which pads with something else.
        padded = b.node(op, [name, b.ints(*pads)])
        b.add("Neg", padded, (*shape[:axis], shape[axis] + before + after, *shape[axis + 1 :]))
    elif op == "Tile":
        repeats = [1] * len(shape)
        repeats[axis] = 2
        b.add(op, [name, b.ints(*repeats)], (*shape[:axis], shape[axis] * 2, *shape[axis + 1 :]))
    elif shape[axis] == 1:
        target = [1] * len(shape)
        target[axis] = 3
        b.add(op, [name, b.ints(*target)], (*shape[:axis], 3, *shape[axis + 1 :]))


def _quantized(b: Builder) -> None:
    """A product with a weight of 8 bits."""
    found = b.value(lambda s: len(s) >= 2 and s[-1] != "n")
    if found:
        name, shape = found
        out = b.pick(LENGTHS)
        random = np.random.default_rng(b.count)
        bits = b.constant(random.integers(-99, 99, (shape[-1], out), np.int8))
        per_channel = b.draw(st.booleans())
        scale = np.float32(0.01 / shape[-1] ** 0.5)
        inputs = [bits, b.constant(np.full(out, scale) if per_channel else scale)]
        # Directly before a product ONNX Runtime would quantize the other factor too: not the same values.
        weight = b.node("Neg", b.node("DequantizeLinear", inputs, axis=1))[0]
        b.add("MatMul", [name, weight], (*shape[:-1], out))


def _branch(b: Builder) -> None:
    """An If on an input, or on a constant; its branches use outer values and weights of their own."""
    name, shape = b.value(lambda s: len(s) >= 2 and s[-1] != "n") or ("", ())
    if not name:
        return
    condition = b.pick(["flag", b.constant(np.asarray(b.draw(st.booleans())))])
    out = b.pick((4, 12))
    bodies = []
    for number, op in enumerate(("Tanh", "Neg")):
        product, result, weight = (f"{kind}{b.count}" for kind in ("p", "rs"[number], "b"))
        array = np.random.default_rng([b.count, number]).standard_normal((shape[-1], out)).astype(np.float32)
        nodes = [
            helper.make_node("MatMul", [name, weight], [product]),
            helper.make_node(op, [product], [result]),
        ]
        axes = ["n" if axis == "n" else axis for axis in (*shape[:-1], out)]
        info = helper.make_tensor_value_info(result, TensorProto.FLOAT, axes)
        initializer = numpy_helper.from_array(array / shape[-1] ** 0.5, weight)
        bodies.append(helper.make_graph(nodes, f"body{number}", [], [info], [initializer]))
    b.add("If", [condition], (*shape[:-1], out), then_branch=bodies[0], else_branch=bodies[1])


def _loop(b: Builder) -> None:
    """Two turns that each multiply by a weight from outside."""
    name, shape = b.value(lambda s: len(s) >= 2 and s[-1] != "n") or ("", ())
    if not name:
        return
    length, k = shape[-1], b.count
    weight = b.weight(length, length, scale=length**-0.5)
    nodes = [
        helper.make_node("Identity", [f"go{k}"], [f"stay{k}"]),
        helper.make_node("MatMul", [f"in{k}", weight], [f"mid{k}"]),
        helper.make_node("Tanh", [f"mid{k}"], [f"out{k}"]),
    ]
    infos = [
        helper.make_tensor_value_info(f"i{k}", TensorProto.INT64, []),
        helper.make_tensor_value_info(f"go{k}", TensorProto.BOOL, []),
        helper.make_tensor_value_info(f"in{k}", TensorProto.FLOAT, list(shape)),
    ]
    results = [
        helper.make_tensor_value_info(f"stay{k}", TensorProto.BOOL, []),
        helper.make_tensor_value_info(f"out{k}", TensorProto.FLOAT, list(shape)),
    ]
    body = helper.make_graph(nodes, "body", infos, results)
    b.add("Loop", [b.constant(np.asarray(2)), "", name], shape, body=body)


OPERATORS = (
    *(_unary, _binary, _with_weight, _where, _matmul, _matmul, _matmul, _scores, _reshape, _reshape),
    *(_transpose, _concat, _split, _slice, _gather, _embedding, _softmax, _layer_norm, _reduce, _conv),
    *(_pool, _axes, _grow, _quantized, _branch, _loop),
)


@st.composite
def random_graphs(draw: Callable[[Any], Any]) -> RandomGraph:
    """Graphs of 5 to 50 operators over float inputs, indices and a flag, with one to four outputs."""
    opset = draw(st.sampled_from((17, 18, 21)))
    b = Builder(draw, opset)
    shapes: dict[str, Shape] = {
        "x": draw(st.sampled_from((("n", 12), ("n", 6, 12), ("n", 4, 24), (8, 12)))),
        "image": draw(st.sampled_from((("n", 6, 8, 8), ("n", 12, 6)))),
    }
    b.values.update(shapes)
    size = draw(st.integers(5, 50))
    while len(b.nodes) < size:
        draw(st.sampled_from(OPERATORS))(b)
    made = [name for name in b.values if name not in shapes]
    if not made:
        made = [b.add("Relu", ["x"], shapes["x"])]
    outputs = draw(st.lists(st.sampled_from(made), max_size=3, unique=True))
    outputs = list(dict.fromkeys([*outputs, made[-1]]))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(s)) for name, s in shapes.items()]
    infos.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 6]))
    infos.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    graph = helper.make_graph(
        b.nodes,
        "random",
        infos,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(b.values[name])) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in b.weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    random = np.random.default_rng(draw(st.integers(0, 99)))
    feeds: dict[str, Array] = {
        name: random.standard_normal([BATCH if n == "n" else n for n in shape]).astype(np.float32)
        for name, shape in shapes.items()
    }
    feeds["ids"] = random.integers(0, 6, (BATCH, 6))
    feeds["flag"] = np.asarray(draw(st.booleans()))
    return RandomGraph(model, feeds)


def random_choices(
    graph: Sequence[Step],
    world: int,
    random: np.random.Generator,
) -> list[int]:
    """An option for every step whose inputs can be brought to where it wants them: often any, at random."""
    held: dict[Any, list[Placement]] = {}
    choices = []
    for step in graph:
        fits = [
            number
            for number, option in enumerate(step.options)
            if all(
                value is None or _reachable(value, held.get(value, [REPLICATED]), wanted, world)
                for value, wanted in zip(step.inputs, option.inputs, strict=True)
            )
        ]
        choice = int(random.choice(fits))
        choices.append(choice)
        option = step.options[choice]
        for value, wanted in zip(step.inputs, option.inputs, strict=True):
            if value is not None and wanted not in held.setdefault(value, [REPLICATED]):
                held[value].append(wanted)
        held.update({value: [place] for value, place in zip(step.node.outputs, option.outputs, strict=True)})
    return choices


def _reachable(value: Any, held: Sequence[Placement], wanted: Placement, world: int) -> bool:
    if value.is_initializer():
        return wanted != PARTIAL
    if wanted in held:
        return True
    return wanted != PARTIAL and any(reshard_seconds(here, wanted, 1, world) < IMPOSSIBLE for here in held)
