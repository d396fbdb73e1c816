"""Which steps never run in the same inference: those of the two branches of an `If`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sharding.rules.flow import FLOW

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.search.steps import Step

Path = tuple[tuple[int, int], ...]
"""The bodies around a step, from the outermost in: the number of the control-flow node, and of its body."""


def paths(graph: Sequence[Step]) -> list[Path]:
    """For each step the bodies that it lies in."""
    known: dict[ir.Value, Path] = {}
    found: list[Path] = []
    for step in graph:
        node = step.node
        path = max((known.get(value, ()) for value in step.inputs if value is not None), key=len, default=())
        if node.domain == FLOW:
            region = node.attributes["region"].as_int()
            outside = tuple(place for place in path if place[0] != region)
            branch = node.attributes["branch"].as_int() if "branch" in node.attributes else 0
            entering = node.op_type in {"Enter", "Carry", "Element", "Turn"}
            path = (*outside, (region, branch)) if entering else outside
        known.update(dict.fromkeys(node.outputs, path))
        found.append(path)
    return found


def ways(places: Sequence[Path]) -> list[list[int]]:
    """The steps that run where every `If` takes its first branch, and where each takes its second; none where
    there is no `If`."""
    forks = {region for path in places for region, branch in path if branch}
    if not forks:
        return []
    return [
        [
            index
            for index, path in enumerate(places)
            if all(region not in forks or branch == taken for region, branch in path)
        ]
        for taken in (0, 1)
    ]


def most_at_once(places: Iterable[Path]) -> int:
    """Of steps in these bodies the most that one inference runs, each body counted once."""
    count = 0
    inner: dict[int, dict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in places:
        if path:
            (region, branch), *rest = path
            inner[region][branch].append(tuple(rest))
        else:
            count += 1
    return count + sum(max(map(most_at_once, branches.values())) for branches in inner.values())
