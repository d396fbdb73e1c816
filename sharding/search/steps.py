"""A graph as the solver sees it: one step per node, with all that the node can do."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sharding.graph.fold import small_constant
from sharding.graph.values import captured, plain_attribute, shape_of
from sharding.rules import RULES
from sharding.rules.base import NodeView, Option
from sharding.rules.blocks import Offer, block_counts, offered
from sharding.search.copies import copied_lengths, copied_options
from sharding.search.exchanges import exchanging_options
from sharding.search.randomness import drawn_once, draws
from sharding.search.refusals import may_refuse
from sharding.slices.placement import REPLICATED, Placement, Split

logger = logging.getLogger(__name__)

WRITING_OPSET = 9
"""The first opset with what options write besides the node itself: Where, comparisons of integers (and before
opset 7 ONNX Runtime has no arithmetic)."""

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.reading.read import Source


@dataclass
class Step:
    """One node. ``inputs`` holds its inputs and then the outer values that its subgraphs use."""

    node: ir.Node
    view: NodeView
    inputs: tuple[ir.Value | None, ...]
    options: list[Option]
    """The first one keeps everything whole, unless the node draws random numbers."""


def steps(source: Source, world: int, *, apart: bool = False) -> list[Step]:
    """The graph's nodes in order, each with its options for this world size.

    ``apart``: the parts are not computed together, so one may refuse its indices and the others not.
    """
    graph, opsets = source.model.graph, source.model.opset_imports
    functions = {(identifier[0], identifier[1]) for identifier in source.model.functions}
    nodes = _constants_late(graph, {pair.input for pair in source.state})
    views = [node_view(node, opsets, world) for node in nodes]
    plain = [_offered(node, view, functions) for node, view in zip(nodes, views, strict=True)]
    can_write = opsets.get("", 1) >= WRITING_OPSET
    known = [view for view, offer in zip(views, plain, strict=True) if offer is not None]
    offers = [offer for offer in plain if offer is not None]
    counts = block_counts(offers)
    latest = iter(offers)
    lengths = copied_lengths(known) if world > 2 else {}
    result = []
    for node, bare, has_rule in zip(nodes, views, plain, strict=True):
        view = replace(bare, block_counts=counts) if counts else bare
        offer = None if has_rule is None else next(latest)
        inputs = (*node.inputs, *captured(node))
        whole = Option((REPLICATED,) * len(inputs), (REPLICATED,) * len(node.outputs), divides_work=False)
        options = [whole]
        if world > 1 and draws(node, source.model.functions):
            options = [drawn_once(node, inputs, source.path, can_write=can_write)]
        elif world > 1 and (node.domain, node.op_type) not in functions:
            step_values = (*node.inputs, *node.outputs)
            own = exchanging_options(view, source.sizes)
            if offer is not None:
                own += [*offer.options, *copied_options(view, lengths)]
            options += [
                option
                for option in own
                if _usable(option, step_values, world)
                and (option.emit is None or can_write)
                and (apart or not may_refuse(view, option, node.inputs))
            ]
        result.append(Step(node, view, inputs, options))
    return result


def _constants_late(graph: ir.Graph, state: Collection[str] = ()) -> list[ir.Node]:
    """The graph's nodes in order, but those that compute with weights or state alone only just before they
    are needed.

    The solver then decides on a transposed or converted weight together with its use, and one pipeline stage
    has all that a state is used for.
    """
    waiting: dict[ir.Node, None] = {}
    constants = {*graph.initializers.values(), *(value for value in graph.inputs if value.name in state)}
    order: list[ir.Node] = []

    def place(node: ir.Node) -> None:
        pending = [(node, iter((*node.inputs, *captured(node))))]
        while pending:  # depth first, without recursion: a chain may be long
            current, inputs = pending[-1]
            needed = (value.producer() for value in inputs if value is not None)
            producer = next((item for item in needed if item in waiting), None)
            if producer is None:
                pending.pop()
                order.append(current)
            else:
                del waiting[producer]
                pending.append((producer, iter(producer.inputs)))

    outputs = set(graph.outputs)
    for node in graph:
        late = bool(node.inputs) and all(value is None or value in constants for value in node.inputs)
        if late and not captured(node) and not outputs.intersection(node.outputs):
            waiting[node] = None
            constants.update(node.outputs)
        else:
            place(node)
    return order


def _offered(node: ir.Node, view: NodeView, functions: set[tuple[str, str]]) -> Offer | None:
    """What the node's rule offers; None where it has none, or cannot be asked."""
    if (node.domain, node.op_type) in functions or (view.domain, view.op_type) not in RULES:
        return None
    if any(attribute.is_ref() for attribute in node.attributes.values()) or captured(node):
        return None
    try:
        return offered(view, {})
    except Exception as error:  # a node that is not what its operator demands: whole is always right
        logger.warning("%s %r stays whole: %s.", node.op_type, node.name, error)
        return None


def node_view(node: ir.Node, opsets: dict[str, int], world: int) -> NodeView:
    """What a rule may know of this node."""
    return NodeView(
        op_type=node.op_type,
        domain=node.domain,
        version=opsets.get(node.domain, 1),
        world=world,
        attributes={
            name: plain_attribute(item) for name, item in node.attributes.items() if not item.is_ref()
        },
        shapes=[shape_of(value) for value in node.inputs],
        dtypes=[
            None if v is None or v.dtype is None or v.dtype.name == "STRING" else v.dtype.numpy()
            for v in node.inputs
        ],
        constants=[None if value is None else small_constant(value) for value in node.inputs],
        present=[value is not None for value in node.inputs],
        output_shapes=[shape_of(value) for value in node.outputs],
    )


def _usable(option: Option, values: tuple[ir.Value | None, ...], world: int) -> bool:
    """Whether a rule's option fits the node: what it splits or sums has a known type and known axes.

    An output without a name is not made, so nothing is known of it.
    """
    placements = (*option.inputs, *option.outputs)
    return len(placements) == len(values) and all(
        placement == REPLICATED or (value is not None and not value.name) or fits(placement, value, world)
        for placement, value in zip(placements, values, strict=True)
    )


def fits(placement: Placement, value: ir.Value | None, world: int) -> bool:
    """Whether a value is known to have such parts: of known type and rank, and the axis divides."""
    shape = shape_of(value)
    if value is None or value.dtype is None or shape is None:
        return False
    if not isinstance(placement, Split):
        return True
    length = shape[placement.axis] if placement.axis < len(shape) else None
    if not isinstance(length, int) or length <= 0 or world % placement.copies:
        return False
    return length % (placement.parts(world) * placement.blocks) == 0
