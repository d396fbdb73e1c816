"""Groups of ranks along the axes of a mesh."""

from __future__ import annotations

import itertools

import pytest

from sharding.common.bounds import MAX_RANKS
from sharding.errors import SliceError
from sharding.slices.mesh import AXES, Mesh, parse_mesh


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


@pytest.mark.parametrize("sizes", [(2, 3, 4), (1, 3, 2), (1, 1, 1)])
def test_a_rank_and_where_it_stands(sizes: tuple[int, ...]) -> None:
    """Neighbours differ in the last axis."""
    mesh = Mesh.of(**dict(zip(AXES, sizes, strict=True)))
    places = itertools.product(*map(range, sizes))
    for rank, place in enumerate(places):
        named = dict(zip(AXES, place, strict=True))
        assert mesh.coordinates(rank) == named and mesh.rank(**named) == rank
    assert (mesh.size, mesh.length("pipeline")) == (rank + 1, sizes[1])


@pytest.mark.parametrize(
    ("text", "mesh"),
    [
        ("tensor=4", "data=1,pipeline=1,tensor=4"),
        ("data=2,tensor=4", "pipeline=1,data=2,tensor=4"),
        (" tensor = 2 , data=3 ", "pipeline=1,tensor=2,data=3"),
        ("pipeline=1", "data=1,tensor=1,pipeline=1"),
        (f"data={MAX_RANKS}", f"pipeline=1,tensor=1,data={MAX_RANKS}"),
        (f"data={MAX_RANKS // 2},tensor=2", f"pipeline=1,data={MAX_RANKS // 2},tensor=2"),
    ],
)
def test_a_mesh_as_text(text: str, mesh: str) -> None:
    assert str(parse_mesh(text)) == mesh
    assert parse_mesh(mesh) == parse_mesh(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not one of them"),
        ("expert=2", "'expert' is not one of them"),
        ("data=2,data=2", "'data' is given twice"),
        ("data", "gives data the size ''; expected a whole number from 1"),
        ("data=0", "the size '0'"),
        ("data=-1", "the size '-1'"),
        ("data=2=3", "the size '2=3'"),
        (f"data={MAX_RANKS + 1}", f"the size '{MAX_RANKS + 1}'"),
        (f"data={MAX_RANKS // 2 + 1},tensor=2", f"has {MAX_RANKS + 2} ranks; at most {MAX_RANKS}"),
    ],
)
def test_texts_that_are_no_mesh(text: str, message: str) -> None:
    with pytest.raises(SliceError, match=message):
        parse_mesh(text)
