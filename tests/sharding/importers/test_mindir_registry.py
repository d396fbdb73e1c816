"""How conversions of MindIR's primitives are registered: what the registry reads from a function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sharding.importers.mindir.primitives.base import PRIMITIVES, Node, arguments, primitive, table


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before = dict(PRIMITIVES)
    yield
    PRIMITIVES.clear()
    PRIMITIVES.update(before)


def test_a_row_of_a_table_is_the_first_argument() -> None:
    @table({"OneTest": 1, ("TwoTest", "TwoMoreTest"): 2})
    def convert(row: int, b: object, x: int, *, scale: int = 1) -> int:
        return row * x * scale

    found = [PRIMITIVES[name] for name in ("OneTest", "TwoTest", "TwoMoreTest")]
    assert [item.convert(None, Node("", ""), 3, scale=5) for item in found] == [15, 30, 30]
    assert {(item.operands, item.needed, item.settings) for item in found} == {(1, 1, ("scale",))}


def test_settings_are_the_keyword_only_parameters_in_order() -> None:
    @primitive("SettingsTest")
    def convert(b: object, node: Node, x: Any, bias: Any = None, *, stride: int = 1, pad: int = 0) -> str:
        return f"{node.op_type} {x} {bias} {stride} {pad}"

    known = PRIMITIVES["SettingsTest"]
    assert (known.operands, known.needed, known.settings) == (2, 1, ("stride", "pad"))
    positional, settings = arguments(known, [7, None, 2], {"pad": 4})  # an input, then an attribute
    assert known.convert(None, Node("SettingsTest", ""), *positional, **settings) == "SettingsTest 7 None 2 4"


def test_a_name_is_registered_once() -> None:
    primitive("TwiceTest")(lambda b, x: x)
    with pytest.raises(TypeError, match="the primitive TwiceTest is registered twice"):
        table({"TwiceTest": 0})(lambda row, b, x: x)
