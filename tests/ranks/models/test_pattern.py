"""Rank models named by a pattern."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranks.errors import ModelError, ShardError
from ranks.models import pattern


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize("field", ["{}", "{r}", "{rank}"])
def test_files_by_rank(tmp_path: Path, field: str) -> None:
    numbers = [10, 2, 0, 1]
    make(tmp_path, *(f"rank_{n}_model.onnx" for n in numbers))
    make(tmp_path, "rank_01_model.onnx", "rank_x_model.onnx", "rank__model.onnx", "rank_3_model.onnx.data")
    make(tmp_path, "rang_4_model.onnx", "rank_5_medal.onnx", "x_rank_6_model.onnx")
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
    with pytest.raises(
        ModelError, match=r"folder .*nowhere of .* cannot be read: No such file or directory\.$"
    ):
        pattern.resolve(tmp_path / "nowhere" / "rank_{}.onnx", 0, 2)


def test_two_fields(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"must have one field .* it has 2"):
        pattern.expand(tmp_path / "rank_{}_{r}.onnx", 0)


def test_a_folder_for_each_rank(tmp_path: Path) -> None:
    for rank in (0, 1, 10):
        (tmp_path / f"rank_{rank}").mkdir()
        make(tmp_path / f"rank_{rank}", "model.onnx")
    (tmp_path / "rank_2").mkdir()
    path = tmp_path / "rank_{rank}" / "model.onnx"
    assert pattern.is_pattern(path) and list(pattern.files(path)) == [0, 1, 10]
    assert pattern.expand(path, 1) == tmp_path / "rank_1" / "model.onnx"
    with pytest.raises(ShardError, match=r"are rank_0/model.onnx, rank_1/model.onnx, rank_10/model.onnx"):
        pattern.resolve(path, 0, 2)
    assert not list(pattern.files(tmp_path / "rank_{}" / "other.onnx"))
    with pytest.raises(ModelError, match="it has 2"):
        pattern.files(tmp_path / "{}_{}" / "m.onnx")


def test_braces_of_a_folder_that_is_there_are_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a{}" / "b{rank}"
    folder.mkdir(parents=True)
    make(folder, "m_0.onnx", "m_1.onnx", "m.onnx")
    assert list(pattern.files(folder / "m_{}.onnx").values()) == [folder / "m_0.onnx", folder / "m_1.onnx"]
    assert not pattern.is_pattern(folder / "m.onnx") and not pattern.is_pattern(folder / "other.onnx")
    assert pattern.is_pattern(tmp_path / "c{}" / "b{rank}" / "m.onnx")


def test_the_pattern_that_a_file_fits(tmp_path: Path) -> None:
    (tmp_path / "v2").mkdir()
    make(tmp_path / "v2", "rank_0_fp16.onnx", "rank_1_fp16.onnx", "lone_3.onnx", "x_1.onnx", "x_2.onnx")
    assert pattern.like(tmp_path / "v2" / "rank_1_fp16.onnx") == tmp_path / "v2" / "rank_{}_fp16.onnx"
    assert pattern.like(tmp_path / "v2" / "lone_3.onnx") is None
    assert pattern.like(tmp_path / "v2" / "x_1.onnx") is None
