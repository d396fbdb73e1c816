"""A model to try things with, made without torch: a text encoder of BERT's architecture, in plain ONNX.

Its weights are drawn from a fixed seed, so that it is the same everywhere and its answers mean nothing; how
it is cut, what ranks exchange and how fast they are is as for a trained one of its size.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sharding.onnx_files.nodes import make_node

if TYPE_CHECKING:
    import onnx
    from numpy.typing import DTypeLike

    from sharding.common.arrays import Array

VOCABULARY, POSITIONS, HIDDEN, HEADS, LAYERS, SEED = 4096, 256, 256, 4, 4, 7
MODEL, INPUTS = "model.onnx", "inputs.npz"
OPSET, IR_VERSION = 18, 9
_EPSILON, _FAR = 1e-12, -1e9


class _Graph:
    """Nodes and weights of a model, in order."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(SEED)

    def node(self, op: str, *inputs: str, name: str, **attributes: object) -> str:
        """Adds a node; returns its output, which has its name."""
        self.nodes.append(make_node(op, inputs, [name], attributes, name=name))
        return name

    def constant(self, name: str, value: object, dtype: DTypeLike = np.float32) -> str:
        """Adds a weight; returns its name."""
        import onnx

        self.weights.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """Adds a weight of random values of BERT's spread."""
        return self.constant(name, 0.02 * self._random.standard_normal(shape, np.float32))

    def linear(self, name: str, source: str, width: int, out: int) -> str:
        """A dense layer."""
        product = self.node(
            "MatMul", source, self.weight(f"{name}.weight", width, out), name=f"{name}/MatMul"
        )
        bias = self.constant(f"{name}.bias", np.zeros(out))
        return self.node("Add", product, bias, name=f"{name}/Add")

    def normed(self, name: str, source: str) -> str:
        """A layer normalization."""
        scale = self.constant(f"{name}.weight", np.ones(HIDDEN))
        shift = self.constant(f"{name}.bias", np.zeros(HIDDEN))
        return self.node(
            "LayerNormalization", source, scale, shift, name=f"{name}/LayerNormalization", epsilon=_EPSILON
        )


def build() -> onnx.ModelProto:
    """The model: inputs ``input_ids`` and ``attention_mask`` of int64 [batch, sequence]; outputs
    ``token_embeddings`` [batch, sequence, 256] and ``sentence_embedding`` [batch, 256], of length one."""
    import onnx

    g = _Graph()
    hidden, bias = _embedded(g)
    for number in range(LAYERS):
        hidden = _layer(g, f"layer.{number}", hidden, bias)
    g.node("Identity", hidden, name="token_embeddings")
    _pooled(g)
    ids = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [
        onnx.helper.make_tensor_value_info("sentence_embedding", onnx.TensorProto.FLOAT, ["batch", HIDDEN]),
        onnx.helper.make_tensor_value_info(
            "token_embeddings", onnx.TensorProto.FLOAT, ["batch", "sequence", HIDDEN]
        ),
    ]
    graph = onnx.helper.make_graph(g.nodes, "demo_encoder", ids, outputs, g.weights)
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    return onnx.helper.make_model(
        graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="shardrun demo"
    )


def _embedded(g: _Graph) -> tuple[str, str]:
    """Embedded tokens at their positions, and what masked tokens add to attention's scores."""
    words = g.node(
        "Gather", g.weight("embeddings.word", VOCABULARY, HIDDEN), "input_ids", name="embeddings/word"
    )
    shape = g.node("Shape", "input_ids", name="embeddings/Shape", start=1, end=2)
    length = g.node("Squeeze", shape, name="embeddings/length")
    first, step = g.constant("first", 0, np.int64), g.constant("step", 1, np.int64)
    numbers = g.node("Range", first, length, step, name="embeddings/Range")
    table = g.weight("embeddings.position", POSITIONS, HIDDEN)
    places = g.node("Gather", table, numbers, name="embeddings/position")
    both = g.node("Add", words, places, name="embeddings/Add")
    mask = g.node("Cast", "attention_mask", name="mask/Cast", to=1)
    axes = g.constant("mask.axes", [1, 2], np.int64)
    wide = g.node("Unsqueeze", mask, axes, name="mask/Unsqueeze")
    away = g.node("Sub", g.constant("one", 1.0), wide, name="mask/Sub")
    return g.normed("embeddings.norm", both), g.node("Mul", away, g.constant("far", _FAR), name="mask/Mul")


