"""Splits into fewer parts than ranks: neighbouring ranks hold the same part (see ``Split.copies``).

Grouped key/value heads may be fewer than ranks, and so are the two directions of a recurrent node. The rules
know nothing of this: a rule is asked again for as many ranks as there are parts, and each of its options then
stands for groups of ranks that do the same. Only graphs that need such options get them, and only for axes of
the lengths in question.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from sharding.onnx_files.attributes import integer
from sharding.rules.base import RULES, Dim, Emit, Emitter, NodeView, Option, Values
from sharding.rules.recurrent import reads_both_ways
from sharding.slices.placement import Partial, Placement, Split

HEADS = ("kv_num_heads", "num_heads", "q_num_heads")
"""Attributes of attention operators that count heads."""
DIRECTIONS = 2
"""As many parts has a recurrent node that reads its input from both ends."""
LAYOUT = frozenset({"Concat", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})
"""What stands between such nodes: the states of all directions of all layers are one value."""
ROUNDS = 3
"""Lengths found in one round make others appear in the next: heads that are repeated, then merged."""

Lengths = dict[int, set[int]]
"""copies -> lengths of the axes that are to be split with that many copies."""


def copied_lengths(nodes: Iterable[NodeView]) -> Lengths:
    """The axes that are too short for all ranks, and those that they become when they are merged or repeated.

    A length counts where a Reshape makes an axis of it (heads out of one axis), an attention operator has so
    many heads, or a recurrent one so many directions; the ranks do not divide it, and half, a third, ... of
    the ranks do.
    """
    nodes = list(nodes)
    both_ways = any(reads_both_ways(view) for view in nodes)
    views = [
        view
        for view in nodes
        if view.op_type == "Reshape"
        or _heads(view)
        or reads_both_ways(view)
        or (both_ways and view.op_type in LAYOUT)
    ]
    found: Lengths = {}
    for view in views:
        for length in _short_axes(view):
            copies = _copies(length, view.world)
            if copies is not None:
                found.setdefault(copies, set()).add(length)
    for copies, lengths in found.items():
        offers = [(view, _asked(view, copies)) for view in views]
        for _ in range(ROUNDS):
            more = set(lengths)
            for view, options in offers:
                for option in options:
                    more |= _connected(view, option, lengths)
            if more == lengths:
                break
            lengths.update(more)
    return found


def _asked(view: NodeView, copies: int) -> list[Option]:
    """What a rule that knows copies itself offers with them, else what it does for groups of ranks."""
    own = [option for option in RULES[view.domain, view.op_type](view) if _has_copies(option)]
    return own or options_with_copies(view, copies)


def _heads(view: NodeView) -> list[int]:
    return [integer(view.attributes, name) for name in HEADS if isinstance(view.attributes.get(name), int)]


def _short_axes(view: NodeView) -> list[int]:
    if reads_both_ways(view):
        return [DIRECTIONS]
    axes = [] if view.op_type != "Reshape" else view.output_shapes[0] or ()
    return [length for length in (*axes, *_heads(view)) if isinstance(length, int) and length > 1]


def _copies(length: int, world: int) -> int | None:
    """The fewest copies with which the ranks divide a length; None where none are needed or none will do."""
    fits = [copies for copies in range(1, world) if world % copies == 0 and length % (world // copies) == 0]
    return fits[0] if fits and fits[0] > 1 else None


def _connected(view: NodeView, option: Option, lengths: set[int]) -> set[int]:
    """The lengths of all split axes of an option of which one has a length in question."""
    split = _split_lengths(view, option)
    related = not split.isdisjoint(lengths) or not lengths.isdisjoint(_heads(view))
    return {length for length in split if isinstance(length, int)} if related else set()


def _has_copies(option: Option) -> bool:
    return any(isinstance(p, Split) and p.copies > 1 for p in (*option.inputs, *option.outputs))


def _split_lengths(view: NodeView, option: Option, axes: int = 1) -> set[Dim]:
    """The lengths of the axes that an option splits, of values with that many axes or more; of a rule that
    knows copies itself, with copies."""
    shapes = (*view.shapes, *view.output_shapes)
    least = 2 if _has_copies(option) else 1
    found: set[Dim] = set()
    for placement, shape in zip((*option.inputs, *option.outputs), shapes, strict=False):
        if isinstance(placement, Split) and placement.copies >= least:
            if shape is not None and len(shape) < axes:
                continue
            known = shape is not None and placement.axis < len(shape)
            found.add(shape[placement.axis] if known and shape is not None else None)
    return found


def copied_options(view: NodeView, lengths: Lengths) -> list[Option]:
    """What else a node can do with copies of parts: options that split axes of these lengths alone.

    Vectors (biases, scales of blocks in a row) follow what they belong to, whatever their length.
    """
    return [
        option
        for copies, wanted in lengths.items()
        for option in options_with_copies(view, copies)
        if (split := _split_lengths(view, option, 2) or _split_lengths(view, option)) and split <= wanted
    ]


def options_with_copies(view: NodeView, copies: int) -> list[Option]:
    """The rule's options on as many ranks as there are parts, for groups of ``copies`` ranks."""
    plain = RULES[view.domain, view.op_type](replace(view, world=view.world // copies))
    return [
        Option(
            tuple(_copied(placement, copies) for placement in option.inputs),
            tuple(_copied(placement, copies) for placement in option.outputs),
            None if option.emit is None else partial(_emit, option.emit, copies),
            divides_work=option.divides_work,
            seconds=option.seconds,
        )
        for option in plain
        if not any(isinstance(placement, Partial) for placement in (*option.inputs, *option.outputs))
    ]


def _copied(placement: Placement, copies: int) -> Placement:
    return replace(placement, copies=placement.copies * copies) if isinstance(placement, Split) else placement


def _emit(emit: Emit, copies: int, e: Emitter, values: Values) -> Values:
    return emit(_Group(e, copies), values)


class _Group:
    """An emitter as a rule sees it that knows only of the groups of ranks: one rank for each."""

    def __init__(self, emitter: Emitter, copies: int) -> None:
        self.rank, self.world = emitter.rank // copies, emitter.world // copies
        self.version = emitter.version
        self.copy, self.op, self.constant = emitter.copy, emitter.op, emitter.constant
