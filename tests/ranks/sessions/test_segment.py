"""What is known of the types of values that cross a cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ranks.models.optional import RANK_KEY
from ranks.sessions.cut import cut
from ranks.sessions.segment import SegmentBuilder
from tests.ranks.rank_models import model, node, value

CASES: dict[str, tuple[list[Any] | None, list[Any] | None, list[Any]]] = {
    "declared, not inferred": ([], ["m", "n"], ["m", "n"]),
    "lengths are not believed": ([], [2, "n"], [None, "n"]),
    "inferred, not declared": ([3, 5], None, [3, 5]),
    "both, in part": ([None, 5], ["m", "n"], ["m", 5]),
    "other numbers of axes": ([None, 5], ["m", "n", "k"], [None, 5]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_inferred_is_filled_in_from_what_is_declared(case: str) -> None:
    inferred, declared, wanted = CASES[case]
    proto = model([node("Relu", ["x"], ["a"]), node("AllReduce", ["a"], ["y"])], [value("x", [2, 4])], ["y"])
    proto.graph.value_info.append(value("a", declared))
    proto.metadata_props.add(key=RANK_KEY, value="{}")  # its file is one that slicing wrote
    builder = SegmentBuilder(cut(proto), 2)
    output: Any = SimpleNamespace(name="a", type="tensor(float)", shape=inferred)
    builder.learn([output], [])
    axes = builder.type_of("a").tensor_type.shape.dim
    assert [
        axis.dim_value if axis.HasField("dim_value") else axis.dim_param or None for axis in axes
    ] == wanted
