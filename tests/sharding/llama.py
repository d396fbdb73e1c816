"""Llama-like models as torch.onnx writes them: grouped key/value heads, rotary positions, lengths open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.sharding.graphs import array


@dataclass(frozen=True)
class Llama:
    """The sizes; hidden size is ``heads * size``."""

    layers: int = 2
    heads: int = 8
    kv_heads: int = 2
    size: int = 8
    inner: int = 96
    words: int = 128
    cache: bool = False
    """Whether each layer's keys and values so far are inputs, and those so far and new ones outputs."""

    def save(self, path: Path) -> Path:
        """Writes the model; its inputs are ``ids`` [batch, seq] and, with a cache, ``past_key_0``, ..."""
        onnx.save(_Writer(self).model(), path)
        return path

    def feeds(self, batch: int = 2, length: int = 5, past: int = 3) -> dict[str, np.ndarray[Any, Any]]:
        """Inputs of a request."""
        feeds: dict[str, np.ndarray[Any, Any]] = {
            "ids": np.random.default_rng(1).integers(0, self.words, (batch, length))
        }
        for layer in range(self.layers if self.cache else 0):
            for kind in ("key", "value"):
                feeds[f"past_{kind}_{layer}"] = array(batch, self.kv_heads, past, self.size, seed=layer)
        return feeds


