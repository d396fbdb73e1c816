"""Writes small MindIR files: programs that no exporter was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sharding.importers.mindir.schema import messages

DTYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13,
}  # fmt: skip
SCALAR, FLOAT, INT64, STRING, BOOL, TENSORS, TUPLE, UMONAD = 39, 1, 7, 8, 9, 19, 20, 23

Type = tuple[str, Sequence[int]]


class File:
    """A MindIR file of version 3 under construction; the first graph is the main one."""

    def __init__(self, version: int = 3) -> None:
        self.model = messages()["Model"]()
        self.model.ir_version, self.model.producer_name, self.model.model_version = (
            "1.1",
            "MindSpore",
            "2.10.0",
        )
        self.model.little_endian, self.model.mind_ir_version = True, version
        self.graphs: list[Graph] = []
        self.count = 0

    def graph(self, name: str, *inputs: tuple[str, str, Sequence[int]]) -> Graph:
        message = self.model.functions.add() if self.graphs else self.model.graph
        message.name = name
        graph = Graph(self, message)
        for local, dtype, dims in inputs:
            graph.input(local, dtype, dims)
        self.graphs.append(graph)
        return graph

    def fresh(self) -> str:
        self.count += 1
        return str(self.count)

    def save(self, path: Path) -> Path:
        path.write_bytes(self.model.SerializeToString())
        return path


class Graph:
    """One graph; what its methods return are names of values."""

    def __init__(self, file: File, message: Any) -> None:
        self.file, self.message, self.name = file, message, message.name

    def __getitem__(self, local: str) -> str:
        return f"{self.name}:{local}"

    def input(self, local: str, dtype: str, dims: Sequence[int]) -> str:
        value = self.message.input.add(name=self[local])
        if dtype == "monad":
            value.denotation = "UMonadType"
        else:
            value.tensor.add(data_type=DTYPES[dtype], dims=list(dims))
        return self[local]

    def weight(self, local: str, array: np.ndarray[Any, Any]) -> str:
        self.message.parameter.add(
            name=self[local], dims=array.shape, data_type=DTYPES[array.dtype.name], raw_data=array.tobytes()
        )
        return self[local]

    def const(self, value: Any) -> str:
        name = f"Value_{self.file.fresh()}"
        node = self.message.node.add(op_type="Constant", name=name, output=[name])
        fill(node.attribute.add(name="value"), value)
        return name

    def prim(self, op_type: str, *inputs: str, types: Sequence[Type] = (), **attributes: Any) -> str:
        key = f"{op_type}:{self.file.fresh()}"
        entry = self.file.model.primitives.add(name=key, op_type=op_type, prim_type=2)
        for name, value in attributes.items():
            fill(entry.attribute.add(name=name), value)
        return self.call(key, *inputs, types=types, layer=f"Default/{op_type}-op0")

    def call(self, target: str, *inputs: str, types: Sequence[Type] = (), layer: str = "1") -> str:
        name = f"{self.name}:CNode_{self.file.fresh()}"
        node = self.message.node.add(op_type=f"REF::{target}", name=name, input=inputs, output=[name])
        node.domain = layer
        shape = node.attribute.add(name="shape", type=TENSORS)
        if len(types) > 1:
            shape.type = TUPLE
            for dtype, dims in types:
                item = shape.values.add(type=TENSORS)
                item.tensors.add(data_type=DTYPES[dtype], dims=list(dims))
        for dtype, dims in types if len(types) == 1 else ():
            shape.tensors.add(data_type=DTYPES[dtype], dims=list(dims))
        return name

    def switch(self, condition: str, then: str, otherwise: str) -> str:
        return self.call(self.prim("Switch", condition, then, otherwise))

    def partial(self, graph: str, *arguments: str) -> str:
        return self.prim("Partial", graph, *arguments)

    def gives(self, value: str) -> None:
        self.message.output.add(name=value)


def fill(attribute: Any, value: Any) -> None:
    """Writes a Python value as MindSpore does."""
    if isinstance(value, bool):
        attribute.type, attribute.i = BOOL, int(value)
    elif isinstance(value, int):
        attribute.type, attribute.i = INT64, value
    elif isinstance(value, float):
        attribute.type, attribute.f = FLOAT, value
    elif isinstance(value, str):
        attribute.type, attribute.s = STRING, value.encode()
    elif value is None:
        attribute.type = UMONAD
    elif isinstance(value, tuple):
        attribute.type = TUPLE
        for item in value:
            if isinstance(item, float):
                attribute.values.add(type=FLOAT).floats.append(item)
            else:
                attribute.values.add(type=INT64).ints.append(item)
    else:
        array = np.asarray(value)
        attribute.type = TENSORS
        attribute.tensors.add(
            name="value0", data_type=DTYPES[array.dtype.name], dims=array.shape, raw_data=array.tobytes()
        )
