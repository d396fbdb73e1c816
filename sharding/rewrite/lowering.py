"""Fused operators written out as their parts, where no cut of the whole operator would do.

EmbedLayerNormalization of ONNX Runtime looks up and adds embeddings and normalizes the sum. The tables, which
can be most of a model, may be cut along the hidden axis or by vocabulary. But what ranks look up must be
joined after it is summed and before it is normalized, inside the operator. The parts are those that
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sharding.graph.values import initializer, shape_of
from sharding.rewrite.graph_writer import NodeWriter, take_place
from sharding.slices.domains import MICROSOFT

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import ArrayLike, DTypeLike

OLDEST_OPSET = 10
"""The first with a Slice whose ends are computed."""
REDUCE_SUM_AXES_ARE_AN_INPUT = 13
INT32 = 6
"""TensorProto.INT32"""
DEFAULT_EPSILON = 1e-12
IDS, SEGMENTS, WORDS, PLACES, SEGMENT_TABLE, GAMMA, BETA, MASK, POSITIONS = range(9)


def lower(model: ir.Model) -> None:
    """Rewrites the main graph in place; its other values keep their names."""
    version = model.opset_imports.get("", 1)
    if version < OLDEST_OPSET:
        return
    for node in list(model.graph):
        if (node.domain, node.op_type) == (MICROSOFT, "EmbedLayerNormalization"):
            _Embedding(model, node).write(version)


class _Embedding(NodeWriter):
    def input(self, index: int) -> ir.Value | None:
        return self.place.inputs[index] if index < len(self.place.inputs) else None

    def output(self, index: int) -> ir.Value | None:
        """An output that something reads."""
        outputs = self.place.outputs
        value = outputs[index] if index < len(outputs) else None
        used = value is not None and bool(value.name) and (value.uses() or value in set(self.graph.outputs))
        return value if used else None

    def write(self, version: int) -> None:
        needed = [value for i in (IDS, WORDS, PLACES, GAMMA, BETA) if (value := self.input(i)) is not None]
        mask, counts = self.input(MASK), self.output(1)
        epsilon = self.place.attributes.get("epsilon")
        unusual = epsilon is not None and epsilon.is_ref()
        if len(needed) < 5 or unusual or (counts is not None and mask is None):
            return
        ids, words, places, gamma, beta = needed
        total = self.op("Gather", [words, self.counted(ids)])
        total = self.op("Add", [total, self.places(ids, places)])
        table, segments = self.input(SEGMENT_TABLE), self.input(SEGMENTS)
        if table is not None and segments is not None:
            total = self.op("Add", [total, self.op("Gather", [table, self.counted(segments)])])
        small = DEFAULT_EPSILON if epsilon is None else epsilon.as_float()
        normalized = self.op("LayerNormalization", [total, gamma, beta], axis=-1, epsilon=small)
        results = {0: normalized, 2: total}
        if counts is not None and mask is not None:
            results[1] = self.count(mask, version)
        for index, value in results.items():
            old = self.output(index)
            if old is not None:
                take_place(self.graph, old, value)
        self.graph.remove(self.place, safe=True)

    def places(self, ids: ir.Value, table: ir.Value) -> ir.Value:
        """The embeddings of positions: those that are given, or the first ones of the table."""
        positions = self.input(POSITIONS)
        if positions is not None:
            return self.op("Gather", [table, self.counted(positions)])
        shape = self.op("Shape", [ids])
        one, two, zero = (self.constant([number]) for number in (1, 2, 0))
        length = self.op("Slice", [shape, one, two, zero])
        found = self.op("Slice", [table, zero, length, zero])
        columns = shape_of(table)
        if columns is not None and len(columns) == 2:
            # Of a slice whose end is computed, inference would know no axis at all.
            found.type, found.shape = table.type, self.ir.Shape([None, columns[1]])
        return found

    def counted(self, indices: ir.Value) -> ir.Value:
        """Indices of which Gather refuses the negative ones too, as the whole operator does."""
        negative = self.op("Less", [indices, self.constant(0, np.int32)])
        return self.op("Where", [negative, self.constant(np.iinfo(np.int32).min, np.int32), indices])

    def count(self, mask: ir.Value, version: int) -> ir.Value:
        """How many ones each row of the mask has."""
        ones = self.op("Cast", [self.op("Equal", [mask, self.constant(1, np.int32)])], to=INT32)
        if version >= REDUCE_SUM_AXES_ARE_AN_INPUT:
            return self.op("ReduceSum", [ones, self.constant([1])], keepdims=0)
        return self.op("ReduceSum", [ones], axes=[1], keepdims=0)

    def constant(self, value: ArrayLike, kind: DTypeLike = np.int64) -> ir.Value:
        tensor = self.ir.tensor(np.asarray(value, dtype=kind))
        return initializer(self.names.fresh(f"{self.base}/part_{self.written}"), tensor, self.graph)