def _layer(g: _Graph, name: str, hidden: str, bias: str) -> str:
    size = HIDDEN // HEADS
    heads = g.constant(f"{name}.heads", [0, 0, HEADS, size], np.int64)
    parts = []
    for part, order in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
        flat = g.linear(f"{name}.{part}", hidden, HIDDEN, HIDDEN)
        shaped = g.node("Reshape", flat, heads, name=f"{name}.{part}/Reshape")
        parts.append(g.node("Transpose", shaped, name=f"{name}.{part}/Transpose", perm=order))
    query, key, value = parts
    product = g.node("MatMul", query, key, name=f"{name}.attention/scores")
    scaled = g.node("Div", product, g.constant(f"{name}.scale", size**0.5), name=f"{name}.attention/Div")
    masked = g.node("Add", scaled, bias, name=f"{name}.attention/Add")
    weights = g.node("Softmax", masked, name=f"{name}.attention/Softmax", axis=-1)
    mixed = g.node("MatMul", weights, value, name=f"{name}.attention/MatMul")
    turned = g.node("Transpose", mixed, name=f"{name}.attention/Transpose", perm=(0, 2, 1, 3))
    joined = g.node(
        "Reshape",
        turned,
        g.constant(f"{name}.joined", [0, 0, HIDDEN], np.int64),
        name=f"{name}.attention/Reshape",
    )
    attended = g.linear(f"{name}.output", joined, HIDDEN, HIDDEN)
    first = g.normed(f"{name}.norm1", g.node("Add", hidden, attended, name=f"{name}.norm1/Add"))
    up = g.linear(f"{name}.up", first, HIDDEN, 4 * HIDDEN)
    down = g.linear(f"{name}.down", _gelu(g, f"{name}.gelu", up), 4 * HIDDEN, HIDDEN)
    return g.normed(f"{name}.norm2", g.node("Add", first, down, name=f"{name}.norm2/Add"))


def _gelu(g: _Graph, name: str, source: str) -> str:
    scaled = g.node("Div", source, g.constant(f"{name}.root", 2**0.5), name=f"{name}/Div")
    raised = g.node("Add", g.node("Erf", scaled, name=f"{name}/Erf"), "one", name=f"{name}/Add")
    product = g.node("Mul", source, raised, name=f"{name}/Mul")
    return g.node("Mul", product, g.constant(f"{name}.half", 0.5), name=f"{name}/half")


def _pooled(g: _Graph) -> None:
    """The mean over tokens that are not masked, scaled to length one."""
    last, middle = g.constant("last", [-1], np.int64), g.constant("middle", [1], np.int64)
    wide = g.node("Unsqueeze", "mask/Cast", last, name="pool/Unsqueeze")
    kept = g.node("Mul", "token_embeddings", wide, name="pool/Mul")
    total = g.node("ReduceSum", kept, middle, name="pool/sum", keepdims=0)
    count = g.node("ReduceSum", wide, middle, name="pool/count", keepdims=0)
    mean = g.node("Div", total, count, name="pool/Div")
    length = g.node("ReduceL2", mean, last, name="pool/ReduceL2", keepdims=1)
    g.node("Div", mean, length, name="sentence_embedding")


def inputs() -> dict[str, Array]:
    """Two sentences of token numbers, the second one shorter."""
    ids = np.random.default_rng(SEED).integers(1, VOCABULARY, (2, 12))
    mask = np.ones_like(ids)
    ids[1, 8:] = mask[1, 8:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def write_demo(folder: Path) -> tuple[Path, Path]:
    """Writes the model and inputs for it into a folder, which is made; returns the two files.

    Raises `ConfigError` where other files have their names, or nothing can be written there.
    """
    from launcher.common.files import write_file
    from launcher.errors import ConfigError
    from launcher.job.inputs import save_outputs
    from sharding.common.storage import probe, why_unwritable

    model, arrays = folder / MODEL, folder / INPUTS
    content = build().SerializeToString(deterministic=True)
    try:
        probe(model.absolute())
        if model.exists() and not (model.is_file() and model.read_bytes() == content):
            raise ConfigError(f"{model} is there already, and is not the demo's: choose another folder")
        if arrays.exists() and not model.exists():
            raise ConfigError(f"{arrays} is there already, and is not the demo's: choose another folder")
        made = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigError(f"{folder}: cannot write the demo: {why_unwritable(problem)}") from None
    try:
        if not model.exists():
            write_file(model, content, "model")
        save_outputs(arrays, inputs())
    except BaseException:
        with contextlib.suppress(OSError):  # it holds something
            if made:
                folder.rmdir()
        raise
    return model, arrays
