"""Along which axes rows are computed apart, as manifests have it."""

from __future__ import annotations

from typing import Any

import pytest

from sharding.errors import ShardError
from sharding.slices.batch import BatchAxes, names_only, read_sums
from sharding.slices.expressions import is_expression
from sharding.slices.manifest_fields import Field

AXES = ["batch", "past", "past + new", "new", "total-length", 4, None]


@pytest.mark.parametrize(
    ("batch", "written"),
    [
        (BatchAxes(), {"inputs": {}, "outputs": {}}),
        (BatchAxes({"x": 0}, {"y": 1}), {"inputs": {"x": 0}, "outputs": {"y": 1}}),
        (
            BatchAxes({"x": 0}, {}, {"t": "a+b"}),
            {"inputs": {"x": 0}, "outputs": {}, "lengths": {"t": "a+b"}},
        ),
        (BatchAxes({"x": 0}, {}, {}, ("a-b",)), {"inputs": {"x": 0}, "outputs": {}, "names": ["a-b"]}),
    ],
)
def test_what_is_not_needed_is_left_out(batch: BatchAxes, written: dict[str, Any]) -> None:
    assert batch.to_json() == written
    sums, names = read_sums(Field("file", "$.batch", written), [])
    assert (sums, names) == (dict(batch.lengths), batch.names)


@pytest.mark.parametrize(
    ("axes", "sums", "names"),
    [
        (AXES, {}, ("past + new",)),
        (AXES, {"past + new": "past+new"}, ()),
        (["a", "b", "a+b", "a*b", "a+b"], {"a*b": "a*b"}, ("a+b",)),
        (["a+b", "a"], {}, ()),  # there is no b
        (["a", "b"], {}, ()),
        (["a", "2·a"], {}, ("2·a",)),
        ([], {}, ()),
    ],
)
def test_symbols_that_read_as_expressions(
    axes: list[Any], sums: dict[str, str], names: tuple[str, ...]
) -> None:
    assert names_only(axes, sums) == names


def test_in_files_without_names_what_reads_as_an_expression_is_one() -> None:
    axes = ["a", "b", "a+b", "2·a", "odd-one"]
    item = {"inputs": {"x": 0}, "outputs": {}, "lengths": {"t": "a+a"}}
    assert read_sums(Field("f", "$", item), axes) == ({"t": "a+a", "a+b": "a+b", "2·a": "2*a"}, ())
    item["names"] = ["a+b"]
    assert read_sums(Field("f", "$", item), axes) == ({"t": "a+a", "2·a": "2*a"}, ("a+b",))
    item["inputs"] = {}  # the batch is not cut
    assert read_sums(Field("f", "$", item), axes) == ({"t": "a+a"}, ("a+b",))
    with pytest.raises(ShardError, match="must be a string, but is 3"):
        read_sums(Field("f", "$", {**item, "names": [3]}), axes)


EXPRESSIONS = {
    "a + 1": True, "a*b": True, "2·a": True, "min(a, 3)": True, "a": False, "3": False, "c + 1": False,
    "2 + 2": False, "a-": False, "": False, "a - c": False,
}  # fmt: skip


@pytest.mark.parametrize(("axis", "expression"), EXPRESSIONS.items())
def test_what_reads_as_an_expression(axis: str, expression: bool) -> None:
    assert is_expression(axis, ["a", "b"]) == expression
