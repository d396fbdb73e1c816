"""Specs of shards on devices, read for four ranks, and what they cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import pytest

from sharding.demands.demand import in_words
from sharding.demands.device_specs import SpecError, read_spec
from sharding.demands.features import MAX_HOPS, feature_axes
from sharding.slices.placement import PARTIAL, REPLICATED, Placement, Split

Dims = Sequence[tuple[int | None, int]]


def spec(
    axes: dict[int, Dims], devices: Sequence[int] = (), groups: Sequence[tuple[int, Sequence[int]]] = ()
) -> onnx.ShardingSpecProto:
    """Axis to (length or None, shards) of the dims that it is made of."""
    made = onnx.ShardingSpecProto(tensor_name="w", device=devices)
    for axis, dims in axes.items():
        dim = made.sharded_dim.add(axis=axis)
        for length, shards in dims:
            item = dim.simple_sharding.add(num_shards=shards)
            if length is not None:
                item.dim_value = length
    for key, members in groups:
        made.index_to_device_group_map.add(key=key, value=members)
    return made


@pytest.mark.parametrize(
    ("axes", "devices", "groups", "wanted"),
    [
        ({}, (), (), REPLICATED),
        ({0: [(None, 1)]}, (), (), REPLICATED),
        ({0: [(None, 4)]}, (), (), Split(0)),
        ({-1: [(12, 4)]}, (), (), Split(1)),
        ({1: [(3, 1), (None, 4)]}, (0, 1, 2, 3), (), Split(1, 3)),
        ({1: [(None, 1), (4, 4)]}, (), (), Split(1, 3)),
        ({1: [(12, 4), (1, 1)]}, (), (), Split(1)),
        ({0: [(None, 2)]}, (-1, -2), [(-1, (0, 1)), (-2, (2, 3))], Split(0, copies=2)),
        ({0: [(None, 2)]}, (-1, -2), [(-1, (1, 0)), (-2, (3, 2))], Split(0, copies=2)),
        ({}, (-1,), [(-1, (3, 2, 1, 0))], REPLICATED),
        ({}, (0, 1, 2, 3), (), REPLICATED),
        ({0: [(None, 1)], 1: [(None, 4)]}, (), (), Split(1)),
    ],
)
def test_what_a_spec_stands_for(axes: Any, devices: Any, groups: Any, wanted: Placement) -> None:
    assert read_spec(spec(axes, devices, groups), [8, 12], range(4)) == wanted


@pytest.mark.parametrize(
    ("axes", "devices", "why"),
    [
        ({0: [(None, 2)]}, (), "2 shards for 4 ranks: expected the list of devices that hold each shard"),
        ({0: [(0, 4)]}, (), "axis 0: a dim of length 0"),
        ({0: [(-8, 4)]}, (), "axis 0: a dim of length -8"),
        ({0: [(8, 1), (0, 4)]}, (), "axis 0: a dim of length 0"),
        ({0: [(4, 4)]}, (), "axis 0: its dims are 4, but its length is 8"),
        ({0: [(None, 8)]}, (), "axis 0: 8 shards do not fit 4 ranks"),
        ({1: [(6, 1), (2, 4)]}, (), "axis 1: length 2 cannot be cut into 4 equal shards"),
        ({1: [(6, 1), (1, 4), (2, 1)]}, (), "axis 1: length 1 cannot be cut into 4 equal shards"),
        ({0: [(None, 4)]}, (0, 1, 2), "devices 0, 1, 2, expected 0, 1, 2, 3"),
        ({0: [(None, 4)]}, (3, 2, 1, 0), "devices 3, 2, 1, 0, expected 0, 1, 2, 3"),
        ({0: [(None, 2)]}, (0, 1), "devices 0, 1, expected 0+1, 2+3"),
        ({2: [(None, 1)]}, (), "axis 2: it must be in [-2, 1]"),
        ({-3: [(None, 1)]}, (), "axis -3: it must be in [-2, 1]"),
        ({0: [(None, 1)], -2: [(None, 4)]}, (), "axis 0: it is given twice"),
    ],
)
def test_what_a_spec_cannot_say(axes: Any, devices: Any, why: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_spec(spec(axes, devices), [8, 12], range(4))
    assert why in str(caught.value)


def test_unknown_axes_are_not_cut() -> None:
    for shape, why in ((None, "number of axes is not known"), (["n", 12], "its length is n"),
                       ([None, 12], "its length is unknown")):  # fmt: skip
        with pytest.raises(SpecError, match=why):
            read_spec(spec({0: [(None, 4)]}), shape, range(4))
    assert read_spec(spec({}), None, range(4)) == REPLICATED
    assert read_spec(spec({0: [(None, 1)]}), ["n"], range(4)) == REPLICATED


def test_many_devices_are_told_shortly() -> None:
    devices = range(20)
    with pytest.raises(SpecError) as caught:
        read_spec(spec({}, [-1], [(-1, range(1, 21))]), [8], devices)
    assert "devices 1+2+3+4+5+6+7+8+..., expected 0+1+2+3+4+5+6+7+...:" in str(caught.value)
    with pytest.raises(SpecError) as caught:
        read_spec(spec({0: [(None, 20)]}, range(1, 21)), [20], devices)
    assert "devices 1, 2, 3, 4, 5, 6, 7, 8, ..., expected 0, 1, 2, 3, 4, 5, 6, 7, ...:" in str(caught.value)


def test_placements_in_words() -> None:
    assert in_words(REPLICATED) == "whole"
    assert in_words(PARTIAL) == "as summands"
    assert in_words(Split(1)) == "split on axis 1"
    assert in_words(Split(0, 3, 2)) == "split on axis 0 in 3 blocks, 2 ranks each part"


def test_features_behind_conversions() -> None:
    """Of as many conversions as are followed; of one more, or of what nothing reads, none."""
    import onnx_ir as ir

    def first(count: int, *, perm: list[int] | None = None, read: bool = True, known: bool = True) -> ir.Node:
        value = ir.Value(name="w", shape=ir.Shape([6, 6]) if known else None)
        nodes = []
        for number in range(count):
            kind = "Transpose" if perm and not number else "Cast"
            given = [ir.AttrInt64s("perm", perm)] if kind == "Transpose" and perm else []
            nodes.append(ir.Node("", kind, [value], given))
            value = nodes[-1].outputs[0]
            value.shape = ir.Shape([6, 6])
        if read:
            nodes.append(ir.Node("", "MatMul", [ir.Value(name="x"), value]))
        return nodes[0]

    assert feature_axes(first(1), 0) == (1, 0)
    assert feature_axes(first(2, perm=[1, 0]), 0) == (0, 1)
    assert feature_axes(first(MAX_HOPS - 1), 0) == (1, 0)
    assert feature_axes(first(MAX_HOPS), 0) is None
    assert feature_axes(first(1, read=False), 0) is None
    assert feature_axes(first(1, known=False), 0) is None
    assert feature_axes(first(1), 1) is None
    assert feature_axes(first(2, perm=[0, 0]), 0) is None
    assert feature_axes(first(2, perm=[0, 1, 2]), 0) is None
