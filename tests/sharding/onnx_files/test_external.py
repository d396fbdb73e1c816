"""What tensors say of where their data lie, read, written and checked in one place."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from sharding.errors import ModelError
from sharding.onnx_files.external import Place, extents, file_of, find_data, locations, place_of, put_place
from sharding.onnx_files.protobuf import IN_MODEL_FILE, field

ROOT = Path(__file__).parents[3]


def tensor(**told: str) -> onnx.TensorProto:
    made = onnx.TensorProto(name="w")
    for key, value in told.items():
        made.external_data.add(key=key, value=value)
    return made


def test_a_location_that_is_no_text_is_shown() -> None:
    """protobuf gives such a text as bytes, where it reads a file."""
    entry = onnx.StringStringEntryProto(key="location", value="????").SerializeToString()
    made = onnx.TensorProto.FromString(field(13, entry.replace(b"????", b"a\xff.d")))
    assert place_of(made).location == repr(b"a\xff.d")


def test_a_place_is_read_as_it_was_put() -> None:
    made = tensor(location="old", checksum="x")
    put_place(made, "m.data", 4096, 0)
    assert place_of(made) == Place("m.data", 4096, 0)
    assert made.data_location == made.EXTERNAL and len(made.external_data) == 3


@pytest.mark.parametrize(
    ("used", "joined"),
    [
        ([(0, 100), (10, 20)], [(0, 100)]),
        ([(50, 10), (0, 60)], [(0, 60)]),
        ([(0, 10), (10, 10), (21, 4)], [(0, 20), (21, 25)]),
        ([(0, 10), (5, 20), (8, 4)], [(0, 25)]),
    ],
)
def test_what_tensors_use_of_a_file(used: list[tuple[int, int]], joined: list[tuple[int, int]]) -> None:
    graph = onnx.GraphProto()
    for offset, length in used:
        made = graph.initializer.add(data_location=onnx.TensorProto.EXTERNAL)
        put_place(made, "m.data", offset, length)
    assert extents(graph) == {"m.data": joined}


OTHERS: list[tuple[dict[str, str], list[tuple[int, int | None]]]] = [
    ({"length": "10"}, [(0, 10)]),
    ({"offset": "5"}, [(5, None)]),
    ({"offset": "5", "length": "0"}, [(5, None)]),
    ({"offset": "5", "length": "10", "checksum": "x", "basepath": "y"}, [(5, 15)]),
    ({"offset": "5", "length": "10", "prepacked_0": "9|3"}, [(0, None)]),
    ({"offset": "-5", "length": "10"}, []),
    ({"offset": "x"}, [(0, None)]),
]


@pytest.mark.parametrize(("told", "used"), OTHERS)
def test_what_one_tensor_uses_of_a_file(told: dict[str, str], used: list[tuple[int, int | None]]) -> None:
    """All of it from there on, where it is not said how much."""
    graph = onnx.GraphProto(initializer=[tensor(location="m.data", **told), tensor(location="../other")])
    assert extents(graph) == {"m.data": used}


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ({}, Place("", 0, None)),
        ({"location": "a"}, Place("a", 0, None)),
        ({"location": "a", "offset": "", "length": ""}, Place("a", 0, None)),
        ({"location": "a", "offset": "7", "length": "0"}, Place("a", 7, 0)),
    ],
)
def test_what_is_not_said(told: dict[str, str], place: Place) -> None:
    assert place_of(tensor(**told)) == place


@pytest.mark.parametrize("told", [{"offset": "x"}, {"length": "1.5"}])
def test_numbers_that_are_none(told: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        place_of(tensor(location="a", **told))


@pytest.mark.parametrize("location", ["", "/etc/passwd", "../x", "a/../../x", "a\0b", "link/x", "x" * 5000])
def test_a_location_that_leads_out_of_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "x").touch()
    (tmp_path / "m" / "link").symlink_to(tmp_path)
    for find in (find_data, file_of):
        with pytest.raises(ModelError, match=r"^the weight lies in "):
            find(tmp_path / "m" / "m.onnx", location, "the weight")


def test_a_location_in_the_folder_and_in_the_model_itself(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    assert file_of(model, "m.data", "w") == find_data(model, "m.data", "w") == tmp_path / "m.data"
    assert file_of(model, IN_MODEL_FILE, "w") == model
    graph = onnx.GraphProto(initializer=[tensor(location=one) for one in ("b", "../x", "/x", IN_MODEL_FILE)])
    assert locations(graph) == ["b"]


def test_places_are_read_and_written_here_alone() -> None:
    """`prepare` reads ONNX Runtime's own entries too; `onnx_file` declares weights that have no place."""
    written = re.compile(r"in \w+(\.\w+)*\.external_data\b|external_data\.add")
    found = {
        path.relative_to(ROOT).as_posix()
        for package in ("sharding", "ranks", "launcher")
        for path in (ROOT / package).rglob("*.py")
        if written.search(path.read_text())
    }
    assert found == {
        "sharding/onnx_files/external.py",
        "sharding/onnx_files/validity.py",  # whether numbers are right
        "sharding/importers/onnx_file.py",
        "ranks/weights/prepared/prepare.py",
        "ranks/models/model_file.py",  # puts the locations that links lead to
    }
