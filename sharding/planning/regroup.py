"""The nodes of opened bodies put back into bodies: what `sharding.reading.bodies` took apart, for one rank.

A node belongs to the body whose values it reads: everything that enters a body passes a marker
(`sharding.rules.flow`). What is computed from constants alone belongs where it is used.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sharding.graph.values import captured, captured_names, use_instead
from sharding.rules.flow import FLOW

if TYPE_CHECKING:
    import onnx_ir as ir

Home = tuple[int, int]
"""A region and one of its bodies."""
MAIN: Home = (-1, 0)


@dataclass
class _Region:
    """One control-flow node."""

    number: int
    parent: Home = MAIN
    markers: dict[str, list[ir.Node]] = field(default_factory=dict)

    def of(self, *op_types: str) -> list[ir.Node]:
        """Its markers of these types, each type in the order of its values."""
        return [
            node
            for op_type in op_types
            for node in sorted(self.markers.get(op_type, ()), key=lambda node: _number(node, "index"))
        ]


def regroup(
    nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], inputs: Iterable[ir.Value]
) -> tuple[list[ir.Node], list[ir.Value]]:
    """The nodes with their bodies, in order, and the outputs, which may be other values now.

    ``inputs``: the graph's inputs, which tell what depends on them from what is constant.
    """
    if not any(node.domain == FLOW for node in nodes):
        return list(nodes), list(outputs)
    return _Regrouper(nodes, outputs, inputs).run()


def _number(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    return -1 if attribute is None else attribute.as_int()


def _region_of(node: ir.Node) -> int:
    return _number(node, "region")


class _Regrouper:
    def __init__(
        self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], inputs: Iterable[ir.Value]
    ) -> None:
        import onnx_ir as ir

        self.ir = ir
        self.nodes, self.outputs = nodes, list(outputs)
        self.by_name = {value.name: value for node in nodes for value in node.outputs if value.name}
        self.by_name.update({value.name: value for value in inputs if value.name})
        self.home: dict[ir.Value, Home] = dict.fromkeys(inputs, MAIN)
        """Of all that depends on the inputs; what is not in it is constant."""
        self.regions: dict[int, _Region] = {}
        for node in nodes:
            if node.domain == FLOW:
                region = self.regions.setdefault(_region_of(node), _Region(_region_of(node)))
                region.markers.setdefault(node.op_type, []).append(node)
        self.order = {node: index for index, node in enumerate(nodes)}
        self.bodies: dict[Home, list[ir.Node]] = {}
        self.finished: set[ir.Node] = set()
        """Control-flow nodes that have their bodies."""

    def run(self) -> tuple[list[ir.Node], list[ir.Value]]:
        self._find_homes()
        self._place()
        for region in sorted(self.regions.values(), key=lambda item: -self._depth((item.number, 0))):
            self._finish(region)
        return self._sorted(self.bodies.get(MAIN, [])), self.outputs

    def _reads(self, node: ir.Node) -> list[ir.Value]:
        hidden = [self.by_name.get(name) for name in captured_names(node)]
        if node in self.finished:
            hidden += captured(node)
        return [value for value in (*node.inputs, *hidden) if value is not None]

    def _path(self, home: Home) -> list[Home]:
        """The bodies that a body lies in, from the outermost in, and itself."""
        path = [home]
        while path[0] != MAIN:
            path.insert(0, self.regions[path[0][0]].parent)
        return path

    def _depth(self, home: Home) -> int:
        return len(self._path(home))

    def _deepest(self, values: Iterable[ir.Value | None]) -> Home | None:
        """The innermost body that values come from; None where all are constant."""
        homes = {self.home[value] for value in values if value in self.home}
        return max(homes, key=self._depth) if homes else None

    def _find_homes(self) -> None:
        """Where each value is made. What leaves a body is made where its node stands, and that shows once
        all that enters has been seen, so the nodes are gone through until nothing changes."""
        changed = True
        while changed:
            changed = False
            for node in self.nodes:
                home = self._home_of(node)
                if home is not None and any(self.home.get(value) != home for value in node.outputs):
                    self.home.update(dict.fromkeys(node.outputs, home))
                    changed = True

    def _home_of(self, node: ir.Node) -> Home | None:
        if node.domain != FLOW:
            found = self._deepest(self._reads(node))
            return MAIN if found is None and not self._reads(node) else found
        region = self.regions[_region_of(node)]
        if node.op_type in {"Enter", "Carry", "Element", "Turn"}:
            outside = self._deepest(node.inputs)
        elif node.op_type == "Leave":
            outside = self._deepest(node.inputs[:1])
        else:
            outside = self._deepest(node.inputs[:2]) if node.op_type == "Ran" else None
        if outside is not None and self._depth(outside) > self._depth(region.parent):
            region.parent = outside
        if node.op_type in {"Leave", "Ran", "Last", "Stack"}:
            return region.parent
        return region.number, max(0, _number(node, "branch"))

    def _place(self) -> None:
        """Puts each node into its body; one of constants alone into the innermost with all its users."""
        wanted: dict[ir.Value, list[Home]] = {}

        def want(value: ir.Value | None, home: Home) -> None:
            if value is not None and value not in self.home:
                wanted.setdefault(value, []).append(home)

        for value in self.outputs:
            want(value, MAIN)
        for node in reversed(self.nodes):
            if node.domain == FLOW:
                region = self.regions[_region_of(node)]
                for index, operand in enumerate(node.inputs):
                    inside = (
                        node.op_type == "Back"
                        or (node.op_type in {"Leave", "Last", "Stack"} and index > 0)
                        or (node.op_type == "Ran" and index == 2)
                    )
                    branch = index - 1 if node.op_type == "Leave" else 0
                    want(operand, (region.number, branch) if inside else region.parent)
                continue
            home = self.home.get(node.outputs[0]) if node.outputs else self._home_of(node)
            if home is None:
                homes = [item for value in node.outputs for item in wanted.get(value, ())]
                home = self._common(homes)
            for value in self._reads(node):
                want(value, home)
            self.bodies.setdefault(home, []).append(node)
        for members in self.bodies.values():
            members.reverse()

    def _common(self, homes: Sequence[Home]) -> Home:
        """The innermost body that holds all these."""
        found = MAIN
        for step in zip(*map(self._path, homes), strict=False):
            if len(set(step)) > 1:
                break
            found = step[0]
        return found

    # Bodies.

    def _finish(self, region: _Region) -> None:
        if region.of("Ran"):
            self._finish_loop(region)
        leaves = region.of("Leave")
        if not leaves:  # a loop, or nothing of it is used
            return
        branches = []
        for branch in (0, 1):
            given = [leave.inputs[1 + branch] for leave in leaves]
            branches.append(self._body(region, branch, given, []))
        attributes = [
            self.ir.AttrGraph(name, graph)
            for name, graph in zip(("then_branch", "else_branch"), branches, strict=True)
        ]
        self._add(region, "If", [leaves[0].inputs[0]], attributes, leaves)

    def _finish_loop(self, region: _Region) -> None:
        (ran,) = region.of("Ran")
        scan = bool(_number(ran, "scan"))
        carries, elements, backs = region.of("Carry"), region.of("Element"), region.of("Back")
        stacks = region.of("Stack")
        formals = [self._formal(value) for marker in region.of("Turn") for value in marker.outputs]
        if not scan and not formals:  # no turn asks for its number
            formals = [self._told(region, "turn", "INT64"), self._told(region, "going", "BOOL")]
        formals += [self._formal(marker.outputs[0]) for marker in (*carries, *elements)]
        results = [back.inputs[0] for back in backs] + [stack.inputs[1] for stack in stacks]
        body = self._body(region, 0, [*([] if scan else [ran.inputs[2]]), *results], formals)
        first = [marker.inputs[0] for marker in (*carries, *elements)]
        attributes = [self.ir.AttrGraph("body", body)]
        if scan:
            attributes.append(self.ir.AttrInt64("num_scan_inputs", len(elements)))
            for what, markers in (("input", elements), ("output", stacks)):
                for name, key in (("axes", "axis"), ("directions", "backward")):
                    numbers = [_number(marker, key) for marker in markers]
                    if any(numbers):
                        attributes.append(self.ir.AttrInt64s(f"scan_{what}_{name}", numbers))
        inputs = first if scan else [*ran.inputs[:2], *first]
        lasts = {_number(marker, "index"): marker for marker in region.of("Last")}
        left: list[ir.Node | None] = [lasts.get(_number(carry, "index")) for carry in carries]
        self.order[ran] = max(self.order[marker] for marker in (ran, *stacks, *lasts.values()))
        self._add(region, "Scan" if scan else "Loop", inputs, attributes, [*left, *stacks], ran)

    def _formal(self, value: ir.Value) -> ir.Value:
        """A marker's output as an input of the body."""
        formal = self.ir.Value(type=value.type, shape=value.shape)
        self._instead(value, formal)
        return formal

    def _instead(self, marked: ir.Value, value: ir.Value) -> None:
        """A value in the place of a marker's output, under its name."""
        value.name, marked.name = marked.name, f"{marked.name}/marker"
        use_instead(marked, value)

    def _told(self, region: _Region, what: str, kind: str) -> ir.Value:
        """An input that no turn reads."""
        dtype, name = self.ir.DataType[kind], region.of("Ran")[0].attributes["name"].as_string()
        return self.ir.Value(name=f"{name}/{what}", type=self.ir.TensorType(dtype), shape=self.ir.Shape([]))

    def _body(
        self, region: _Region, branch: int, given: Sequence[ir.Value | None], inputs: Sequence[ir.Value]
    ) -> ir.Graph:
        """One body: what enters is used under its name outside; each output is made by a node of its own."""
        home = (region.number, branch)
        members = self.bodies.setdefault(home, [])
        named = {name for node in members for name in captured_names(node)}
        for marker in region.of("Enter"):
            if _number(marker, "branch") != branch:
                continue
            inside, outside = marker.outputs[0], marker.inputs[0]
            assert outside is not None
            if inside.name in named:
                members.insert(0, self._identity(outside, inside))
                self.order[members[0]] = self.order[marker]
                continue
            use_instead(inside, outside)
            given = [outside if value is inside else value for value in given]
        made = {value for node in members for value in node.outputs}
        outputs: list[ir.Value] = []
        for value in given:
            assert value is not None
            if value not in made or value in outputs:
                copy = self._identity(value)
                members.append(copy)
                self.order[copy] = len(self.order)
                value = copy.outputs[0]  # noqa: PLW2901 - the same under another name
            outputs.append(value)
        members = self.bodies[home] = self._sorted(members)
        name = region.of("Leave", "Ran")[0].attributes["name"].as_string()
        return self.ir.Graph(
            inputs, outputs, nodes=members, name=f"{name}/{('then', 'else')[branch]}" if not inputs else name
        )

    def _identity(self, value: ir.Value, like: ir.Value | None = None) -> ir.Node:
        node = self.ir.Node("", "Identity", [value], num_outputs=1, name=f"{value.name}/passed")
        output = node.outputs[0]
        output.name, output.type, output.shape = f"{value.name}/given", value.type, value.shape
        if like is not None:
            self._instead(like, output)
        return node

    def _add(  # noqa: PLR0917 - what a node is made of
        self,
        region: _Region,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Sequence[ir.Attr],
        markers: Sequence[ir.Node | None],
        like: ir.Node | None = None,
    ) -> None:
        """The control-flow node, in the place of the markers by which its values left; None: nobody uses
        that one."""
        like = like or markers[0]
        assert like is not None
        name = like.attributes["name"].as_string()
        node = self.ir.Node("", op_type, inputs, attributes, num_outputs=len(markers), name=name)
        for index, (marker, output) in enumerate(zip(markers, node.outputs, strict=True)):
            if marker is None:
                output.name = f"{name}/unused_{index}"
                continue
            old = marker.outputs[0]
            output.type, output.shape = old.type, old.shape
            self._instead(old, output)
            self.outputs = [output if value is old else value for value in self.outputs]
            self.by_name[output.name or ""] = output
        self.finished.add(node)
        self.order[node] = max(self.order[marker] for marker in (like, *markers) if marker is not None)
        self.bodies.setdefault(region.parent, []).append(node)

    def _sorted(self, members: Sequence[ir.Node]) -> list[ir.Node]:
        """In the order that they had, as far as what they read allows."""
        made = {value: node for node in members for value in node.outputs}
        waits: dict[ir.Node, int] = {}
        readers: dict[ir.Node, list[ir.Node]] = {}
        for node in members:
            sources = {made[value] for value in self._reads(node) if value in made}
            waits[node] = len(sources)
            for source in sources:
                readers.setdefault(source, []).append(node)
        ready = [(self.order[node], index, node) for index, node in enumerate(members) if not waits[node]]
        heapq.heapify(ready)
        result: list[ir.Node] = []
        count = len(members)
        while ready:
            node = heapq.heappop(ready)[-1]
            result.append(node)
            for reader in readers.get(node, ()):
                waits[reader] -= 1
                if not waits[reader]:
                    heapq.heappush(ready, (self.order[reader], count, reader))
                    count += 1
        assert len(result) == len(members), "bodies lie in one another, or beside one another"
        return result
