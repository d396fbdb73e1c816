"""Rank models named by a pattern."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranks import pattern
from ranks.errors import ModelError, ShardError


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize("field", ["{}", "{r}", "{rank}"])
def test_files_by_rank(tmp_path: Path, field: str) -> None:
    numbers = [10, 2, 0, 1]
    make(tmp_path, *(f"rank_{n}_model.onnx" for n in numbers))
    make(tmp_path, "rank_01_model.onnx", "rank_x_model.onnx", "rank__model.onnx", "rank_3_model.onnx.data")
    path = tmp_path / f"rank_{field}_model.onnx"
    assert pattern.is_pattern(path)
    assert list(pattern.files(path)) == sorted(numbers)
    assert pattern.expand(path, 7) == tmp_path / "rank_7_model.onnx"


def test_each_rank_gets_its_own(tmp_path: Path) -> None:
    make(tmp_path, "rank_0_m.onnx", "rank_1_m.onnx")
    assert pattern.resolve(tmp_path / "rank_{}_m.onnx", 1, 2) == tmp_path / "rank_1_m.onnx"


def test_a_file_with_braces_in_its_name_is_itself(tmp_path: Path) -> None:
    make(tmp_path, "rank_{}.onnx")
    assert not pattern.is_pattern(tmp_path / "rank_{}.onnx")
    assert not pattern.is_pattern(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("names", "size", "words"),
    [
        (
            ["rank_0_m.onnx", "rank_2_m.onnx"],
            3,
            "has 3 ranks, .* are rank_0_m.onnx, rank_2_m.onnx: rank 1 has none",
        ),
        (["rank_0_m.onnx", "rank_1_m.onnx"], 1, "has 1 rank, .* start 2 ranks"),
        (["rank_1_m.onnx", "rank_2_m.onnx"], 2, "rank 0 has none"),
        ([f"rank_{n}_m.onnx" for n in range(20)], 2, "rank_7_m.onnx and 12 more: start 20 ranks"),
    ],
)
def test_files_that_do_not_fit_the_job(tmp_path: Path, names: list[str], size: int, words: str) -> None:
    make(tmp_path, *names)
    with pytest.raises(ShardError, match=words):
        pattern.resolve(tmp_path / "rank_{}_m.onnx", 0, size)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"No file fits .*rank_\{\}.onnx: expected one for each rank, as .*rank_0"
    ):
        pattern.resolve(tmp_path / "rank_{}.onnx", 0, 2)
    with pytest.raises(ModelError, match="cannot be read"):
        pattern.resolve(tmp_path / "nowhere" / "rank_{}.onnx", 0, 2)


def test_two_fields(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"must have one field .* it has 2"):
        pattern.expand(tmp_path / "rank_{}_{r}.onnx", 0)
