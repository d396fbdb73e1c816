"""What the open lengths of a model count as where plans are estimated.

A user may say it. Else a decoder with a cache is planned for one new token, for so it is run but once; what
is right for every length is the plan itself, whose parts never lie along an open axis.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sharding.cost import SYMBOL_LENGTH, Sizes
from sharding.errors import OptionError
from sharding.values import shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.read import Source

_NAME = re.compile(r"[^\W\d]\w*")
_TOKENS = re.compile(r"input_ids|inputs_embeds|position_ids")
_PAST = {
    ("", "Attention"): (4, 5),
    ("com.microsoft", "Attention"): (4,),
    ("com.microsoft", "MultiHeadAttention"): (6, 7),
    ("com.microsoft", "GroupQueryAttention"): (3, 4),
}
"""Inputs of attention operators that are keys and values of earlier tokens."""
_PASSED = {"Identity", "Cast", "Transpose"}


def expected_sizes(source: Source, given: Mapping[str, int]) -> Sizes:
    """The lengths that symbols count as: ``given``, and defaults that follow from the model's inputs.

    Raises `OptionError` for a name that no input has.
    """
    inputs, caches = list(source.model.graph.inputs), _caches(source)
    _check(source, inputs, given)
    later = _symbols(inputs)
    first = {axes[0] for value in inputs if (axes := shape_of(value)) and isinstance(axes[0], str)}
    past = _symbols(caches)
    new = _new_tokens(source, caches) - past if caches else set()
    lengths = dict.fromkeys(sorted(new), 1)
    lengths |= {name: max(1, length) for name, length in given.items()}
    if caches:  # a mask covers both
        held = max((lengths.get(name, SYMBOL_LENGTH) for name in past), default=SYMBOL_LENGTH)
        total = held + max((lengths[name] for name in new), default=1)
        outputs = [value for value in source.model.graph.outputs if _is_like_a_cache(value, caches)]
        for name in sorted((_symbols(outputs) & later) - past - new):
            lengths.setdefault(name, total)
    return Sizes(lengths, frozenset(name for name in first - later if name.isidentifier()))


def _check(source: Source, inputs: Sequence[ir.Value], given: Mapping[str, int]) -> None:
    symbols = [axis for value in inputs for axis in shape_of(value) or () if isinstance(axis, str)]
    known = {*symbols, *(name for text in symbols for name in _NAME.findall(text))}
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
    return {axis for value in values for axis in (shape_of(value) or ())[1:] if isinstance(axis, str)}


def _caches(source: Source) -> list[ir.Value]:
    """The inputs that are keys and values, or states, of earlier tokens: so named, read as such by an
    attention operator, or lengthened by what is new and then given out."""
    outputs = set(source.model.graph.outputs)
    return [
        value
        for value in source.model.graph.inputs
        if len(shape_of(value) or ()) > 2
        and ("past" in (value.name or "").lower() or any(_lengthens(use, outputs) for use in _uses(value)))
    ]


def _uses(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """The uses of a value, also behind nodes that only pass it on."""
    waiting = [value]
    while waiting:
        for node, index in waiting.pop().uses():
            if node.op_type in _PASSED and not node.domain:
                waiting.append(node.outputs[0])
            else:
                yield node, index


def _lengthens(use: tuple[ir.Node, int], outputs: set[ir.Value]) -> bool:
    node, index = use
    if index in _PAST.get((node.domain, node.op_type), ()):
        return True
    if node.op_type != "Concat" or node.domain or sum(not v.is_initializer() for v in node.inputs if v) < 2:
        return False
    waiting = [node.outputs[0]]
    while waiting:
        value = waiting.pop()
        if value in outputs:
            return True
        waiting += [n.outputs[0] for n, _ in value.uses() if n.op_type in _PASSED and not n.domain]
    return False


def _new_tokens(source: Source, caches: Sequence[ir.Value]) -> set[str]:
    """The symbols of how many tokens are new: of the inputs that are tokens by name, or of those lengths that
    what is computed for each of them has too."""
    others = [value for value in source.model.graph.inputs if value not in caches]
    named = _symbols(value for value in others if _TOKENS.search(value.name or ""))
    results = (value for value in source.model.graph.outputs if not _is_like_a_cache(value, caches))
    return named or (_symbols(others) & _symbols(results))


def _is_like_a_cache(value: ir.Value, caches: Sequence[ir.Value]) -> bool:
    """Whether an output is a cache with the new tokens: of as many axes, and longer or so named."""
    axes = shape_of(value)
    return "present" in (value.name or "") or any(
        axes is not None and len(axes) == len(own) and axes[1:] != own[1:] and axes[-1] == own[-1]
        for cache in caches
        if (own := shape_of(cache))
    )
