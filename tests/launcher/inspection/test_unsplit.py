"""A model of which almost nothing is split says so wherever it is planned or run; and lengths to plan for."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from launcher import cli, start
from sharding.demands.options import SliceOptions
from sharding.planning.plan import plan_model
from sharding.planning.unsplit import hardly_splits_slices
from sharding.slices.manifest import read_manifest
from sharding.slices.mesh import Mesh
from tests.launcher.cli_tools import save_mlp
from tests.sharding import graphs, lockstep
from tests.sharding.graphs import array
from tests.sharding.llama import sized

if TYPE_CHECKING:
    from sharding.slices.manifest import Manifest

SAID = "almost nothing is split"


@pytest.fixture
def hardly(tmp_path: Path) -> Path:
    """Two ranks divide the axes of the second weight only, a hundredth of the bytes."""
    text = """g (float[batch, 45] x) => (float[batch, 6] y) {
      a = MatMul(x, w1)
      b = Relu(a)
      y = MatMul(b, w2)
    }"""
    return graphs.save(tmp_path / "m.onnx", text, {"w1": array(45, 99), "w2": array(99, 6)})


def test_planning_says_it(
    hardly: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def said(*command: str) -> str:
        caplog.clear()
        assert cli.main([*command]) == 0
        assert [record.levelname for record in caplog.records if SAID in record.message] == ["WARNING"]
        return capsys.readouterr().out

    out = said("slice", str(hardly), "--ranks", "2", "--output", str(tmp_path / "slices"))
    assert f"{hardly}: {SAID}: each rank holds 94.1 % of the weights (1 MatMul hold" in caplog.text
    assert [line for line in out.splitlines() if line.startswith("warning ") and line.endswith(SAID)]
    assert f"warning: {SAID}" in said("inspect", str(tmp_path / "slices"))
    assert SAID in json.loads(said("inspect", str(hardly), "--ranks", "2", "--json"))["warning"]


@pytest.mark.timeout(90)
def test_starting_it_says_it(hardly: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), start(hardly, ranks=2, launcher="local", threads=1) as group:
        assert group.predict({"x": array(2, 45)})["y"].shape == (2, 6)
    assert [record for record in caplog.records if SAID in record.message and str(hardly) in record.message]


def test_what_is_split_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_mlp(tmp_path / "m.onnx")
    for options in (["--ranks", "2"], ["--ranks", "1"], ["--ranks", "2", "--strategy", "data"]):
        assert cli.main(["slice", str(path), *options, "--output", str(tmp_path / "slices")]) == 0
        assert SAID not in "".join(capsys.readouterr())
    assert plan_model(path, 8).warning == ""


def test_replicas_that_are_asked_for_are_named_too(tmp_path: Path) -> None:
    path = save_mlp(tmp_path / "m.onnx", width=63)
    plan = plan_model(path, 5, options=SliceOptions(allow_replicated=True))
    assert SAID in plan.warning and "5 ranks" in plan.warning


def test_lengths_are_planned_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = sized(cache=True).save(tmp_path / "m.onnx")
    flags = ["--ranks", "2", "--dim", "past=500"]
    assert cli.main(["slice", str(model), *flags, "--output", str(tmp_path / "slices")]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("planned")] == [
        ["planned", "for", "seq=1,", "past=500"]
    ]
    assert read_manifest(tmp_path / "slices").lengths == {"seq": 1, "past": 500}
    assert cli.main(["inspect", str(tmp_path / "slices"), "--json"]) == 0
    sliced = json.loads(capsys.readouterr().out)
    assert cli.main(["inspect", str(model), *flags, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert sliced["dims"] == planned["dims"] == {"seq": 1, "past": 500}
    assert sliced["stages"] == planned["stages"]
    assert cli.main(["inspect", str(tmp_path / "slices"), "--dim", "seq=9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dims"] == {"seq": 9, "past": 500}


@pytest.mark.parametrize("command", [["slice", "--plan-only"], ["inspect"], ["run"]])
def test_a_length_that_no_input_has(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_mlp(tmp_path / "m.onnx")
    assert cli.main([*command, str(model), "--ranks", "2", "--dim", "bach=3"]) == 2
    err = capsys.readouterr().err
    assert "bach" in err and "batch" in err and "Traceback" not in err


@pytest.mark.timeout(90)
def test_a_group_for_lengths_answers_for_others(tmp_path: Path) -> None:
    model = sized(cache=True)
    path = model.save(tmp_path / "m.onnx")
    options = SliceOptions(dims={"past": 500})
    with start(path, ranks=2, launcher="local", threads=1, options=options) as group:
        for length, past in ((1, 12), (6, 0)):
            feeds = model.feeds(2, length, past)
            found, expected = group.predict(feeds), lockstep.reference(path, feeds)
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4)


def test_of_slices_in_stages_all_stages_count() -> None:
    mesh = Mesh.of(pipeline=2, tensor=2)
    weights = {"a": SimpleNamespace(bytes=100, stages=(0,)), "b": SimpleNamespace(bytes=100, stages=(0, 1))}

    def said(*held: int) -> str:
        ranks = [SimpleNamespace(weight_bytes=held[mesh.coordinates(rank)["pipeline"]]) for rank in range(4)]
        manifest = SimpleNamespace(mesh=mesh, ranks=ranks, weights=weights, whole={"MatMul": 2})
        return hardly_splits_slices(cast("Manifest", manifest))

    assert said(200, 100).startswith(f"{SAID}: each rank holds 100.0 % of the weights")
    assert said(180, 90).startswith(f"{SAID}: each rank holds 90.0 % of the weights (2 MatMul hold")
    assert not said(150, 100) and not said(200, 50)
