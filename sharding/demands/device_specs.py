"""The standard's sharding specs (``ShardingSpecProto``, ONNX IR version 11) and placements, both ways.

A spec lists, axis by axis, how many shards there are (``sharded_dim``), and which device or group of devices
holds each (``device``, ``index_to_device_group_map``); see onnx.proto and the ONNX proposal "Multi-Device".
An axis of several fused ones is a product of simple dims: 3 blocks of 768, each cut in two, are
``(3, 1 shard), (768, 2 shards)``. A spec without sharded axes is a value that every device holds whole. A sum
that is still to be reduced has no spec: that the inputs are cut along the axis that is summed says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sharding.rules.base import Dim
from sharding.slices.placement import REPLICATED, Placement, Split

if TYPE_CHECKING:
    import onnx

GROUP_KEY = -1
"""The first key of a device group; the next ones count down, so that no key is a device."""


class SpecError(ValueError):
    """A spec that says nothing, or nothing that can be done; the text follows the tensor's name."""


def write_spec(
    spec: onnx.ShardingSpecProto,
    name: str,
    placement: Placement,
    shape: Sequence[Dim],
    devices: Sequence[int],
) -> None:
    """Fills an empty spec. ``placement`` is no sum; ``shape`` is the whole value's; ``devices`` are in the
    order of the ranks that share the value."""
    spec.tensor_name = name
    parts = placement.parts(len(devices)) if isinstance(placement, Split) else 1
    copies = len(devices) // parts
    for part in range(parts):
        group = devices[part * copies : (part + 1) * copies]
        if copies == 1:
            spec.device.append(group[0])
            continue
        spec.device.append(GROUP_KEY - part)
        entry = spec.index_to_device_group_map.add()
        entry.key = GROUP_KEY - part
        entry.value.extend(group)
    if isinstance(placement, Split) and parts > 1:
        dim = spec.sharded_dim.add()
        dim.axis = placement.axis
        length = shape[placement.axis]
        assert isinstance(length, int)
        if placement.blocks > 1:
            outer = dim.simple_sharding.add()
            outer.dim_value, outer.num_shards = placement.blocks, 1
        inner = dim.simple_sharding.add()
        inner.dim_value, inner.num_shards = length // placement.blocks, parts


def read_spec(spec: onnx.ShardingSpecProto, shape: Sequence[Dim] | None, devices: Sequence[int]) -> Placement:
    """The placement that a spec stands for on these devices. Raises `SpecError`."""
    found: Placement = REPLICATED
    parts = 1
    seen: set[int] = set()
    for dim in spec.sharded_dim:
        shards = [simple.num_shards for simple in dim.simple_sharding]
        if any(count < 1 for count in shards):
            raise SpecError(f"axis {dim.axis}: num_shards is {min(shards)}, expected 1 or more")
        axis = _axis(dim.axis, shape)
        if axis in seen:
            raise SpecError(f"axis {axis}: it is given twice")
        seen.add(axis)
        if all(count == 1 for count in shards):
            continue
        if parts > 1:
            raise SpecError(f"axis {axis}: two axes are cut; shardrun cuts one axis of a tensor")
        parts, found = _cut(axis, dim, shape, len(devices))
    _check_devices(spec, parts, devices)
    return found


def _axis(axis: int, shape: Sequence[Dim] | None) -> int:
    if shape is None:
        raise SpecError(f"axis {axis}: the tensor's number of axes is not known")
    if not -len(shape) <= axis < len(shape):
        raise SpecError(
            f"axis {axis}: it must be in [-{len(shape)}, {len(shape) - 1}], for the tensor has "
            f"{len(shape)} axes"
        )
    return axis % len(shape)


def _cut(axis: int, dim: onnx.ShardedDimProto, shape: Sequence[Dim] | None, world: int) -> tuple[int, Split]:
    assert shape is not None
    simple = list(dim.simple_sharding)
    cut = [index for index, item in enumerate(simple) if item.num_shards > 1]
    if len(cut) > 1:
        raise SpecError(f"axis {axis}: two of its fused dims are cut; shardrun cuts one")
    parts = int(simple[cut[0]].num_shards)
    if world % parts:
        raise SpecError(f"axis {axis}: {parts} shards do not fit {world} ranks")
    length = shape[axis]
    if not isinstance(length, int):
        raise SpecError(
            f"axis {axis}: its length is {length or 'unknown'}, and only known lengths can be cut"
        )
    sizes = _sizes(axis, simple, length)
    blocks = math.prod(sizes[: cut[0]])
    if sizes[cut[0]] % parts:
        raise SpecError(f"axis {axis}: length {sizes[cut[0]]} cannot be cut into {parts} equal shards")
    return parts, Split(axis, blocks, world // parts)


def _sizes(axis: int, simple: Sequence[onnx.SimpleShardedDimProto], length: int) -> list[int]:
    """The lengths of the dims that an axis is made of; one may be left out or symbolic."""
    known = [item.dim_value if item.HasField("dim_value") else None for item in simple]
    if any(size is not None and size < 1 for size in known):
        raise SpecError(f"axis {axis}: a dim of length {min(size for size in known if size is not None)}")
    product = math.prod(size for size in known if size is not None)
    unknown = known.count(None)
    if unknown > 1 or length % product or (not unknown and product != length):
        given = " x ".join("?" if size is None else str(size) for size in known)
        raise SpecError(f"axis {axis}: its dims are {given}, but its length is {length}")
    return [length // product if size is None else size for size in known]


def _check_devices(spec: onnx.ShardingSpecProto, parts: int, devices: Sequence[int]) -> None:
    """Raises `SpecError` unless each shard lies on the neighbouring ranks that shardrun would give it."""
    copies = len(devices) // parts
    given = list(spec.device)
    if not given:
        if parts not in {1, len(devices)}:
            raise SpecError(
                f"{parts} shards for {len(devices)} ranks: expected the list of devices that hold each shard"
            )
        return
    keys = [entry.key for entry in spec.index_to_device_group_map]
    if len(set(keys)) != len(keys):
        raise SpecError("index_to_device_group_map has a key twice")
    groups = {entry.key: tuple(entry.value) for entry in spec.index_to_device_group_map}
    lists = [groups.get(device, (device,)) for device in given]
    if parts == 1:  # one shard on all devices, as one group or each by itself
        lists = [tuple(device for group in lists for device in group)]
    wanted = [tuple(devices[part * copies : (part + 1) * copies]) for part in range(parts)]
    if [sorted(group) for group in lists] != [sorted(group) for group in wanted]:
        raise SpecError(
            f"its shards lie on the devices {_listed(lists)}, expected {_listed(wanted)}: every rank of "
            "the stage takes part, in order"
        )


def _listed(groups: Sequence[Sequence[int]]) -> str:
    texts = ["+".join(map(str, group[:8])) + ("+..." if len(group) > 8 else "") for group in groups[:8]]
    return ", ".join(texts) + (", ..." if len(groups) > 8 else "")
