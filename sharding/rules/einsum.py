"""Einsum: each of its indices may be split; one that is summed gives a partial sum."""

from __future__ import annotations

import string
from collections.abc import Sequence

from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import option, summable
from sharding.slices.placement import PARTIAL, Placement, Split


def equation_terms(equation: object, ranks: Sequence[int | None]) -> list[str] | None:
    """The letters of each operand's axes and, last, of the result's; None where they are not known.

    An ellipsis gets letters of its own, aligned from the end; an implicit result is written out.
    """
    text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks) or None in ranks or any(term.count("...") > 1 for term in (*terms, right)):
        return None
    counts = [(rank or 0) - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    if any(count < 0 or (count and "..." not in term) for term, count in zip(terms, counts, strict=True)):
        return None
    spare = [letter for letter in string.ascii_letters if letter not in text]
    most = max(counts)
    if most > len(spare):
        return None
    letters = "".join(spare[:most])
    if not arrow:
        single = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(single)
    if "..." not in right and most:  # to sum them is not what every runtime does
        return None
    shown = [term.replace("...", letters[most - count :]) for term, count in zip(terms, counts, strict=True)]
    result = right.replace("...", letters)
    return [*shown, result] if "".join((*shown, result)).isalpha() or result == "" else None


@rule("Einsum")
def einsum(node: NodeView) -> list[Option]:
    """Equations explicit or implicit; an index repeated in one operand stays whole."""
    ranks = [None if shape is None else len(shape) for shape in node.shapes]
    found = equation_terms(node.attributes.get("equation", ""), ranks)
    if found is None:
        return []
    *terms, right = found
    options = []
    for letter in sorted(set("".join(terms))):
        if any(term.count(letter) > 1 for term in found):
            continue
        owners = [(i, term.index(letter)) for i, term in enumerate(terms) if letter in term]
        lengths = [(node.shapes[i] or ())[axis] for i, axis in owners]
        if len(set(lengths) - {1}) != 1:  # an axis of length 1 is broadcast
            continue
        owners = [owner for owner, length in zip(owners, lengths, strict=True) if length != 1]
        for blocks in node.blocks((set(lengths) - {1}).pop()):
            parts: dict[int, Placement] = {i: Split(axis, blocks) for i, axis in owners}
            if letter in right:
                options.append(option(node, parts, Split(right.index(letter), blocks)))
            elif summable(node.dtypes[0]):
                options.append(option(node, parts, PARTIAL))
    return options
