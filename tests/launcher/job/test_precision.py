"""Precision modes and execution plans of commands and job files: the same numbers as `Model` gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import ranks
from launcher.cli import main
from launcher.errors import ConfigError
from launcher.group.group import start
from launcher.job import precision
from launcher.job.job import Job, merge
from launcher.starters.scripts import write_scripts
from ranks.precision.request import Asked
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import save_mlp

PLAN = {"MatMul": "float16"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_mlp(tmp_path / "m.onnx")
    x = np.random.default_rng(2).standard_normal((4, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    return tmp_path


def of_the_api(folder: Path, config: dict[str, dict[str, str]]) -> Any:
    model = ranks.Model()
    model.build_from_file(str(folder / "m.onnx"), ranks.ModelType.MINDIR, config_dict=config)
    return model.predict([np.load(folder / "x.npz")["x"]])[0].get_data_to_numpy()


def close(a: Any, b: Any, most: float) -> bool:
    return bool(np.max(np.abs(a - b)) <= most * np.max(np.abs(b)))


def test_the_longest_plan() -> None:
    """One argument of a program takes 128 kB."""
    most, one = 100_000, Job(target="gpu", execution_plan={"x": "float16"})
    short = precision.asked(one)
    assert short is not None
    name = "x" * (most - len(short.to_text()) + 1)
    precision.check(Job(target="gpu", execution_plan={name: "float16"}))
    with pytest.raises(ConfigError, match="the plan has 1 entries, together longer than 100000 characters"):
        precision.check(Job(target="gpu", execution_plan={name + "x": "float16"}))


def test_run_does_what_the_api_does(folder: Path) -> None:
    whole = of_the_api(folder, {})
    wanted = of_the_api(folder, {"execution_plan": {"MatMul": "data_type:float16"}})
    assert not close(wanted, whole, 1e-5)
    common = ("run", "m.onnx", "--input", "x.npz", "--output", "y.npz", "--verify")
    done = shardrun(*common, "--ranks", 2, "--execution-plan", "MatMul=float16", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "0.02" in done.stdout, "the tolerance is float16's"
    got = np.load(folder / "y.npz")["y"]
    # Ranks round their parts of a sum before they add them up.
    assert close(got, wanted, 2e-3)
    assert not close(got, whole, 1e-5)
    done = shardrun(*common, "--ranks", 2, "--precision-mode", "enforce_fp32", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert close(np.load(folder / "y.npz")["y"], whole, 1e-5)


def test_eval_on_one_rank_gives_the_same_bits(folder: Path) -> None:
    wanted = of_the_api(folder, {"execution_plan": {"MatMul": "data_type:float16"}})
    np.savez(folder / "data.npz", x=np.load(folder / "x.npz")["x"], label=wanted)
    job = {"model": "m.onnx", "execution_plan": PLAN}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    common = ("eval", "m.onnx", "--data", "data.npz", "--metric", "max_error", "--output", "r.json")
    ways: list[tuple[tuple[str, ...], bool]] = [
        (("--execution-plan", "MatMul=data_type:float16"), True),
        (("--config", "job.yaml"), True),
        ((), False),
    ]
    for extra, same in ways:
        done = shardrun(*common, *extra, cwd=folder)
        assert done.returncode == 0, done.stderr
        found = json.loads((folder / "r.json").read_text())["metrics"]["max_error"]
        assert (found == 0) is same


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Conv", "[execution_plan] Conv: "),
        (
            "of\ntwo \x1b[31mlines",
            "--execution-plan of\\ntwo \\x1b[31mlines: the model has no node or operator",
        ),
    ],
)
def test_a_plan_that_fits_nothing(folder: Path, name: str, shown: str) -> None:
    for ranks_ in (1, 2):
        done = shardrun("run", "m.onnx", "--ranks", ranks_, "--execution-plan", f"{name}=float16", cwd=folder)
        assert done.returncode == 2
        assert shown in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


def test_a_group(folder: Path) -> None:
    wanted = of_the_api(folder, {"execution_plan": {"MatMul": "data_type:float16"}})
    with start(folder / "m.onnx", ranks=1, precision=Asked("", tuple(PLAN.items()))) as group:
        got = group.predict({"x": np.load(folder / "x.npz")["x"]})["y"]
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "m.onnx", "--precision-mode", "enforce_fp16"],
         "--precision-mode enforce_fp16 is no mode of the target cpu: expected one of enforce_fp32"),
        (["run", "m.onnx", "--target", "ascend", "--precision-mode", "preferred_fp16"],
         "is no mode of the target ascend: expected one of enforce_fp32, preferred_fp32"),
        (["run", "m.onnx", "--precision-mode", "fp8"], "invalid choice: 'fp8'"),
        (["run", "m.onnx", "--execution-plan", "MatMul"], "--execution-plan MatMul: expected NAME=float16"),
        (["run", "m.onnx", "--execution-plan", "=float16"], "--execution-plan =float16: expected NAME="),
        (["run", "m.onnx", "--execution-plan", "MatMul=int8"], "--execution-plan MatMul=int8: expected"),
        (["run", "m.onnx", "--execution-plan", "A=float16", "--execution-plan", "A=float32"],
         "'A' is given twice, with two types"),
        (["slice", "m.onnx", "--ranks", "2", "--plan-only", "--precision-mode", "enforce_fp32"],
         "slices keep the model's types; give --precision-mode and --execution-plan to `shardrun run`"),
    ],
)  # fmt: skip
def test_wrong_options(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    try:
        code = main(arguments)
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err


def test_job_files(folder: Path) -> None:
    def job(data: dict[str, Any], **flags: Any) -> Job:
        (folder / "job.yaml").write_text(yaml.safe_dump({"model": "m.onnx", **data}))
        return merge(flags, folder / "job.yaml")

    made = job({"precision_mode": "enforce_fp32", "execution_plan": PLAN})
    assert precision.asked(made) == Asked("enforce_fp32", (("MatMul", "float16"),))
    assert precision.asked(job({})) is None
    # Flags win, entry by entry.
    made = job(
        {"execution_plan": PLAN},
        execution_plan=["MatMul=float32", "a=b=float16"],
        precision_mode="preferred_fp16",
    )
    assert precision.asked(made) == Asked("preferred_fp16", (("MatMul", "float32"), ("a=b", "float16")))
    asked = precision.asked(made)
    assert asked is not None
    assert Asked.from_text(asked.to_text()) == asked
    for data, message in (
        ({"precision_mode": "enforce_fp16"}, "--precision-mode enforce_fp16 is no mode of the target cpu"),
        ({"precision_mode": 3}, r"\$.precision_mode: expected a precision mode of the target"),
        (
            {"execution_plan": {"a": "float8"}},
            r"\$.execution_plan.a: expected float16 or float32, found \"float8\"",
        ),
        ({"execution_plan": ["a"]}, r"\$.execution_plan: expected a mapping of names"),
        ({"execution_plan": {f"node{n}": "float16" for n in range(9999)}}, "name types of operators instead"),
    ):
        with pytest.raises(ConfigError, match=message):
            job(data)


def test_scripts_ask_for_the_same(folder: Path) -> None:
    made = Job(folder / "m.onnx", ranks=1, precision_mode="enforce_fp32", execution_plan={"a b": "float16"})
    write_scripts(made, folder / "job", "python")
    text = (folder / "job" / "rank_0.sh").read_text()
    assert "--precision-mode enforce_fp32" in text
    assert "--execution-plan 'a b=float16'" in text


def test_types_for_tolerances() -> None:
    plan = (("a", "float16"),)
    assert precision.computed(None, "cpu") == set()
    assert precision.computed(Asked("preferred_fp16"), "cpu") == set(), (
        "a preference that is not followed there"
    )
    assert precision.computed(Asked("preferred_fp16"), "gpu") == {"float16"}
    assert precision.computed(Asked("enforce_fp32", plan), "cpu") == {"float16"}
    assert precision.computed(Asked("enforce_fp32", (("a", "float32"),)), "gpu") == set()
    # As TF32 (11 bits) float32 products are off by up to 2**-11 of each factor: within no 1e-4.
    assert precision.computed(None, "gpu") == {"tf32"}
    assert precision.computed(Asked("", (("a", "float32"),)), "gpu") == {"tf32"}
    assert precision.computed(None, "ascend") == set()
