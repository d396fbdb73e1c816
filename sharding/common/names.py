"""Names that nothing in a graph has yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


class Names:
    """Names that are taken; thousands may want the same one."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)
        self.numbers: dict[str, int] = {}

    def fresh(self, wanted: str) -> str:
        """This name, or the first of name_1, name_2, ... that is not taken; it is from now on."""
        name, number = wanted, self.numbers.get(wanted, 0)
        while name in self.taken:
            number += 1
            name = f"{wanted}_{number}"
        self.numbers[wanted] = number
        self.taken.add(name)
        return name


def all_names(model: ir.Model) -> set[str]:
    """The names of all values in a model, in its subgraphs too: what slicing adds must not clash."""
    names: set[str] = set()
    for graph in model.graphs():
        names.update(value.name or "" for value in (*graph.inputs, *graph.initializers.values()))
        for node in graph:
            names.update(value.name or "" for value in node.outputs)
    return names
