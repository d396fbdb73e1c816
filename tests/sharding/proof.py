"""Proves operator rules by execution.

Every option that a rule returns for a concrete node is a claim: inputs cut so, run so on each rank, give
outputs that put together so are those of the whole node. ``prove`` runs the whole node and every rank's copy
of every option with ONNX Runtime and compares. Cutting and joining are written here anew, from the definition
of the placements alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sharding.rules import RULES
from sharding.rules.base import Dim, NodeView, Option, Rule
from sharding.slices.placement import Partial, Placement, Replicated, Split
from tests.releases import INSTALLED, release
from tests.sharding import graphs

MICROSOFT = "com.microsoft"
REFERENCE = "reference"


@dataclass(frozen=True)
class Const:
    """An input whose value is known when the model is sliced."""

    value: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One concrete node; plain arrays are inputs known only at run time, None is an absent optional input."""

    op_type: str
    inputs: Sequence[np.ndarray[Any, Any] | Const | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    domain: str = ""
    shapes: Mapping[int, Sequence[Dim] | None] = field(default_factory=dict)
    """Input shapes as the rule sees them, where they are not simply the arrays' shapes."""
    output_shapes: Mapping[int, Sequence[Dim] | None] = field(default_factory=dict)
    block_counts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    rtol: float = 2e-5
    unused_outputs: Sequence[int] = ()
    """Optional outputs that the node leaves out."""
    declared: Mapping[int, int] = field(default_factory=dict)
    """Element types of outputs for which ONNX Runtime infers none."""
    body: str = ""
    """What the operator does, as an onnx function in the domain ``REFERENCE``: it is run instead of the
    operator, for ONNX Runtime has it for GPUs only. The text of a function is that of ``onnx.parser``."""
    in_place: Mapping[int, int] = field(default_factory=dict)
    """Outputs that the operator writes where an input lies, by their places."""
    needs: str = ""
    """The first release of ONNX Runtime that runs this node rightly, if the oldest supported one does not."""

    def __str__(self) -> str:
        shapes = ", ".join("-" if a is None else str(_array(a).shape) for a in self.inputs)
        return f"{self.op_type}-{self.opset}({shapes}; {dict(self.attributes)})"


def _array(value: np.ndarray[Any, Any] | Const) -> np.ndarray[Any, Any]:
    return np.asarray(value.value if isinstance(value, Const) else value)


def cut(
    array: np.ndarray[Any, Any], placement: Placement, world: int, seed: int = 0
) -> list[np.ndarray[Any, Any]]:
    """Each rank's part of a value."""
    if isinstance(placement, Replicated):
        return [array] * world
    if isinstance(placement, Split):
        blocks = np.split(array, placement.blocks, axis=placement.axis)
        count = world // placement.copies
        parts = [np.split(block, count, axis=placement.axis) for block in blocks]
        return [
            np.ascontiguousarray(
                np.concatenate([part[rank // placement.copies] for part in parts], axis=placement.axis)
            )
            for rank in range(world)
        ]
    random = np.random.default_rng(seed)
    summands = [
        random.standard_normal(array.shape).astype(array.dtype)
        if array.dtype.kind == "f"
        else random.integers(0, 5, array.shape).astype(array.dtype)
        for _ in range(world - 1)
    ]
    # Not a copy of each other, and not only one of them set: a rule must not rely on either.
    return [*summands, np.asarray(array - sum(summands[1:], start=summands[0]))]


def join(parts: Sequence[np.ndarray[Any, Any]], placement: Placement) -> np.ndarray[Any, Any]:
    """The value that these parts make."""
    if isinstance(placement, Replicated):
        for part in parts[1:]:
            _assert_equal(part, parts[0])
        return parts[0]
    if isinstance(placement, Split):
        for rank, part in enumerate(parts):
            _assert_equal(part, parts[rank - rank % placement.copies])
        pieces = [
            np.split(part, placement.blocks, axis=placement.axis) for part in parts[:: placement.copies]
        ]
        order = [piece[block] for block in range(placement.blocks) for piece in pieces]
        return np.concatenate(order, axis=placement.axis)
    return np.asarray(sum(parts[1:], start=parts[0]))


def _assert_equal(part: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> None:
    """As numpy's, which takes ten times as long, where bytes differ: zeros do by their signs."""
    alike = part is other or (part.shape, part.dtype) == (other.shape, other.dtype)
    if part.dtype == object or not alike or part.tobytes() != other.tobytes():
        np.testing.assert_array_equal(part, other)


class GraphEmitter:
    """Writes one rank's copy of a node into a graph that all options and ranks of a case share."""

    def __init__(
        self, case: Case, rank: int, world: int, prefix: str, nodes: list[Any], initializers: list[Any]
    ):
        self.case, self.rank, self.world = case, rank, world
        self._prefix, self._nodes, self._initializers = prefix, nodes, initializers
        self._count = 0
        self.version = 17 if case.domain else case.opset
        self.node = self.moving = None

    def _name(self) -> str:
        self._count += 1
        return f"{self._prefix}_{self._count}"

    def op(
        self, op_type: str, inputs: Sequence[Any], *, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> list[Any]:
        names = [self._name() for _ in range(outputs)]
        inputs = ["" if name is None else name for name in inputs]
        self._nodes.append(helper.make_node(op_type, inputs, names, domain=domain, **attributes))
        return names

    def copy(self, inputs: Sequence[Any], **attributes: Any) -> list[Any]:
        case = self.case
        merged = {**case.attributes, **attributes}
        domain = REFERENCE if case.body else case.domain
        names = self.op(case.op_type, inputs, outputs=case.outputs, domain=domain, **merged)
        for index in case.unused_outputs:
            self._nodes[-1].output[index] = ""
        return names

    def collective(self, op_type: str, value: Any, shape: Sequence[Dim], **attributes: int) -> Any:
        """All ranks write the same nodes in the same order, so a value has the same number on each."""
        mine = f"rank{self.rank}_"
        assert mine in value, "a collective's input is a value of this rank's graph"
        peers = [value.replace(mine, f"rank{rank}_") for rank in range(self.world)]
        if op_type == "AllGather":
            return self.op("Concat", peers, axis=attributes["axis"])[0]
        assert op_type == "AllReduce", op_type
        total = peers[0]
        for peer in peers[1:]:
            total = self.op("Add", [total, peer])[0]
        return total

    def constant(self, value: np.ndarray[Any, Any]) -> Any:
        name = self._name()
        self._initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name


def _opsets(case: Case) -> list[Any]:
    if case.body:
        return [helper.make_opsetid("", 23), helper.make_opsetid(REFERENCE, 1)]
    opsets = [helper.make_opsetid("", case.opset if not case.domain else 17)]
    return opsets + ([helper.make_opsetid(case.domain, case.opset)] if case.domain else [])


class _Graph:
    """Nodes, inputs and outputs gathered for one ONNX Runtime session."""

    def __init__(self, case: Case):
        self.case = case
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.inputs: list[Any] = []
        self.feeds: dict[str, np.ndarray[Any, Any]] = {}
        self.outputs: list[str] = []
        self.types: dict[str, int] = {}
        self.shared: dict[str, str] = {}

    def add(self, rank: int, world: int, prefix: str, parts: Sequence[Any], option: Option | None) -> int:
        """One rank's copy of the node; returns the position of its first output."""
        emitter = GraphEmitter(self.case, rank, world, prefix, self.nodes, self.initializers)
        names: list[str | None] = []
        for i, (part, given) in enumerate(zip(parts, self.case.inputs, strict=True)):
            if given is None:
                names.append(None)
                continue
            name = f"{prefix}_input_{i}"
            names.append(name)
            if isinstance(given, Const):
                self.initializers.append(numpy_helper.from_array(part, name))
            else:
                kind = helper.np_dtype_to_tensor_dtype(part.dtype)
                self.inputs.append(helper.make_tensor_value_info(name, kind, part.shape))
                self.feeds[name] = part
        results = (
            emitter.copy(names) if option is None or option.emit is None else option.emit(emitter, names)
        )
        assert len(results) == self.case.outputs, f"{prefix}: one output value per node output"
        assert not set(results) & set(names), f"{prefix}: an output must be a new value"
        first = len(self.outputs)
        self.outputs += [name for i, name in enumerate(results) if i not in self.case.unused_outputs]
        self.types.update((results[index], kind) for index, kind in self.case.declared.items())
        self.shared.update((results[made], names[taken] or "") for made, taken in self.case.in_place.items())
        return first

    def run(self) -> list[np.ndarray[Any, Any]]:
        outputs = [
            helper.make_tensor_value_info(name, self.types[name], None)
            if name in self.types
            else onnx.ValueInfoProto(name=name)
            for name in self.outputs
        ]
        graph = helper.make_graph(self.nodes, "proof", self.inputs, outputs, self.initializers)
        opsets = _opsets(self.case)
        functions = [onnx.parser.parse_function(self.case.body)] if self.case.body else []
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)
        session = graphs.session(model, optimized=False)
        if not self.shared:
            return session.run(self.outputs, self.feeds)
        binding = session.io_binding()
        values = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(np.copy(array))
            for name, array in self.feeds.items()
        }
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            if name in self.shared:
                binding.bind_ortvalue_output(name, values[self.shared[name]])
            else:
                binding.bind_output(name)
        session.run_with_iobinding(binding)
        return [np.array(value.numpy()) for value in binding.get_outputs()]


def view(case: Case, world: int, results: Sequence[np.ndarray[Any, Any]]) -> NodeView:
    """What the rule is told of the node."""
    arrays = [None if value is None else _array(value) for value in case.inputs]
    used = [i for i in range(case.outputs) if i not in case.unused_outputs]
    shapes = {i: array.shape for i, array in zip(used, results, strict=True)}
    return NodeView(
        op_type=case.op_type,
        domain=case.domain,
        version=case.opset,
        world=world,
        attributes=case.attributes,
        shapes=[case.shapes.get(i, None if a is None else list(a.shape)) for i, a in enumerate(arrays)],
        dtypes=[None if a is None else a.dtype for a in arrays],
        constants=[value.value if isinstance(value, Const) else None for value in case.inputs],
        present=[value is not None for value in case.inputs],
        output_shapes=[
            case.output_shapes.get(i, list(shapes[i]) if i in shapes else None) for i in range(case.outputs)
        ],
        block_counts=case.block_counts,
    )


def kind(option: Option) -> str:
    """What an option does, in two words: how the inputs come and how the outputs go."""

    def word(placements: Sequence[Placement]) -> str:
        if any(isinstance(p, Partial) for p in placements):
            return "partial"
        blocks = any(isinstance(p, Split) and p.blocks > 1 for p in placements)
        return "blocks" if blocks else "split" if any(isinstance(p, Split) for p in placements) else "whole"

    return f"{word(option.inputs)}->{word(option.outputs)}"


def options_of(
    case: Case, world: int, expected: Sequence[np.ndarray[Any, Any]] | None = None
) -> list[Option]:
    """The rule's options for this node. ``expected``: what it gives, where it has been run before."""
    results = whole(case) if expected is None else expected
    return RULES[case.domain, case.op_type](view(case, world, results))


def whole(case: Case) -> list[np.ndarray[Any, Any]]:
    """What the whole node gives."""
    graph = _Graph(case)
    graph.add(0, 1, "whole", [None if v is None else _array(v) for v in case.inputs], None)
    return graph.run()


OPSETS = {24: (1, 24), 26: (1, 25)}
"""Opset -> the first release of ONNX Runtime that loads it; the oldest supported one loads the others."""


def runnable(case: Case) -> bool:
    """Whether the installed ONNX Runtime is new enough for this node. If it is, it has to run it."""
    if case.needs and release(case.needs) > INSTALLED:
        return False
    return bool(case.domain) or OPSETS.get(case.opset, INSTALLED) <= INSTALLED


@dataclass
class Written:
    """Every rank's copy of every option of a node, as nodes of one graph."""

    options: list[Option]
    graph: _Graph
    first: dict[tuple[int, int], int]
    """By number of the option and rank: the position of the copy's first output."""


def write(
    case: Case, world: int, expected: Sequence[np.ndarray[Any, Any]], rule: Rule | None = None
) -> Written:
    """Asks the rule for the options of this node and lets each write itself for every rank; runs nothing.

    ``expected``: what the whole node gives, see `whole`.
    """
    options = (rule or RULES[case.domain, case.op_type])(view(case, world, expected))
    written = Written(options, _Graph(case), {})
    for number, option in enumerate(options):
        assert len(option.inputs) == len(case.inputs) and len(option.outputs) == case.outputs, (
            f"{case}: {option}"
        )
        cuts = [
            [None] * world if value is None else cut(_array(value), placement, world, seed=number * 10 + i)
            for i, (value, placement) in enumerate(zip(case.inputs, option.inputs, strict=True))
        ]
        for rank in range(world):
            parts = [each[rank] for each in cuts]
            at = written.graph.add(rank, world, f"option{number}_rank{rank}", parts, option)
            written.first[number, rank] = at
    assert len(set(options)) == len(options) or any(option.emit for option in options), (
        f"{case}: an option twice"
    )
    return written


def prove(
    case: Case,
    world: int,
    rule: Rule | None = None,
    expected: Sequence[np.ndarray[Any, Any]] | None = None,
) -> list[Option]:
    """Runs every option of the rule for this node and returns them; AssertionError names what is wrong.

    ``expected``: what the whole node gives, where it has been run before."""
    expected = whole(case) if expected is None else expected
    written = write(case, world, expected, rule)
    options, graph, first = written.options, written.graph, written.first
    if not options:
        return options
    results = graph.run()
    for number, option in enumerate(options):
        used = [i for i in range(case.outputs) if i not in case.unused_outputs]
        for index, (output, wanted) in enumerate(zip(used, expected, strict=True)):
            parts = [results[first[number, rank] + index] for rank in range(world)]
            joined = join(parts, option.outputs[output])
            where = f"{case} on {world} ranks, {option.inputs} -> {option.outputs}, output {output}"
            assert joined.shape == wanted.shape and joined.dtype == wanted.dtype, (
                f"{where}: {joined.dtype}{joined.shape} instead of {wanted.dtype}{wanted.shape}"
            )
            compare(joined, wanted, case.rtol, where)
    return options


def compare(joined: np.ndarray[Any, Any], whole: np.ndarray[Any, Any], rtol: float, where: str) -> None:
    """Raises `AssertionError` where they differ in shape, or by more than ``rtol`` of the largest value."""
    if whole.dtype.kind != "f":
        np.testing.assert_array_equal(joined, whole, err_msg=where)
        return
    finite = np.abs(whole[np.isfinite(whole)].astype(np.float64))
    scale = float(finite.max()) if finite.size else 1.0
    atol = rtol * max(scale, 1.0)
    alike = joined.shape == whole.shape and finite.size == whole.size
    # As numpy asks it too, in ten times as long.
    if not alike or not (np.abs(joined - whole) <= atol + rtol * np.abs(whole)).all():
        np.testing.assert_allclose(joined, whole, rtol=rtol, atol=atol, err_msg=where)


__all__ = [
    "MICROSOFT", "Case", "Const", "TensorProto", "compare", "cut",
    "join", "kind", "options_of", "prove", "view", "whole", "write",
]  # fmt: skip
