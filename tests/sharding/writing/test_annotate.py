"""What an annotated copy is called, and what lies where it is written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import onnx
import pytest

from sharding.errors import OutputError
from sharding.planning.plan import plan_model
from sharding.writing.annotate import annotate
from tests.sharding import graphs


def test_names_that_are_taken(tmp_path: Path) -> None:
    """By configurations for other numbers of devices, which stay."""
    path = graphs.mlp(tmp_path / "m.onnx", inner=48)
    model = onnx.load(path)
    model.ir_version = 11
    for name, count in (("shardrun_2", 3), ("shardrun_2_2", 4), ("shardrun_2_4", 5)):
        model.configuration.add(name=name, num_devices=count)
    onnx.save(model, path)
    annotate(plan_model(path, 2), tmp_path / "a.onnx")
    found = onnx.load(tmp_path / "a.onnx")
    assert {item.name: item.num_devices for item in found.configuration} == {
        "shardrun_2": 3, "shardrun_2_2": 4, "shardrun_2_4": 5, "shardrun_2_3": 2,
    }  # fmt: skip
    assert {node.device_configurations[0].configuration_id for node in found.graph.node} == {"shardrun_2_3"}
    again = tmp_path / "again.onnx"
    annotate(plan_model(tmp_path / "a.onnx", 2), again)
    assert [item.name for item in onnx.load(again).configuration].count("shardrun_2_3") <= 1
    assert len(onnx.load(again).configuration) == 4


def test_data_that_would_not_be_read_beside_the_copy(tmp_path: Path) -> None:
    """A link that leads out of the folder, also where the right bytes lie at its end."""
    path = graphs.mlp(tmp_path / "m.onnx", external=True)
    plan = plan_model(path, 2)
    away = tmp_path / "away"
    away.mkdir()
    (away / "m.onnx.data").symlink_to(tmp_path / "m.onnx.data")
    with pytest.raises(OutputError, match="is a link that leads out of the folder"):
        annotate(plan, away / "a.onnx")
    assert [item.name for item in away.iterdir()] == ["m.onnx.data"]
    (away / "m.onnx.data").unlink()
    (away / "real").write_bytes((tmp_path / "m.onnx.data").read_bytes())
    (away / "m.onnx.data").symlink_to("real")
    annotate(plan, away / "a.onnx")
    assert (away / "m.onnx.data").is_symlink() and (away / "a.onnx").exists()


def test_a_copy_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = graphs.mlp(tmp_path / "m.onnx", inner=48)
    plan = plan_model(path, 2)
    with pytest.raises(OutputError, match=r"cannot be written: .*name too long"):
        annotate(plan, tmp_path / ("x" * 300))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sharding.writing.annotate.replace_file", full)
    with pytest.raises(OutputError, match=r"a.onnx cannot be written: "):
        annotate(plan, tmp_path / "a.onnx")
    assert [item.name for item in tmp_path.iterdir()] == ["m.onnx"]
