"""Einsum: each of its indices may be split; one that is summed gives a partial sum."""

from __future__ import annotations

from sharding.placement import PARTIAL, Placement, Split
from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import option, summable


@rule("Einsum")
def einsum(node: NodeView) -> list[Option]:
    """Equations without ellipsis, explicit or implicit; an index repeated in one operand stays whole."""
    equation = node.attributes.get("equation", "")
    text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if "." in text or len(terms) != len(node.shapes):
        return []
    if not arrow:
        right = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    if any(shape is None or len(shape) != len(term) for term, shape in zip(terms, node.shapes, strict=True)):
        return []
    options = []
    for letter in sorted(set(left) - {","}):
        if any(term.count(letter) > 1 for term in (*terms, right)):
            continue
        owners = [(i, term.index(letter)) for i, term in enumerate(terms) if letter in term]
        lengths = {(node.shapes[i] or ())[axis] for i, axis in owners}
        if len(lengths) != 1:
            continue
        for blocks in node.blocks(lengths.pop()):
            parts: dict[int, Placement] = {i: Split(axis, blocks) for i, axis in owners}
            if letter in right:
                options.append(option(node, parts, Split(right.index(letter), blocks)))
            elif summable(node.dtypes[0]):
                options.append(option(node, parts, PARTIAL))
    return options
