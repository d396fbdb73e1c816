"""Where values pass into and out of the bodies of control flow that is planned with the graph around it.

`sharding.reading.bodies` puts the nodes of a body into the main graph, between these markers, and
`sharding.planning.regroup` makes a body of them again. Attributes: ``region`` numbers the control-flow node,
``branch`` its bodies (0: then, 1: else), ``index`` a loop's values. None of them computes anything.

    Enter(x)                        a value from outside, as the nodes of a body read it
    Leave(condition, then, else)    an output of an If
    Turn() -> number, condition     what a Loop tells its body
    Carry(first)                    a value carried from turn to turn, as the body reads it
    Element(x)                      what a Scan gives its body of an input
    Back(next) -> token             what a body gives for a carried value
    Ran(count, first, next, token...) -> token   a Loop or Scan, once all that it carries is known
    Last(ran, next)                 a carried value after the last turn
    Stack(ran, element)             what a body gives turn by turn, stacked
"""

from __future__ import annotations

from sharding.onnx_files.attributes import integer
from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import Shape, moved, option, partial_option, splits, summable
from sharding.slices.placement import PARTIAL, REPLICATED

FLOW = "shardrun.flow"


def _passed(node: NodeView, source: int, shape: Shape | None) -> list[Option]:
    """An input of that number at any split of this shape, and the output alike."""
    return [option(node, {source: split}, split, divides_work=False) for split in splits(node, shape)]


@rule("Enter", domain=FLOW, gives=(0,))
def enter(node: NodeView) -> list[Option]:
    """However the value is placed outside, so it is inside."""
    return _passed(node, 0, node.shapes[0]) + partial_option(node)


@rule("Leave", domain=FLOW)
def leave(node: NodeView) -> list[Option]:
    """Both branches give their value at one placement."""
    then, other = node.shapes[1], node.shapes[2]
    shared = [split for split in splits(node, then) if split in set(splits(node, other))]
    found = [option(node, {1: split, 2: split}, split, divides_work=False) for split in shared]
    if summable(node.dtypes[1]) and summable(node.dtypes[2]):
        found.append(option(node, {1: PARTIAL, 2: PARTIAL}, PARTIAL, divides_work=False))
    return found


@rule("Carry", domain=FLOW)
def carry(node: NodeView) -> list[Option]:
    """The first value at the placement that it keeps in all turns, along an axis of lasting length."""
    return _passed(node, 0, node.output_shapes[0])


@rule("Back", domain=FLOW)
def back(node: NodeView) -> list[Option]:
    """The value of the next turn; that it is placed as the one before is the search's to see to."""
    splitting = splits(node, node.shapes[0])
    return [option(node, {0: split}, REPLICATED, divides_work=False) for split in splitting]


@rule("Last", domain=FLOW)
def last(node: NodeView) -> list[Option]:
    """As the body gives it."""
    return _passed(node, 1, node.shapes[1])


@rule("Element", domain=FLOW)
def element(node: NodeView) -> list[Option]:
    """Any axis but the one that the turns go along."""
    shape, axis = node.shapes[0] or (), _axis(node, node.shapes[0])
    left = {own: own - (own > axis) for own in range(len(shape)) if own != axis}
    return moved(node, left, divides_work=False)


@rule("Stack", domain=FLOW)
def stack(node: NodeView) -> list[Option]:
    """Any axis; the new one goes before or after it."""
    shape, axis = node.shapes[1] or (), _axis(node, node.output_shapes[0])
    return moved(node, {own: own + (own >= axis) for own in range(len(shape))}, 1, divides_work=False)


def _axis(node: NodeView, shape: Shape | None) -> int:
    axis = integer(node.attributes, "axis", 0)
    return axis + len(shape or ()) if axis < 0 else axis
