"""Errors name what the user gave, and not the files that were made of it."""

from __future__ import annotations

from pathlib import Path

from sharding.errors import ModelError


def test_each_file_is_named_by_its_source(tmp_path: Path) -> None:
    real, link = tmp_path / "made.onnx", tmp_path / "link.onnx"
    link.symlink_to(real)
    other = tmp_path / "other.onnx"
    error = ModelError(f"{real}, {other} and {link} differ; so does {real}.data, and {tmp_path}/mine.onnx.")
    error.made_of(link, "a.mindir")
    error.made_of(other, "b.mindir")
    shown = f"a.mindir, b.mindir and a.mindir differ; so does {real}.data, and {tmp_path}/mine.onnx."
    assert str(error) == shown
