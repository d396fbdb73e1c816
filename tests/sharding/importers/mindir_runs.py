"""Runs one primitive of MindIR in a small file of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharding.importers import import_model
from tests.sharding import graphs
from tests.sharding.importers.mindir_files import File, Graph, Type

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Declared:
    """An input of which the file says other lengths than the array has: -1 for one that is open, or -2 alone
    for any number of axes."""

    array: Array
    dims: tuple[int, ...]


class Made:
    """An operand that another primitive gives."""

    def __init__(self, kind: str, *operands: Any) -> None:
        self.kind, self.operands = kind, operands


def open_lengths(array: Any) -> Declared:
    return Declared(np.asarray(array), (-1,) * np.ndim(array))


def open_axes(array: Any) -> Declared:
    return Declared(np.asarray(array), (-2,))


def run(
    folder: Path, kind: str, *operands: Any, types: tuple[Type, ...] = (), opset: int = 0, **settings: Any
) -> list[Array]:
    """What a primitive gives of inputs (arrays, and tuples in which there are some) and constants; ``types``:
    what the file says of the results."""
    file = File()
    graph = file.graph("main")
    feeds: dict[str, Array] = {}
    found = graph.prim(kind, *[_operand(graph, item, feeds) for item in operands], types=types, **settings)
    graph.gives(found)
    path = file.save(folder / "one.mindir")
    session = graphs.session(import_model(path, opset=opset) if opset else import_model(path))
    return [np.asarray(item) for item in session.run(None, feeds)]


def _operand(graph: Graph, item: Any, feeds: dict[str, Array]) -> str:
    if isinstance(item, Made):
        return graph.prim(item.kind, *[_operand(graph, inner, feeds) for inner in item.operands])
    if isinstance(item, tuple) and any(
        isinstance(inner, (np.ndarray, Declared, Made, tuple)) for inner in item
    ):
        return graph.prim("MakeTuple", *[_operand(graph, inner, feeds) for inner in item])
    if not isinstance(item, (np.ndarray, Declared)):
        return graph.const(item)
    array, dims = (item.array, item.dims) if isinstance(item, Declared) else (item, item.shape)
    name = f"x{len(feeds)}"
    feeds[name] = array
    graph.input(name, array.dtype.name, dims)
    return graph[name]
