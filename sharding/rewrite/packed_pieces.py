"""Writes a product for each piece that the result of one product is cut into (see `packed_products`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sharding.graph.values import initializer, shape_of
from sharding.onnx_files.tensors import locate
from sharding.rewrite.graph_writer import NodeWriter, take_place
from sharding.rules.base import Dim

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.common.arrays import Array


@dataclass
class Weight:
    """An input of the product, or of an addition to it, that has its columns along ``axis``."""

    index: int
    value: ir.Value
    axis: int
    turn: ir.Node | None = None
    """A node between the weight and its use: it is transposed, or dequantized."""
    beside: tuple[Weight, ...] = ()
    """Further inputs of that node that have the columns: scales and zero points."""


@dataclass
class Product:
    node: ir.Node
    columns: int
    rows: int
    weights: list[Weight]


@dataclass
class Piece:
    """Columns of the product's result, and what takes their place."""

    start: int
    length: int
    write: Callable[[Pieces, ir.Value], None]


@dataclass
class Chain:
    """From a product to where it is cut."""

    product: Product
    end: ir.Value
    links: list[tuple[ir.Node, Weight | None]] = field(default_factory=list)
    """Nodes between, with the bias that each adds."""


class Pieces(NodeWriter):
    """Writes products of pieces into a graph."""

    def __init__(self, model: ir.Model, path: Path) -> None:
        super().__init__(model)
        self.path = path
        self.parts: dict[tuple[ir.Value, int, int], ir.Value] = {}

    def replace(self, chain: Chain, cuts: list[Piece]) -> None:
        """Writes a product for each piece in place of the whole."""
        product = chain.product
        self.at(product.node)
        for piece in cuts:
            value = self._product(product, piece)
            for node, bias in chain.links:
                value = self._link(node, bias, piece, value)
            piece.write(self, value)
        weights = [*product.weights, *(bias for _, bias in chain.links if bias is not None)]
        weights += [other for weight in product.weights for other in weight.beside]
        self._tidy([weight.value for weight in weights])

    def _product(self, product: Product, piece: Piece) -> ir.Value:
        node, inputs = product.node, list(product.node.inputs)
        for weight in product.weights:
            part = self._part(weight, piece, product.columns)
            if weight.turn is not None:
                part = self._turned(weight, weight.turn, part, piece, product.columns)
            inputs[weight.index] = part
        more = {"N": piece.length} if node.op_type == "MatMulNBits" else {}
        return self._like(node, inputs, piece.length, **more)

    def _turned(self, weight: Weight, turn: ir.Node, part: ir.Value, piece: Piece, columns: Dim) -> ir.Value:
        shape = list(shape_of(part) or ())
        if turn.op_type == "Transpose":
            return self.typed(self.op("Transpose", [part], perm=[1, 0]), shape[::-1], part.type)
        inputs = [part, *turn.inputs[1:]]
        for other in weight.beside:
            inputs[other.index] = self._part(other, piece, columns)
        return self._again(turn, inputs, shape)

    def _link(self, node: ir.Node, bias: Weight | None, piece: Piece, value: ir.Value) -> ir.Value:
        inputs = [value, *node.inputs[1:]]
        if bias is not None:
            inputs[1] = self._part(bias, piece, (shape_of(bias.value) or ())[bias.axis])
        return self._like(node, inputs, piece.length)

    def _like(self, node: ir.Node, inputs: list[ir.Value | None], columns: int, **more: int) -> ir.Value:
        """The same node for fewer columns."""
        return self._again(node, inputs, [*(shape_of(node.outputs[0]) or ())[:-1], columns], **more)

    def _again(self, node: ir.Node, inputs: list[ir.Value | None], shape: list[Dim], **more: int) -> ir.Value:
        """The same node with other inputs, which gives this shape."""
        kept = {name: item for name, item in node.attributes.items() if name not in more}
        made = self.op(node.op_type, inputs, node.domain, **more)
        producer = made.producer()
        assert producer is not None
        for item in kept.values():
            producer.attributes.add(item)
        return self.typed(made, shape, node.outputs[0].type)

    def _part(self, weight: Weight, piece: Piece, columns: Dim) -> ir.Value:
        """Some columns of a weight; read from its file whenever a part of them is written."""
        key = (weight.value, piece.start, piece.length)
        if key not in self.parts:
            self.parts[key] = self._cut_out(weight, piece, columns)
        return self.parts[key]

    def _cut_out(self, weight: Weight, piece: Piece, columns: Dim) -> ir.Value:
        tensor = weight.value.const_value
        assert tensor is not None
        located = locate(weight.value.name or "", tensor, self.path)
        assert isinstance(columns, int)
        scale = located.shape[weight.axis] // columns  # scales of several blocks for each column
        index: list[slice] = [slice(None)] * len(located.shape)
        index[weight.axis] = slice(piece.start * scale, (piece.start + piece.length) * scale)
        shape = list(located.shape)
        shape[weight.axis] = piece.length * scale
        name = self.names.fresh(f"{weight.value.name}/columns_{piece.start}")

        def columns_of() -> ir.TensorProtocol:
            cut = np.ascontiguousarray(located.array()[tuple(index)])
            made: ir.TensorProtocol = self.ir.tensor(cut, dtype=tensor.dtype)
            return made

        part = self.ir.LazyTensor(columns_of, dtype=tensor.dtype, shape=self.ir.Shape(shape), name=name)
        return initializer(name, part, self.graph)

    def constant(self, value: Array) -> ir.Value:
        """A small constant."""
        return initializer(self.names.fresh(f"{self.base}/shape"), self.ir.tensor(value), self.graph)

    def typed(self, value: ir.Value, shape: list[Dim], kind: ir.TypeProtocol | None) -> ir.Value:
        """A value that was made, with this type and shape."""
        value.type, value.shape = kind, self.ir.Shape(shape)
        return value

    def rename(self, old: ir.Value, new: ir.Value) -> None:
        """The new value takes the old one's name and place, also among the graph's outputs."""
        take_place(self.graph, old, new, self.names.fresh(f"{old.name}/packed"))

    def _tidy(self, weights: list[ir.Value]) -> None:
        """Removes the whole product, what nothing reads any more, and its weights."""
        waiting, outputs = [self.place], set(self.graph.outputs)
        found: dict[ir.Node, None] = {}
        while waiting:
            node = waiting.pop()
            if node not in found:
                found[node] = None
                waiting += [user for value in node.outputs for user, _ in value.uses()]
        turns = [node for value in weights for node, _ in value.uses()]
        for node in reversed([item for item in self.graph if item in found or item in turns]):
            if not any(value.uses() or value in outputs for value in node.outputs):
                self.graph.remove(node, safe=True)
        for value in weights:
            if not value.uses():
                del self.graph.initializers[value.name or ""]
