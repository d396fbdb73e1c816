"""Weights that every rank holds whole, because a cut would cost a collective of its own in every inference.

Each rank needs the whole of the one key and value head that all query heads share, and of the latent from
which queries or keys and values are made. The weight that projects to them makes few numbers from many, and
each rank then goes on with its own heads. A constant mask is added whole to each rank's heads, too. People
who plan by hand hold such weights on every rank. The plan shows which weights these are: what is computed
from them is exchanged, and no longer is once the weight need not be cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sharding.graph.values import shape_of
from sharding.planning.emit import emit_rank
from sharding.rewrite.built_weights import MOVES
from sharding.rules.elementwise import BROADCASTING, UNARY
from sharding.search.problem import counted_weights
from sharding.search.solve import solve
from sharding.search.states import place, settle
from sharding.search.steps import Step
from sharding.slices.placement import REPLICATED, Partial, Placement, Split, is_finer

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.reading.read import Source

NARROW = 2
"""At least so many times as many rows as columns."""
SHARE = 3
"""Together the narrow ones are at most one part in so many of all."""
KEEPING = MOVES | {
    *("Cast", "LayerNormalization", "LpNormalization", "RMSNormalization", "RotaryEmbedding"),
    "SimplifiedLayerNormalization",
}
"""Operators between one head and where it is kept."""
CACHES = {"Attention": (1, 2), "GroupQueryAttention": (1, 2)}
"""Operators that give keys and values back with those of before, and these inputs of them."""
PRODUCTS = frozenset({"FusedMatMul", "Gemm", "MatMul", "MatMulNBits"})
"""Operators whose second input is a weight matrix."""
PLAIN = MOVES | {*UNARY, *BROADCASTING, "Add", "Cast", "Div", "Expand", "Mul", "Neg", "Sub", "Where"}
"""Operators that a mask goes through."""


def hold_whole(source: Source, graph: list[Step], choices: list[int], world: int) -> list[int]:
    """The choices with such weights whole, where that saves collectives; else those that are given."""
    counted = counted_weights(source)
    whole: frozenset[str] = frozenset()
    count: int | None = None

    def better(names: frozenset[str], worth: int) -> bool:
        """Holds these weights whole if that saves so many collectives; whether it does."""
        nonlocal choices, whole, count
        if count is None:
            count = _collectives(source, graph, choices, world)
        tried = settle(source, graph, solve(source, graph, world, whole=whole | names), world)
        fewer = _collectives(source, graph, tried, world)
        if count - fewer >= worth:
            whole, choices, count = whole | names, tried, fewer
            return True
        return False

    rejected: frozenset[str] = frozenset()
    masks = _masks(graph, choices, counted)
    if masks:
        better(masks, 1)
    allowed = sum(source.weights[name].nbytes for name in counted) // SHARE
    for names in sorted(
        _groups(graph, _exchanged(graph, choices), counted, {pair.output for pair in source.state}),
        key=lambda group: sum(source.weights[name].nbytes for name in group),
    ):
        allowed -= sum(source.weights[name].nbytes for name in names)
        if allowed < 0:
            break
        # Keys and values may share a collective; so may one latent and another.
        if not better(names, (len(names) + 1) // 2):
            rejected |= names
            if rejected != names:
                better(rejected, (len(rejected) + 1) // 2)
    return choices


def _collectives(source: Source, graph: Sequence[Step], choices: Sequence[int], world: int) -> int:
    held = place(source, graph, choices, world)
    return len(emit_rank(source, graph, choices, 0, world, state=held).collectives)


def _masks(graph: Sequence[Step], choices: Sequence[int], counted: set[str]) -> frozenset[str]:
    """Weights that are cut, and of which each element is only added to others, or multiplied with them."""
    origin: dict[ir.Value, set[str]] = {}
    cut: set[str] = set()
    other: set[str] = set()
    for step, choice in zip(graph, choices, strict=True):
        constant = True
        names: set[str] = set()
        for value, where in zip(step.inputs, step.options[choice].inputs, strict=True):
            if value is None:
                continue
            if value.is_initializer() and value.name in counted:
                origin[value] = {value.name or ""}
                if where != REPLICATED:
                    cut.add(value.name or "")
            constant = constant and (value in origin or value.is_initializer())
            names |= origin.get(value, set())
        op_type = step.node.op_type
        if names and (step.node.domain or op_type not in PLAIN):
            other |= names
        elif names and (constant or op_type == "Expand"):  # what is cut at run time may go anywhere
            origin.update((value, names) for value in step.node.outputs)
    return frozenset(cut - other)


def _groups(
    graph: Sequence[Step], exchanged: set[ir.Value], counted: set[str], state: set[str]
) -> list[frozenset[str]]:
    """Narrow weights of products that something is exchanged after, those of one shape together: layers
    repeat. Not of a product of what other products gave in parts: these would be exchanged instead."""
    narrow: dict[ir.Value, ir.Value] = {}
    for step in graph:
        if step.node.op_type in PRODUCTS and len(step.node.inputs) > 1:
            weight = _weight(step, counted)
            if weight is not None:
                narrow[step.node.outputs[0]] = weight
    found: dict[tuple[int, ...], set[str]] = {}
    for value in exchanged if narrow else ():
        for product in _products_before(value, exchanged):
            if product in narrow and not _given_back(product, state) and not _of_parts(product, exchanged):
                weight = narrow[product]
                shape = tuple(axis for axis in (weight.shape or ()) if isinstance(axis, int))
                found.setdefault(shape, set()).add(weight.name or "")
    return [frozenset(names) for names in found.values()]


def _given_back(value: ir.Value, state: set[str]) -> bool:
    """Whether a value is an output of the model before it is in another product, as several heads. One head
    or latent that all share is whole on every rank, kept or not. ``state``: outputs that are not gathered."""
    columns = (shape_of(value) or (None,))[-1]
    seen: set[ir.Value] = set()
    waiting = [(value, True)]
    while waiting:
        current, plain = waiting.pop()
        returned = current.is_graph_output() and current.name not in state
        if returned and not (plain and (shape_of(current) or (None,))[-1] == columns):
            return True
        for node, index in current.uses():
            fresh = [] if node.op_type in PRODUCTS else [item for item in node.outputs if item not in seen]
            seen.update(fresh)
            biased = node.op_type == "Add" and all(
                item is None or item.is_initializer() for i, item in enumerate(node.inputs) if i != index
            )
            kept = node.op_type in KEEPING or index in CACHES.get(node.op_type, ())
            still = plain and (biased or kept)
            waiting += [(item, still) for item in fresh]
    return False


def _of_parts(product: ir.Value, exchanged: set[ir.Value]) -> bool:
    """Whether another product stands before this one, and no exchange between."""
    node = product.producer()
    first = node.inputs[0] if node is not None else None
    return first is not None and first not in exchanged and bool(_products_before(first, exchanged))


def _weight(step: Step, counted: set[str]) -> ir.Value | None:
    """The narrow weight of a product, looked for behind what only moves its elements."""
    attributes = step.view.attributes
    shape = step.view.shapes[1]
    rows, columns = attributes.get("K"), attributes.get("N")
    if step.node.op_type != "MatMulNBits" and shape is not None and len(shape) == 2:
        rows, columns = shape[::-1] if attributes.get("transB") else shape
    if not isinstance(rows, int) or not isinstance(columns, int) or columns * NARROW > rows:
        return None
    value = step.node.inputs[1]
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in MOVES or node.domain:
            return None
        value = node.inputs[0]
    return value if value is not None and value.is_initializer() and value.name in counted else None


def _exchanged(graph: Sequence[Step], choices: Sequence[int]) -> set[ir.Value]:
    """The values that a collective moves."""
    held: dict[ir.Value, set[Placement]] = {}
    moved: set[ir.Value] = set()
    for step, choice in zip(graph, choices, strict=True):
        option = step.options[choice]
        for value, wanted in zip(step.inputs, option.inputs, strict=True):
            here = held.get(value) if value is not None else None
            if value is None or here is None or wanted in here or REPLICATED in here:
                continue
            if isinstance(wanted, Split) and any(isinstance(p, Split) and is_finer(wanted, p) for p in here):
                continue
            moved.add(value)
            here.add(REPLICATED if Partial() in here else wanted)
        for value, where in zip(step.node.outputs, option.outputs, strict=True):
            held[value] = {where}
    return moved


def _products_before(value: ir.Value, exchanged: set[ir.Value]) -> set[ir.Value]:
    """The products whose result a value is made of without another exchange or product between."""
    found: set[ir.Value] = set()
    seen: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        current = waiting.pop()
        node = current.producer()
        if current in seen or node is None:
            continue
        seen.add(current)
        if node.op_type in PRODUCTS:
            found.add(current)
            continue
        waiting += [item for item in node.inputs if item is not None and item not in exchanged]
    return found
