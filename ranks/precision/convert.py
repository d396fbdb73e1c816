"""Gives nodes of a graph another floating-point type, by casts around them.

A node that computes in another type takes its inputs through a Cast, and what it gives is cast back for
whoever wants the model's own type: the graph's outputs, its subgraphs, nodes that keep their type, and
collectives, so that ranks need not agree. Between two nodes of one type there is no cast. The types of the
graph's inputs and outputs stay. Casts of weights are done once, when a session is made. Where float16 is
only to be rounded to (`Precision.rounded`), a node stays in float32 between pairs of casts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from ranks.errors import ModelError
from ranks.precision.request import FLOAT16, FLOAT32, Precision
from ranks.precision.types import Typed, Types, bindings
from ranks.sessions.nodes import is_collective
from sharding.common.arrays import Array
from sharding.onnx_files.walk import graphs_in, mentioned, subgraphs

_SOURCES = {FLOAT16: ("tensor(float)",), FLOAT32: ("tensor(float16)", "tensor(bfloat16)")}
_NAMES = {FLOAT16: "tensor(float16)", FLOAT32: "tensor(float)"}
_NUMBERS = {FLOAT16: onnx.TensorProto.FLOAT16, FLOAT32: onnx.TensorProto.FLOAT}
_BACK = {"tensor(float)": 1, "tensor(float16)": 10, "tensor(bfloat16)": 16}
LARGEST = 65504.0
"""The largest float16."""

KEPT_IN_FLOAT32 = frozenset({
    # These leave float16's range easily or add up many small parts; torch's autocast keeps them, too.
    "Exp", "Log", "Pow", "Reciprocal", "ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp", "CumSum", "LpNormalization", "Softplus",
    "GlobalLpPool", "LpPool",
    # ONNX Runtime has no float16 kernels of these on CUDA.
    "Range", "RoiAlign", "Upsample", "NonMaxSuppression",
    # They convert already, or only describe.
    "Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Shape", "Size",
})  # fmt: skip
"""Operators that a mode of float16 leaves alone; a plan may name them."""


def apply(model: onnx.ModelProto, precision: Precision, file: Path, *, part: bool = False) -> dict[str, bool]:
    """Changes ``model`` as asked; returns the plan's entries, and whether each fits any node.

    ``part``: the model is one rank's, so the plan may name nodes that only other ranks have; see
    `check_together`.
    Raises `ModelError` where a plan cannot be followed: it names what is not there, a node that has no such
    type, or weights do not fit into float16.
    """
    plan = _Plan(precision, file)
    typed = Typed(model)
    names = set(_names(model.graph))
    _Graph(model.graph, typed, plan, file, {}, {}, names).convert()
    if not part:
        plan.check(model)
    return plan.fits


def check_together(fits: Sequence[Mapping[str, bool]]) -> None:
    """Raises `ModelError` for an entry of the ranks' plans that fits no node of any rank.

    ``fits``: what `apply` returned on each rank. All ranks raise alike.
    """
    for key in dict.fromkeys(key for mine in fits for key in mine):
        if not any(mine.get(key) for mine in fits):
            raise ModelError(
                f"[execution_plan] {key}: no rank that has this plan has a node of this name or an operator "
                "of this type. (Slicing writes some nodes as others and works out constants: name an "
                "operator's type, or look into the rank models.)"
            )


class _Plan:
    """Which type each node is to compute in, and whether anybody insists on it."""

    def __init__(self, precision: Precision, file: Path) -> None:
        self._mode = precision.mode
        self.rounded = precision.rounded
        self._plan = dict(precision.plan)
        self._file = file
        self.fits = dict.fromkeys(self._plan, False)

    def wanted(self, node: onnx.NodeProto) -> tuple[str, str]:
        """The type, "" for the node's own; and what of the plan says so, "" for the mode."""
        found = [key for key in (node.name, node.op_type) if key and key in self._plan]
        for key in found:
            self.fits[key] = True
        if found:
            return self._plan[found[0]], found[0]
        if self._mode == FLOAT16 and node.op_type in KEPT_IN_FLOAT32:
            return "", ""
        return self._mode, ""

    def check(self, model: onnx.ModelProto) -> None:
        """Raises `ModelError` for entries of the plan that fit no node."""
        if missing := [key for key, fits in self.fits.items() if not fits]:
            known = sorted({node.op_type for node in model.graph.node})
            raise ModelError(
                f"[execution_plan] {missing[0]}: {self._file} has neither a node of this name nor "
                f"an operator of this type; its operators are {', '.join(known[:20])}"
                f"{', ...' if len(known) > 20 else ''}."
            )