class _Writer:
    def __init__(self, sizes: Llama) -> None:
        self.sizes = sizes
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"])]
        self.outputs: list[onnx.ValueInfoProto] = []

    def op(self, op_type: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        output = name or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def weight(self, name: str, *shape: int) -> str:
        scale = np.float32(1 / np.sqrt(shape[0]))
        self.weights.append(numpy_helper.from_array(array(*shape, seed=len(self.weights)) * scale, name))
        return name

    def constant(self, *values: int | float) -> str:
        data = np.asarray(values, np.int64 if isinstance(values[0], int) else np.float32)
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(data, name))
        return name

    def model(self) -> onnx.ModelProto:
        sizes = self.sizes
        hidden = sizes.heads * sizes.size
        x = self.op("Gather", self.weight("embedding", sizes.words, hidden), "ids")
        shape = self.op("Shape", "ids")
        self.batch = self.op("Slice", shape, self.constant(0), self.constant(1))
        self.length = self.op("Slice", shape, self.constant(1), self.constant(2))
        end = self.op("Squeeze", self.length)
        self.weights.append(numpy_helper.from_array(np.asarray(0, np.int64), "zero"))
        self.weights.append(numpy_helper.from_array(np.asarray(1, np.int64), "one"))
        places = self.op("Cast", self.op("Range", "zero", end, "one"), to=TensorProto.FLOAT)
        rates = self.constant(*(float(10 ** (-i / 4)) for i in range(sizes.size // 2)))
        angles = self.op("Mul", self.op("Unsqueeze", places, self.constant(1)), rates)
        angles = self.op("Concat", angles, angles, axis=-1)
        self.cos, self.sin = self.op("Cos", angles), self.op("Sin", angles)
        for layer in range(sizes.layers):
            x = self.op("Add", x, self.attention(self.norm(x, f"norm1_{layer}"), layer))
            x = self.op("Add", x, self.mlp(self.norm(x, f"norm2_{layer}"), layer))
        x = self.norm(x, "norm")
        self.op("MatMul", x, self.weight("head", hidden, sizes.words), name="logits")
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "seq", sizes.words])
        graph = helper.make_graph(self.nodes, "llama", self.inputs, [logits, *self.outputs], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def norm(self, x: str, name: str) -> str:
        square = self.op("Pow", x, self.constant(2.0))
        mean = self.op("ReduceMean", square, self.constant(-1), keepdims=1)
        root = self.op("Reciprocal", self.op("Sqrt", self.op("Add", mean, self.constant(1e-6))))
        hidden = self.sizes.heads * self.sizes.size
        return self.op("Mul", self.weight(name, hidden), self.op("Mul", x, root))

    def mlp(self, x: str, layer: int) -> str:
        hidden, inner = self.sizes.heads * self.sizes.size, self.sizes.inner
        gate = self.op("MatMul", x, self.weight(f"gate_{layer}", hidden, inner))
        up = self.op("MatMul", x, self.weight(f"up_{layer}", hidden, inner))
        gated = self.op("Mul", self.op("Mul", gate, self.op("Sigmoid", gate)), up)
        return self.op("MatMul", gated, self.weight(f"down_{layer}", inner, hidden))

    def heads(self, x: str, name: str, count: int) -> str:
        """[batch, count, length, size]"""
        size, hidden = self.sizes.size, self.sizes.heads * self.sizes.size
        product = self.op("MatMul", x, self.weight(name, hidden, count * size))
        target = self.op("Concat", self.batch, self.length, self.constant(-1), self.constant(size), axis=0)
        return self.op("Transpose", self.op("Reshape", product, target), perm=[0, 2, 1, 3])

    def rotated(self, x: str) -> str:
        half = self.sizes.size // 2
        low = self.op("Slice", x, self.constant(0), self.constant(half), self.constant(3))
        high = self.op("Slice", x, self.constant(half), self.constant(2 * half), self.constant(3))
        turned = self.op("Concat", self.op("Neg", high), low, axis=-1)
        return self.op("Add", self.op("Mul", x, self.cos), self.op("Mul", turned, self.sin))

    def cached(self, x: str, kind: str, layer: int) -> str:
        if not self.sizes.cache:
            return x
        past, present = f"past_{kind}_{layer}", f"present_{kind}_{layer}"
        for name, length, infos in ((past, "past", self.inputs), (present, "all", self.outputs)):
            shape: list[int | str | None] = ["batch", self.sizes.kv_heads, length, self.sizes.size]
            infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return self.op("Concat", past, x, axis=2, name=present)

    def repeated(self, x: str) -> str:
        """Every key/value head once for each of its query heads."""
        sizes = self.sizes
        times = sizes.heads // sizes.kv_heads
        wide = self.op("Unsqueeze", x, self.constant(2))
        wide = self.op("Expand", wide, self.constant(1, 1, times, 1, 1))
        return self.op("Reshape", wide, self.constant(0, sizes.heads, -1, sizes.size))

    def transposed(self, x: str) -> str:
        """The last two axes exchanged, in the way of torch's exporter."""
        shape = self.op("Shape", x)
        length = self.op("Slice", shape, self.constant(-2), self.constant(-1))
        before = self.op("Slice", shape, self.constant(-(2**63)), self.constant(-2))
        size = self.constant(self.sizes.size)
        flat = self.op("Reshape", x, self.op("Concat", self.constant(-1), length, size, axis=0))
        turned = self.op("Transpose", flat, perm=[0, 2, 1])
        return self.op("Reshape", turned, self.op("Concat", before, size, length, axis=0))

    def attention(self, x: str, layer: int) -> str:
        sizes = self.sizes
        query = self.rotated(self.heads(x, f"q_{layer}", sizes.heads))
        key = self.cached(self.rotated(self.heads(x, f"k_{layer}", sizes.kv_heads)), "key", layer)
        value = self.cached(self.heads(x, f"v_{layer}", sizes.kv_heads), "value", layer)
        key = self.transposed(self.repeated(key))
        scores = self.op("Softmax", self.op("MatMul", query, key), axis=-1)
        mixed = self.op("MatMul", scores, self.repeated(value))
        hidden = sizes.heads * sizes.size
        target = self.op("Concat", self.batch, self.length, self.constant(-1), axis=0)
        joined = self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), target)
        return self.op("MatMul", joined, self.weight(f"o_{layer}", hidden, hidden))


def sized(**sizes: Any) -> Llama:
    """A small model with other sizes."""
    return replace(Llama(), **sizes)
