"""Markers of opened bodies, run as functions: nothing of a body itself is run, only what passes into it and
out of it is cut and joined."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from sharding.rules.flow import FLOW
from tests.sharding.proof import Case
from tests.sharding.rule_cases.arrays import f32

HEAD = '<domain: "reference", opset_import: ["" : 23]>\n'
SAME = HEAD + "{op} <{attributes}> ({inputs}) => (y) {{ y = Identity(x) }}"
VALUE = f32(12, 35, 4)


def _same(op: str, inputs: str, given: list[Any], **attributes: int) -> Case:
    body = SAME.format(op=op, inputs=inputs, attributes=", ".join(attributes))
    return Case(op, given, attributes, 1, 1, FLOW, body=body)


LEAVE = HEAD + "Leave <region> (c, a, b) => (y) { y = Where(c, a, b) }"
BACK = HEAD + "Back <region, index> (x) => (token) { token = Constant<value = bool {1}>() }"
ELEMENT = (
    HEAD
    + """Element <region, index, axis> (x) => (y) {
  zero = Constant<value = int64 {0}>()
  y = Gather<axis: int = @axis>(x, zero)
}"""
)
STACK = (
    HEAD
    + """Stack <region, index, axis> (ran, x) => (y) {
  turn = Constant<value_int: int = @axis>()
  one = Constant<value_ints = [1]>()
  place = Reshape(turn, one)
  y = Unsqueeze(x, place)
}"""
)
RAN = np.array(True)

CASES = [
    _same("Enter", "x", [VALUE], region=0),
    _same("Carry", "x", [VALUE], region=0, index=0),
    _same("Last", "ran, x", [RAN, VALUE], region=0, index=0),
    *(
        Case("Leave", [np.array(flag), f32(12, 35), f32(12, 35) / 3], {"region": 0}, 1, 1, FLOW, body=LEAVE)
        for flag in (True, False)
    ),
    Case("Leave", [np.array(True), np.arange(12), np.arange(12)], {"region": 0}, 1, 1, FLOW, body=LEAVE),
    Case("Back", [VALUE], {"region": 0, "index": 0}, 1, 1, FLOW, body=BACK),
    *(
        Case("Element", [VALUE], {"region": 0, "index": 0, "axis": axis}, 1, 1, FLOW, body=ELEMENT)
        for axis in (0, 1, -1)
    ),
    *(
        Case("Stack", [RAN, VALUE], {"region": 0, "index": 0, "axis": axis}, 1, 1, FLOW, body=STACK)
        for axis in (0, 2, -1)
    ),
]
EXTRA: dict[tuple[str, str], Set[str]] = {
    (FLOW, "Enter"): {"partial->partial"},
    (FLOW, "Leave"): {"partial->partial"},
    (FLOW, "Back"): {"split->whole"},
}
