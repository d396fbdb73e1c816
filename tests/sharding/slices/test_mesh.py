"""Groups of ranks along the axes of a mesh."""

from __future__ import annotations

import itertools

import pytest

from sharding.slices.mesh import AXES, Mesh


@pytest.mark.parametrize("order", itertools.permutations(AXES))
@pytest.mark.parametrize("sizes", [(2, 3, 4), (1, 3, 2), (4, 1, 1), (1, 1, 1)])
def test_groups_differ_on_one_axis_only(order: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    mesh = Mesh.of(**dict(zip(order, sizes, strict=True)))
    places = [mesh.coordinates(rank) for rank in range(mesh.size)]
    for axis in AXES:
        # By the coordinates, which say what a group is.
        expected = [
            tuple(
                other
                for other, there in enumerate(places)
                if all(there[name] == here[name] for name in AXES if name != axis)
            )
            for here in places
        ]
        assert [mesh.group(rank, axis) for rank in range(mesh.size)] == expected
        assert mesh.groups(axis) == sorted(set(expected))
