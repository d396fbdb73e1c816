"""What the open lengths of a model count as where plans are estimated.

A user may say it. Else a decoder with a cache is planned for one new token, for so it is run but once; what
is right for every length is the plan itself, whose parts never lie along an open axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sharding.errors import OptionError
from sharding.graph.sizes import NAME, SYMBOL_LENGTH, Sizes
from sharding.graph.symbols import shown_shape
from sharding.slices.state_names import TOKENS
from sharding.slices.state_use import SLOTS, Slot

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.reading.read import Source

_TOKENS = (*TOKENS, "position_ids")
_PAST = {operator: [slot for slot in slots if slot.axis is not None] for operator, slots in SLOTS.items()}
"""Of attention operators: what takes keys and values of earlier tokens, and gives them with the new ones."""
_PASSED = {"Identity", "Cast", "Transpose"}


def expected_sizes(source: Source, given: Mapping[str, int]) -> Sizes:
    """The lengths that symbols count as: ``given``, and defaults that follow from the model's inputs.

    Raises `OptionError` for a name that no input has.
    """
    inputs = list(source.model.graph.inputs)
    _check(source, inputs, given)
    later = _symbols(inputs)
    first = {axes[0] for value in inputs if (axes := shown_shape(value)) and isinstance(axes[0], str)}
    rows = frozenset(name for name in first - later if name.isidentifier())
    caches, longer = _caches(source)
    if not caches:
        return Sizes({name: max(1, length) for name, length in given.items()}, rows)
    past = _symbols(caches)
    new = _new_tokens(source, caches, longer) - past
    lengths = dict.fromkeys(sorted(new), 1)
    lengths |= {name: max(1, length) for name, length in given.items()}
    # A mask covers both.
    total = max((lengths.get(name, SYMBOL_LENGTH) for name in past), default=SYMBOL_LENGTH)
    total += max((lengths[name] for name in new), default=1)
    for name in sorted((_symbols(longer) & later) - past - new):
        lengths.setdefault(name, total)
    return Sizes(lengths, rows)


def _check(source: Source, inputs: Sequence[ir.Value], given: Mapping[str, int]) -> None:
    symbols = [axis for value in inputs for axis in shown_shape(value) or () if isinstance(axis, str)]
    known = {*symbols, *(name for text in symbols for name in NAME.findall(text))}
    for name, length in given.items():
        if name not in known:
            has = f"it has {', '.join(dict.fromkeys(symbols))}" if symbols else "all its lengths are fixed"
            raise OptionError(
                f"{source.path}: no input has an open length {name!r}, which is to be {length}: {has}."
            )
        if not isinstance(length, int) or isinstance(length, bool) or length < 0:
            raise OptionError(
                f"{source.path}: the length {name!r} must be a whole number, but is {length!r}."
            )


def _symbols(values: Iterable[ir.Value]) -> set[str]:
    """The symbols of all axes but the first."""
    return {axis for value in values for axis in (shown_shape(value) or ())[1:] if isinstance(axis, str)}


def _caches(source: Source) -> tuple[list[ir.Value], set[ir.Value]]:
    """The inputs that are keys and values, or states, of earlier tokens, and the outputs that they are with
    what is new: so named, read as such by an attention operator, or lengthened and then given out."""
    graph = source.model.graph
    caches, longer = [], {value for value in graph.outputs if "present" in (value.name or "").lower()}
    for value in graph.inputs:
        uses = list(_uses(value))
        found = {output for node, index in uses for output in _lengthened(node, index)}
        given = found.intersection(graph.outputs)
        read = any(_slot(node, index) is not None for node, index in uses)
        if len(shown_shape(value) or ()) > 2 and (given or read or "past" in (value.name or "").lower()):
            caches.append(value)
            longer |= given
    return caches, longer


def _uses(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """The uses of a value, also behind nodes that only pass it on."""
    waiting = [value]
    while waiting:
        for node, index in waiting.pop().uses():
            if node.op_type in _PASSED and not node.domain:
                waiting.append(node.outputs[0])
            else:
                yield node, index


def _slot(node: ir.Node, index: int) -> Slot | None:
    """What takes keys and values as a node's input of this number."""
    return next((slot for slot in _PAST.get(node.op_identifier()[:2], ()) if slot.past == index), None)


def _lengthened(node: ir.Node, index: int) -> Iterator[ir.Value]:
    """What a node makes of a cache that is its input of this number, also behind nodes that only pass it."""
    slot = _slot(node, index)
    if slot is not None:
        waiting = list(node.outputs[slot.present : slot.present + 1])
    elif node.op_type == "Concat" and sum(not v.is_initializer() for v in node.inputs if v is not None) > 1:
        waiting = [node.outputs[0]]
    else:
        waiting = []
    while waiting:
        value = waiting.pop()
        yield value
        waiting += [user.outputs[0] for user, _ in value.uses() if user.op_type in _PASSED]


def _new_tokens(source: Source, caches: Sequence[ir.Value], longer: set[ir.Value]) -> set[str]:
    """The symbols of how many tokens are new: of the inputs that are tokens by name, or of those lengths that
    what is computed for each of them has too."""
    others = [value for value in source.model.graph.inputs if value not in caches]
    named = _symbols(value for value in others if any(text in (value.name or "") for text in _TOKENS))
    results = (value for value in source.model.graph.outputs if value not in longer)
    return named or (_symbols(others) & _symbols(results))
