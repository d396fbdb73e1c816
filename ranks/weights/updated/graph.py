"""A model whose variable weights are inputs, and the part of it that they alone decide.

What is computed from variable weights and constants alone (the Transpose, Cast, Reshape or DequantizeLinear
that exporters put behind a weight) goes into a model of its own, the *preparation*, which runs once per
update; its results are inputs of the main model, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from ranks.common.tensors import element_dtype
from ranks.errors import ModelError
from ranks.sessions.nodes import describe, is_collective, is_constant, reads
from ranks.weights.updated.products import Products, matrices_in, right_factors
from sharding.common.names import Names
from sharding.common.text import similar
from sharding.onnx_files.walk import graphs_in, nodes_in, subgraphs

if TYPE_CHECKING:
    from pathlib import Path

    _Items = MutableSequence[onnx.TensorProto] | MutableSequence[onnx.NodeProto]

_RANDOM = frozenset(
    {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Multinomial", "Dropout"),
    }
)
_SHAPES = frozenset({"Shape", "Size"})  # of a weight they are constants, whatever its values


@dataclass(frozen=True)
class Divided:
    """A model with its variable weights taken out."""

    main: onnx.ModelProto
    """Lacks inputs for ``feeds`` still: their types are known once the preparation is loaded."""
    preparation: onnx.ModelProto | None
    """Inputs: the weights that it reads; outputs: the prepared ones among ``feeds``."""
    weights: Mapping[str, onnx.TensorProto]
    """The variable weights as the file has them."""
    feeds: Mapping[str, str]
    """Further inputs of the main model -> the weight or the output of the preparation that they take."""
    turned: frozenset[str]
    """Those of the feeds that take it transposed."""
    sources: Mapping[str, frozenset[str]]
    """Output of the preparation -> the variable weights that it depends on."""


def divide(model: onnx.ModelProto, names: Sequence[str], file: Path, *, products: bool = True) -> Divided:
    """Takes the weights of these names out of a model, which changes.

    ``products``: writes products with them anew, for the CPU (`ranks.weights.updated.products`).

    A weight is an initializer (also one that is an input as well, or of a body) or a Constant node's output.
    Raises `ModelError` for a name that is no weight, stands for several, or whose type cannot be updated.
    """
    known = _names(model)  # before any is taken
    weights = {name: _take(model, name, file, known) for name in dict.fromkeys(names)}
    return _Divider(model, weights, file).divide(products)


def _take(model: onnx.ModelProto, name: str, file: Path, known: Sequence[str]) -> onnx.TensorProto:
    """Removes a weight from the model and returns it; ``known`` are the names of all that it had."""
    places = [place for graph in graphs_in(model.graph) for place in _places(graph, name)]
    if not places:
        raise ModelError(_unknown(model, name, file, known))
    if len(places) > 1:
        raise ModelError(
            f"{file} has {len(places)} weights named {name!r}, in bodies of its control flow: which of them "
            "is to be variable cannot be said."
        )
    items, index, tensor = places[0]
    if element_dtype(tensor.data_type).hasobject:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        raise ModelError(f"The weight {name!r} of {file} has the type {kind}, which cannot be variable.")
    result = type(tensor)()
    result.CopyFrom(tensor)
    del items[index]
    return result


def _places(graph: onnx.GraphProto, name: str) -> Iterator[tuple[_Items, int, onnx.TensorProto]]:
    """Where a graph itself holds a weight: the list, the place in it, the tensor."""
    for index, tensor in enumerate(graph.initializer):
        if tensor.name == name:
            yield graph.initializer, index, tensor
    for index, node in enumerate(graph.node):
        if is_constant(node) and name in node.output:
            attribute = next((item for item in node.attribute if item.name == "value"), None)
            if attribute is None:
                raise ModelError(
                    f"{describe(node)} holds {name!r} as numbers of an attribute, not as a tensor: it cannot "
                    "be variable."
                )
            yield graph.node, index, attribute.t


def _names(model: onnx.ModelProto) -> list[str]:
    """The names of all that can be made variable."""
    return [
        name
        for graph in graphs_in(model.graph)
        for name in (
            *(tensor.name for tensor in graph.initializer),
            *(output for node in graph.node if is_constant(node) for output in node.output),
        )
    ]


def _unknown(model: onnx.ModelProto, name: str, file: Path, known: Sequence[str]) -> str:
    if any(name == item.values.name for item in model.graph.sparse_initializer):
        return f"The weight {name!r} of {file} is stored sparse and cannot be variable: store it dense."
    if any(name == value.name for value in model.graph.input):
        return f"{name!r} is an input of {file}, not a weight: give it to predict."
    if any(name in node.output for node in model.graph.node):
        return f"{name!r} is computed by {file}; only weights that the file holds can be variable."
    close = similar(name, known, 3)
    hint = f"; similar are {', '.join(map(repr, close))}" if close else ""
    return f"{file} has no weight {name[:200]!r} among its {len(known)}{hint}."


class _Divider:
    def __init__(self, model: onnx.ModelProto, weights: Mapping[str, onnx.TensorProto], file: Path) -> None:
        graph = model.graph
        self.model, self.weights, self.file = model, weights, file
        # From IR version 4 on an initializer that is an input as well may be given another value.
        inputs = {value.name for value in graph.input} if model.ir_version >= 4 else set()
        self.constants = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in inputs}
        self.depends = {name: frozenset({name}) for name in weights}
        """Value that weights alone decide -> the variable ones among them."""
        self.fixed: dict[str, onnx.NodeProto] = {}
        """Value computed from constants alone -> the node that does so."""
        self.moved: dict[str, onnx.NodeProto] = {}
        """Output of a moved node -> the node."""
        self.random = any(node.op_type in _RANDOM for node in nodes_in(*model.functions))
        self.functions = {(function.domain, function.name) for function in model.functions}

    def divide(self, products: bool) -> Divided:
        graph = self.model.graph
        kept = [node for node in graph.node if not self._moves(node)]
        names = Names(_all_names(self.model))
        turned: dict[str, str] = {}
        if products:
            writer = Products(self.model, self._matrices(kept), self._turns(), names)
            kept, turned = writer.write(kept), writer.turned
        read = {name for node in kept for name in reads(node)} | {value.name for value in graph.output}
        crossing = [name for name in {**self.weights, **self.moved} if name in read]
        prepared = [name for name in self.moved if name in read or name in turned.values()]
        preparation = self._preparation(prepared)
        gone = {name for node in self.moved.values() for name in reads(node)} - read
        for index in range(len(graph.initializer) - 1, -1, -1):
            if graph.initializer[index].name in gone:
                del graph.initializer[index]
        inputs = {*self.weights, *self.moved, *gone}
        for values in (graph.input, graph.value_info):
            for index in range(len(values) - 1, -1, -1):
                if values[index].name in inputs:
                    del values[index]
        feeds = {**self._feeds(crossing, kept, names), **turned}
        del graph.node[:]
        graph.node.extend(kept)
        sources = {name: self.depends[name] for name in prepared}
        return Divided(self.model, preparation, self.weights, feeds, frozenset(turned), sources)

    def _turns(self) -> dict[str, str]:
        """Matrices that are nothing but another one transposed, which takes their place."""
        found = {}
        for name, node in self.moved.items():
            perm = next((list(item.ints) for item in node.attribute if item.name == "perm"), [1, 0])
            if node.op_type == "Transpose" and not node.domain and perm == [1, 0]:
                found[name] = node.input[0]
        return found

    def _matrices(self, kept: Sequence[onnx.NodeProto]) -> dict[str, tuple[int, int]]:
        """The right factors of products that the weights decide, with their lengths."""
        factors = [name for name in dict.fromkeys(right_factors(kept)) if name in self.depends]
        found = {}
        for name in factors:
            tensor = self.weights.get(name)
            if tensor is not None and tensor.data_type == tensor.FLOAT and len(tensor.dims) == 2:
                found[name] = (tensor.dims[0], tensor.dims[1])
        preparation = self._preparation([name for name in factors if name in self.moved])
        return found if preparation is None else {**found, **matrices_in(preparation)}

    def _moves(self, node: onnx.NodeProto) -> bool:
        """Notes what a node's outputs depend on; whether it belongs to the preparation."""
        if is_constant(node):
            self.fixed.update((name, node) for name in node.output)
            return False
        names = reads(node)
        known = all(name in self.constants or name in self.fixed or name in self.depends for name in names)
        if not names or not known or not self._repeatable(node):
            return False
        variable = frozenset().union(*(self.depends.get(name, frozenset()) for name in names))
        if not variable or node.op_type in _SHAPES:
            self.fixed.update((name, node) for name in node.output if name)
            return False
        for name in filter(None, node.output):
            self.depends[name], self.moved[name] = variable, node
        return True

    def _repeatable(self, node: onnx.NodeProto) -> bool:
        """Whether a node gives the same tensors whenever it runs."""
        for inner in (node, *nodes_in(*subgraphs(node))):
            called = (inner.domain, inner.op_type) in self.functions
            if is_collective(inner) or inner.op_type in _RANDOM or (called and self.random):
                return False
            if "Sequence" in inner.op_type or inner.op_type.startswith("Optional"):
                return False
        return True

    def _preparation(self, outputs: Sequence[str]) -> onnx.ModelProto | None:
        """The model that computes these values from the variable weights."""
        if not outputs:
            return None
        source = self.model
        needed, waiting = set(outputs), list(outputs)
        while waiting:
            name = waiting.pop()
            node = self.moved.get(name) or self.fixed.get(name)
            for other in reads(node) if node is not None else ():
                if other not in needed:
                    needed.add(other)
                    waiting.append(other)
        made = onnx.ModelProto(ir_version=max(source.ir_version, 4), producer_name="shardrun")
        made.opset_import.extend(source.opset_import)
        made.functions.extend(source.functions)
        graph = made.graph
        graph.name = "preparation"
        graph.initializer.extend(tensor for name, tensor in self.constants.items() if name in needed)
        graph.node.extend(node for node in source.graph.node if not needed.isdisjoint(node.output))
        graph.input.extend(input_of(name, w) for name, w in self.weights.items() if name in needed)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        return made

    def _feeds(self, crossing: Sequence[str], kept: list[onnx.NodeProto], names: Names) -> dict[str, str]:
        """Inputs for these values. One that is an output of the model or exchanged between ranks, so that it
        must be computed, is given by another name and passed on."""
        computed = {value.name for value in self.model.graph.output}
        computed.update(name for node in kept if is_collective(node) for name in node.input)
        feeds = {}
        for name in crossing:
            feed = names.fresh(f"{name}/variable") if name in computed else name
            feeds[feed] = name
            if feed != name:
                kept.insert(0, onnx.helper.make_node("Identity", [feed], [name]))
        return feeds


def input_of(name: str, tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    """A graph input of a tensor's type and shape."""
    return onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))


def _all_names(model: onnx.ModelProto) -> Counter[str]:
    found: Counter[str] = Counter()
    for graph in graphs_in(model.graph):
        found.update(value.name for value in graph.input)
        found.update(tensor.name for tensor in graph.initializer)
        found.update(name for node in graph.node for name in node.output)
    return found