class _Graph:
    """One graph while its nodes are changed."""

    def __init__(  # noqa: PLR0917 - a graph and what is around it
        self,
        graph: onnx.GraphProto,
        typed: Typed,
        plan: _Plan,
        file: Path,
        outer_types: Mapping[str, str],
        outer_constants: Mapping[str, onnx.TensorProto],
        names: set[str],
    ) -> None:
        self._graph, self._typed, self._plan, self._file, self._names = graph, typed, plan, file, names
        self._types: Types = typed.of(graph, outer_types)
        self._constants = {**outer_constants, **{tensor.name: tensor for tensor in graph.initializer}}
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value":
                    self._constants[node.output[0]] = attribute.t
        self._versions: dict[tuple[str, str], str] = {}
        self._fits: dict[str, bool] = {}
        self._new: list[onnx.NodeProto] = []
        self._backs: list[onnx.NodeProto] = []

    def convert(self) -> bool:
        """Changes the graph and those inside; returns whether anything changed."""
        changed = False
        for node in self._graph.node:
            for inner in subgraphs(node):
                deeper = _Graph(
                    inner, self._typed, self._plan, self._file, self._types, self._constants, self._names
                )
                changed |= deeper.convert()
            wanted, key = self._plan.wanted(node)
            variables = self._variables(node, wanted, key) if wanted else {}
            if variables:
                self._rewrite(node, wanted, variables)
                changed = True
            else:
                self._new.append(node)
        if self._backs:
            used = set(_used(self._new, self._graph))
            unused = {node.output[0] for node in self._backs if node.output[0] not in used}
            self._new = [node for node in self._new if not (node.output and node.output[0] in unused)]
        if changed:
            nodes = [_copy(node) for node in self._new]
            del self._graph.node[:]
            self._graph.node.extend(nodes)
        return changed

    def _variables(self, node: onnx.NodeProto, wanted: str, key: str) -> dict[str, str]:
        """The node's type variables that change, and what they stand for now.

        Empty where the node has no such types. Raises `ModelError` where the plan's ``key`` insists on what
        cannot be.
        """
        where = f"[execution_plan] {key}: the node {node.name!r} ({node.op_type}) of {self._file}"
        by_name = bool(key) and key == node.name
        known = self._typed.signature(node)
        if known is None or any(True for _ in subgraphs(node)):
            if not key:
                return {}
            why = "is of an operator whose types are unknown"
            if known:
                why = "holds graphs: name the nodes in them"
            elif is_collective(node):
                why = "exchanges values between ranks, which keep their type"
            raise ModelError(f"{where} {why}.")
        bound = bindings(node, known, self._types)
        found = {v: t for v, t in bound.items() if t in _SOURCES[wanted]}
        if not found:
            is_already = _NAMES[wanted] in bound.values()
            if by_name and not is_already:
                raise ModelError(f"{where} computes no floating-point numbers that could be {wanted}.")
            return {}
        for variable in found:
            if _NAMES[wanted] not in known.allowed[variable]:
                if key:
                    raise ModelError(f"{where} has no {wanted}: the operator does not allow it.")
                return {}
        if wanted == FLOAT16:
            for index, name in enumerate(node.input):
                if known.input(index) in found and not self._fits_float16(name):
                    if key:
                        raise ModelError(
                            f"{where} cannot compute in float16: its weight {name!r} holds numbers beyond "
                            f"{LARGEST:g}."
                        )
                    return {}
        return found

    def _rewrite(self, node: onnx.NodeProto, wanted: str, variables: Mapping[str, str]) -> None:
        known = self._typed.signature(node)
        assert known is not None
        for index, name in enumerate(node.input):
            if name and known.input(index) in variables:
                node.input[index] = self._version(name, wanted)
        if self._plan.rounded and wanted == FLOAT16:
            self._new.append(node)
            for index, name in enumerate(node.output):
                if name and known.output(index) in variables:
                    node.output[index] = self._fresh(f"{name}__exact")
                    self._round(node.output[index], name)
                    self._versions[name, wanted] = name
            return
        backs = []
        for index, name in enumerate(node.output):
            if name and (now := variables.get(known.output(index))):
                node.output[index] = self._versions[name, wanted] = self._fresh(f"{name}__{wanted}")
                backs.append(self._cast(node.output[index], name, _BACK[now]))
        self._new += [node, *backs]
        self._backs += backs

    def _version(self, name: str, wanted: str) -> str:
        """The value in the wanted type; the first time, behind a new Cast."""
        if (name, wanted) not in self._versions:
            version = self._versions[name, wanted] = self._fresh(f"{name}__{wanted}")
            if self._plan.rounded and wanted == FLOAT16:
                self._round(name, version)
            else:
                self._new.append(self._cast(name, version, _NUMBERS[wanted]))
        return self._versions[name, wanted]

    def _round(self, source: str, target: str) -> None:
        between = self._fresh(f"{target}__rounded")
        self._new += [
            self._cast(source, between, _NUMBERS[FLOAT16]), self._cast(between, target, _NUMBERS[FLOAT32])
        ]  # fmt: skip

    def _cast(self, source: str, target: str, number: int) -> onnx.NodeProto:
        return onnx.helper.make_node("Cast", [source], [target], self._fresh(f"{target}__cast"), to=number)

    def _fresh(self, name: str) -> str:
        found, count = name, 1
        while found in self._names:
            found, count = f"{name}_{count}", count + 1
        self._names.add(found)
        return found

    def _fits_float16(self, name: str) -> bool:
        """False for a constant with finite numbers that float16 would take for infinite."""
        tensor = self._constants.get(name)
        if tensor is None:
            return True
        if name not in self._fits:
            self._fits[name] = bool(self._largest(tensor) <= LARGEST)
        return self._fits[name]

    def _largest(self, tensor: onnx.TensorProto) -> float:
        try:
            array: Array = onnx.numpy_helper.to_array(tensor, str(self._file.parent))
        except Exception as error:  # onnx's readers raise many
            raise ModelError(f"The weight {tensor.name!r} of {self._file} cannot be read: {error}.") from None
        if not array.size or array.dtype.kind != "f":
            return 0.0
        top = max(float(array.max()), -float(array.min()))
        if np.isfinite(top):
            return top
        finite = array[np.isfinite(array)]
        return float(np.abs(finite).max(initial=0.0))


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    return copied


def _used(nodes: list[onnx.NodeProto], graph: onnx.GraphProto) -> Iterator[str]:
    """Every name that nodes, graphs inside them, and the graph's outputs read."""
    yield from (value.name for value in graph.output)
    for node in nodes:
        yield from mentioned(node)


def _names(model_graph: onnx.GraphProto) -> Iterator[str]:
    """Every name of a value or node in the graph and those inside."""
    for graph in graphs_in(model_graph):
        yield from (value.name for value in (*graph.input, *graph.output, *graph.value_info))
        yield from (tensor.name for tensor in graph.initializer)
        for node in graph.node:
            yield node.name
            yield from node.input
            yield from node.output
