"""Small models with state, in the forms that exporters give them, and their plain ONNX Runtime answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.sharding import graphs

Array = np.ndarray[Any, Any]
LAYERS, HEADS, GROUPS, SIZE, VOCABULARY = 2, 4, 2, 16, 40
HIDDEN = HEADS * SIZE


class _Graph:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, scale: float = 0.15) -> str:
        name = f"w{len(self.weights)}"
        values = self.random.standard_normal(shape) * scale
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def add(self, op: str, *inputs: str, outputs: Sequence[str] = (), domain: str = "", **more: Any) -> str:
        names = list(outputs) or [f"v{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op, inputs, names, f"n{len(self.nodes)}", domain=domain, **more))
        return names[0]

    def save(self, path: Path, inputs: list[Any], outputs: list[Any], ir: int = 10) -> None:
        graph = helper.make_graph(self.nodes, "state", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=ir), path)

    def save_decoder(self, path: Path, *more: str) -> None:
        """With caches, ids, a mask, and whole numbers that go with the ids."""
        ids = [_value(name, ["batch_size", "length"], TensorProto.INT64) for name in ("input_ids", *more)]
        mask = _value("attention_mask", ["batch_size", "all"], TensorProto.INT64)
        past, made = _caches()
        logits = _value("logits", ["batch_size", "length", VOCABULARY])
        self.save(path, [ids[0], mask, *ids[1:], *past], [logits, *made])


def _value(name: str, shape: Sequence[Any], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _caches() -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    names = [(layer, what) for layer in range(LAYERS) for what in ("key", "value")]
    past = [_value(f"past_key_values.{n}.{w}", ["batch_size", GROUPS, "past", SIZE]) for n, w in names]
    return past, [_value(f"present.{n}.{w}", ["batch_size", GROUPS, "total", SIZE]) for n, w in names]


def buffered(path: Path) -> None:
    """A decoder as ONNX Runtime GenAI's builder writes it: one operator has attention and its caches."""
    g = _Graph(3)
    total = g.add("Cast", g.add("Gather", g.add("Shape", "attention_mask"), g.constant(1)), to=6)
    count = g.add("ReduceSum", "attention_mask", g.constant([1]))
    lengths = g.add("Cast", g.add("Sub", count, g.constant([1])), to=6)
    angles = np.outer(np.arange(256), 1 / 100 ** (np.arange(SIZE // 2) / SIZE))
    cos, sin = (g.constant(wave(angles), np.float32) for wave in (np.cos, np.sin))
    x = g.add("Gather", g.weight(VOCABULARY, HIDDEN, scale=1), "input_ids")
    for layer in range(LAYERS):
        packed = g.add("MatMul", x, g.weight(HIDDEN, HIDDEN + 2 * GROUPS * SIZE))
        past = [f"past_key_values.{layer}.{what}" for what in ("key", "value")]
        made = [f"present.{layer}.{what}" for what in ("key", "value")]
        attended = g.add(
            "GroupQueryAttention", packed, "", "", *past, lengths, total, cos, sin,
            outputs=[f"a{layer}", *made], domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS,
            do_rotary=1,
        )  # fmt: skip
        x = g.add("Add", x, g.add("MatMul", attended, g.weight(HIDDEN, HIDDEN)))
        inner = g.add("Tanh", g.add("MatMul", x, g.weight(HIDDEN, 2 * HIDDEN)))
        x = g.add("Add", x, g.add("MatMul", inner, g.weight(2 * HIDDEN, HIDDEN)))
    g.add("MatMul", x, g.weight(HIDDEN, VOCABULARY), outputs=["logits"])
    g.save_decoder(path)


def joined(path: Path) -> None:
    """A decoder as torch.onnx writes it: caches grow by Concat, masks and positions are inputs."""
    g = _Graph(4)
    x = g.add("Gather", g.weight(VOCABULARY, HIDDEN, scale=1), "input_ids")
    x = g.add("Add", x, g.add("Gather", g.weight(256, HIDDEN, scale=1), "position_ids"))
    keys = g.add("Unsqueeze", g.add("Cast", "attention_mask", to=1), g.constant([1, 2]))
    reach, count = (
        g.add("Gather", g.add("Shape", name), g.constant(1)) for name in ("attention_mask", "input_ids")
    )
    line = g.add("Range", g.constant(0), reach, g.constant(1))
    own = g.add("Range", g.add("Sub", reach, count), reach, g.constant(1))
    later = g.add("Greater", line, g.add("Unsqueeze", own, g.constant([1])))
    lowest = g.constant(-1e4, np.float32)
    closed = g.add("Mul", g.add("Sub", g.constant(1, np.float32), keys), lowest)
    mask = g.add("Add", closed, g.add("Mul", g.add("Cast", later, to=1), lowest))

    def heads(value: str, count: int) -> str:
        return g.add(
            "Transpose", g.add("Reshape", value, g.constant([0, -1, count, SIZE])), perm=[0, 2, 1, 3]
        )

    for layer in range(LAYERS):
        query = heads(g.add("MatMul", x, g.weight(HIDDEN, HIDDEN)), HEADS)
        held = []
        for what in ("key", "value"):
            new = heads(g.add("MatMul", x, g.weight(HIDDEN, GROUPS * SIZE)), GROUPS)
            name = f"present.{layer}.{what}"
            g.add("Concat", f"past_key_values.{layer}.{what}", new, outputs=[name], axis=2)
            wide = g.add("Unsqueeze", name, g.constant([2]))
            wide = g.add("Tile", wide, g.constant([1, 1, HEADS // GROUPS, 1, 1]))
            held.append(g.add("Reshape", wide, g.constant([0, HEADS, -1, SIZE])))
        scores = g.add("MatMul", query, g.add("Transpose", held[0], perm=[0, 1, 3, 2]))
        scores = g.add("Mul", scores, g.constant(SIZE**-0.5, np.float32))
        weights = g.add("Softmax", g.add("Add", scores, mask), axis=-1)
        seen = g.add("Transpose", g.add("MatMul", weights, held[1]), perm=[0, 2, 1, 3])
        seen = g.add("Reshape", seen, g.constant([0, -1, HIDDEN]))
        x = g.add("Add", x, g.add("MatMul", seen, g.weight(HIDDEN, HIDDEN)))
        inner = g.add("Relu", g.add("MatMul", x, g.weight(HIDDEN, 2 * HIDDEN)))
        x = g.add("Add", x, g.add("MatMul", inner, g.weight(2 * HIDDEN, HIDDEN)))
    g.add("MatMul", x, g.weight(HIDDEN, VOCABULARY), outputs=["logits"])
    g.save_decoder(path, "position_ids")


def streaming(path: Path) -> None:
    """A streaming detector of speech: a frame and a state in, a probability and the next state out."""
    g = _Graph(5)
    steps = g.add("Unsqueeze", g.add("MatMul", "input", g.weight(16, 24)), g.constant([0]))
    hidden, cell = (g.add("Gather", "state", g.constant([n]), axis=0) for n in range(2))
    g.add(
        "LSTM", steps, g.weight(1, 4 * 24, 24), g.weight(1, 4 * 24, 24), g.weight(1, 8 * 24), "", hidden,
        cell,
        outputs=["y", "yh", "yc"], hidden_size=24,
    )  # fmt: skip
    g.add("Concat", "yh", "yc", outputs=["stateN"], axis=0)
    last = g.add("Squeeze", "yh", g.constant([0]))
    g.add("Sigmoid", g.add("MatMul", last, g.weight(24, 1)), outputs=["output"])
    inputs = [_value("input", ["batch", 16]), _value("state", [2, "batch", 24])]
    g.save(path, inputs, [_value("output", ["batch", 1]), _value("stateN", [2, "batch", 24])])


FORMS: dict[str, Callable[[Path], None]] = {"buffered": buffered, "joined": joined, "streaming": streaming}


class Plain:
    """Plain ONNX Runtime on the whole model, its state carried from step to step by hand."""

    def __init__(self, path: Path, batch: int = 1) -> None:
        self.session = graphs.session(path)
        self.names = [value.name for value in self.session.get_inputs()]
        made = {name.replace("past_key_values", "present"): name for name in self.names if "past" in name}
        self.pairs = made or {"stateN": "state"}
        shape = (batch, GROUPS, 0, SIZE) if made else (2, batch, 24)
        self.state = {name: np.zeros(shape, np.float32) for name in self.pairs.values()}
        self.length = 0

    def step(self, array: Array) -> Array:
        """The first output for the next ids, or the next frame."""
        feeds: dict[str, Array] = {self.names[0]: array, **self.state}
        if "attention_mask" in self.names:
            batch, count = array.shape
            feeds["attention_mask"] = np.ones((batch, self.length + count), np.int64)
            if "position_ids" in self.names:
                line = np.arange(self.length, self.length + count)
                feeds["position_ids"] = np.broadcast_to(line, (batch, count)).astype(np.int64)
            self.length += count
        outputs = [value.name for value in self.session.get_outputs()]
        found = dict(zip(outputs, self.session.run(None, feeds), strict=True))
        self.state = {name: found[output] for output, name in self.pairs.items()}
        return found[outputs[0]]


def steps(form: str, counts: Sequence[int], batch: int = 1, seed: int = 0) -> list[Array]:
    """What a sequence is fed, step by step: so many ids, or a frame each."""
    random = np.random.default_rng(seed)
    if form == "streaming":
        return [random.standard_normal((batch, 16)).astype(np.float32) for _ in counts]
    return [random.integers(0, VOCABULARY, (batch, count)) for count in counts]
