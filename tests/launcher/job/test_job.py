# ruff: noqa: E501 - the tables of cases stay one line each
"""Job files and flags: what wins, where relative paths lead, and one clear sentence for everything wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import launcher
from launcher.errors import ConfigError
from launcher.job.job import Job, merge
from launcher.job.job_file import read_job_file
from launcher.job.options import EXCLUSIVE, OPTIONS, Options
from launcher.job.values import parse_bytes, parse_dims
from sharding.demands.options import SliceOptions
from sharding.slices.mesh import Mesh, parse_mesh


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "model.onnx").touch()
    (tmp_path / "jobs" / "hosts.json").touch()
    return tmp_path / "jobs"


def write(folder: Path, data: Any) -> Path:
    path = folder / "job.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return path


def test_every_option_of_a_job_has_a_key() -> None:
    # The key itself is in no job file.
    assert set(OPTIONS) == set(Job.__dataclass_fields__) - {"key"}
    assert all(option.kind.expected for option in OPTIONS.values())


def test_what_a_job_system_is_told_is_left_aside(folder: Path) -> None:
    path = write(folder, {"model": "model.onnx", "submit": {"nodes": 2, "unknown": 1}})
    assert read_job_file(path) == {"model": folder / "model.onnx"}


def test_every_option_of_slicing_can_be_given() -> None:
    asked = [option.slices for option in OPTIONS.values() if option.slices]
    assert sorted(asked) == sorted(SliceOptions.__dataclass_fields__)


def test_paths_are_relative_to_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, {
        "model": "model.onnx", "rank_table": "hosts.json", "output": "../out.npz", "against": "/abs/m.onnx",
        "inputs": ["in.npz", "x=x.bin"], "dims": {"batch": 2}, "threads": 3, "repeat": 5, "verify": True,
        "timeout": 10, "seed": 0, "launcher": "local", "collectives": "shm", "allow_replicated": False,
    })  # fmt: skip
    monkeypatch.chdir(folder.parent)
    options = read_job_file(Path("jobs/job.yaml"))
    assert options == {
        "model": folder / "model.onnx", "rank_table": folder / "hosts.json", "output": folder / "../out.npz",
        "against": Path("/abs/m.onnx"), "inputs": (f"{folder}/in.npz", f"x={folder}/x.bin"), "dims": {"batch": 2},
        "threads": 3, "repeat": 5, "verify": True, "timeout": 10, "seed": 0, "launcher": "local",
        "collectives": "shm", "allow_replicated": False,
    }  # fmt: skip
    write(folder, {"inputs": {"x": "x.bin", "y": "/y.npy"}})
    assert read_job_file(folder / "job.yaml")["inputs"] == (f"x={folder}/x.bin", "y=/y.npy")


def test_flags_win(folder: Path) -> None:
    config = write(folder, {"model": "model.onnx", "rank_table": "hosts.json", "threads": 3, "verify": True})
    job = merge({"threads": 4, "command": "run"}, config)
    assert (job.threads, job.verify, job.rank_table, job.ranks) == (4, True, folder / "hosts.json", None)
    job = merge({"ranks": 2}, config)
    assert (job.rank_table, job.ranks) == (None, 2)
    assert merge({"model": folder / "model.onnx"}, None).launcher == "auto"


@pytest.mark.parametrize(("first", "second"), [(first, second) for first, second, _ in EXCLUSIVE])
def test_a_flag_wins_over_what_it_excludes(first: str, second: str) -> None:
    for flag, other in ((first, second), (second, first)):
        said = Options().with_flags({other: "x"}).with_flags({flag: "y"})
        assert (getattr(said, flag), getattr(said, other)) == ("y", None)


def test_options_of_slicing(folder: Path) -> None:
    (folder / "steer.yaml").touch()
    config = write(folder, {
        "model": "model.onnx", "mesh": "data=2,tensor=3", "micro_batches": 4, "memory": "1.5 GiB",
        "steer": "steer.yaml", "sums": "whole", "ignore_annotations": True, "allow_replicated": True,
        "dims": {"batch": 8, "sequence": 1},
    })  # fmt: skip
    job = merge({}, config)
    assert (job.mesh, job.slicing.ranks()) == (parse_mesh("data=2,tensor=3"), 6)
    assert job.slicing.options() == SliceOptions(
        allow_replicated=True, mesh=job.mesh, micro_batches=4, memory=3 * 2**29, steering=folder / "steer.yaml",
        sums="whole", annotations=False, dims={"batch": 8, "sequence": 1},
    )  # fmt: skip
    dims = merge({"dims": ["sequence=5"]}, config).slicing.options().dims
    assert dims == {"batch": 8, "sequence": 5}
    assert job.slicing.given == [
        "--allow-replicated", "--mesh", "--micro-batches", "--memory", "--steer", "--sums",
        "--ignore-annotations",
    ]  # fmt: skip
    job = merge({"strategy": "pipeline", "ranks": 2}, config)
    assert (job.mesh, job.strategy, job.slicing.ranks()) == (None, "pipeline", None)
    assert merge({"model": folder / "model.onnx"}, None).slicing.options() == SliceOptions()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(
            ("1", 1),
            ("24GB", 24 * 10**9),
            ("512 MiB", 2**29),
            ("0.5kb", 500),
            ("2tb", 2 * 10**12),
            (" 7 B ", 7),
        ),
        *(("3MB", 3 * 10**6), ("2 KiB", 2048), ("1.5gib", 3 * 2**29), ("4TIB", 2**42)),
    ],
)
def test_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@given(text=st.text(max_size=20) | st.from_regex(r"[0-9.]{1,30} ?[kKMGTi]{0,3}B?"))
def test_any_bytes_are_read_or_refused(text: str) -> None:
    try:
        assert 0 < parse_bytes(text) < 2**63
    except ConfigError as error:
        assert "expected bytes" in str(error)


def test_contradictions(folder: Path) -> None:
    model, table = folder / "model.onnx", folder / "hosts.json"
    for flags, message in (
        ({}, "no model"),
        ({"model": folder / "absent.onnx"}, "absent.onnx: no such file or folder"),
        ({"model": model, "ranks": 2, "rank_table": table}, "exclude each other"),
        ({"model": model, "launcher": "external", "rank_table": table}, "excludes --rank-table"),
        (
            {"model": model, "rank_table": folder / "absent.json"},
            "absent.json: no such file; expected a rank table",
        ),
        ({"model": model, "against": folder}, "not a file; expected a model"),
        ({"model": model, "against": folder / "absent"}, "absent: no such file; expected a model"),
        ({"model": model, "strategy": "data", "mesh": Mesh.of(data=2)}, "--strategy and --mesh exclude"),
        ({"model": model, "strategy": "data", "plan": table}, "--strategy and --plan exclude"),
        ({"model": model, "steer": table, "plan": table}, "--steer and --plan exclude"),
        ({"model": model, "steer": folder}, "not a file; expected a steering file"),
        ({"model": model, "steer": folder / "absent"}, "absent: no such file; expected a steering file"),
        ({"model": model, "ranks": 3, "mesh": Mesh.of(data=2)}, "is for 2 ranks, but --ranks says 3"),
        ({"model": folder, "memory": 1}, "--memory: .* is sliced already"),
        ({"model": model, "output": folder / "absent" / "out.npz"}, "absent does not exist"),
    ):
        with pytest.raises(ConfigError, match=message):
            merge(flags, None)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "expected a mapping of options, found an empty file"),
        ("- 1\n", "expected a mapping of options, found [1]"),
        ({"rank": 2}, 'unknown key "rank"; did you mean ranks?'),
        ({"Rank-Table": "x"}, 'unknown key "Rank-Table"; did you mean rank_table?'),
        ({"zzz": 2}, 'unknown key "zzz"; expected one of model, ranks'),
        ({"ranks": "2"}, '$.ranks: expected a whole number from 1 to 4096, found "2"'),
        ({"ranks": 0}, "$.ranks: expected a whole number from 1 to 4096, found 0"),
        ({"ranks": True}, "$.ranks: expected a whole number from 1 to 4096, found true"),
        ({"ranks": 2.0}, "$.ranks: expected a whole number from 1 to 4096, found 2.0"),
        (
            {"launcher": "slurmd"},
            '$.launcher: expected one of auto, external, kubernetes, local, mpirun, ray, slurm, ssh, found "slurmd"',
        ),
        ({"verify": 1}, "$.verify: expected true or false, found 1"),
        ({"model": ["a"]}, '$.model: expected the path of a model or a slice folder, found ["a"]'),
        ({"model": ""}, '$.model: expected the path of a model or a slice folder, found ""'),
        ({"model": "a\0"}, "expected"),
        (
            {"inputs": ["a", 5]},
            "$.inputs[1]: expected the path of a file, found 5",
        ),
        ({"inputs": {"x": None}}, "$.inputs.x: expected the path of a file"),
        ({"inputs": 7}, "$.inputs: expected a list"),
        ({"inputs": {"": "x.npy"}}, '$.inputs: expected names of 1 to 4096 characters as keys, found ""'),
        ({"execution_plan": {"": "float16"}}, "$.execution_plan: expected names of 1 to 4096 characters as"),
        ({"execution_plan": {"a\0": "float16"}}, "$.execution_plan: expected names of 1 to 4096 characters"),
        ({"dims": {"": 2}}, '$.dims: expected names of 1 to 4096 characters as keys, found ""'),
        (
            {"dims": {"n": -1}},
            "$.dims.n: expected a length from 0 to 2147483647, found -1",
        ),
        ({"repeat": 0, "dims": {"n": -1}}, "$.dims.n: expected a length from 0"),
        ({"repeat": 0, "dims": 3}, "$.dims: expected a mapping of dimension names"),
        ({"timeout": 0}, "$.timeout: expected a number of seconds above 0"),
        ({"seed": 2**63}, "$.seed: expected a whole number from 0 up"),
        (
            {"mesh": "data"},
            "$.mesh: The mesh 'data' gives data the size ''; expected a whole number",
        ),
        ({"mesh": {"data": 2}}, "$.mesh: expected the sizes of mesh axes"),
        ({"strategy": "fast"}, "$.strategy: expected one of tensor, pipeline, data, auto"),
        ({"memory": "much"}, "$.memory: expected bytes such as 24GB or 512MiB, above 0, found 'much'"),
        ({"memory": 0}, "$.memory: expected a number of bytes"),
        ({"micro_batches": 0}, "$.micro_batches: expected a whole number from 1"),
        ("ranks: 1\nranks: 2\n", 'line 2: the key "ranks" is given twice'),
        ("ranks: &a 1\nseed: *a\n", "anchors and aliases are not allowed"),
    ],
)
def test_errors_name_file_key_value_and_expected(folder: Path, data: Any, message: str) -> None:
    path = write(folder, data)
    with pytest.raises(ConfigError) as caught:
        read_job_file(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(
    data=st.dictionaries(
        st.sampled_from([*OPTIONS, "x"]),
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
        | st.lists(st.text() | st.integers(), max_size=3) | st.dictionaries(st.text(), st.integers() | st.text(), max_size=3),
        max_size=4,
    )
)  # fmt: skip
def test_any_mapping_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "job.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    try:
        options = read_job_file(path)
    except ConfigError as error:
        assert any(words in str(error) for words in ("expected", "unknown key", "$.mesh: The mesh "))
    else:
        assert set(options) <= set(OPTIONS)


def test_the_longest_dimension() -> None:
    assert parse_dims([f"n={2**31 - 1}", "m=0"]) == {"n": 2**31 - 1, "m": 0}
    with pytest.raises(ConfigError, match=r"--dim n=2147483648: expected NAME=SIZE with a size from 0 to 21"):
        parse_dims([f"n={2**31}"])


def test_an_option_is_one_entry(tmp_path: Path) -> None:
    """It is a flag, a key of job files, in the help and in messages, and a field of the job."""
    shutil.copytree(Path(launcher.__file__).parent, tmp_path / "launcher")
    table = tmp_path / "launcher" / "job" / "options.py"
    entry = '    colour: str | None = described(Choice(("red", "blue")), RANKS, "what ranks are painted")\n'
    last = "    dec_key_file:"
    assert last in table.read_text()
    table.write_text(table.read_text().replace(last, entry + last))
    (tmp_path / "model.onnx").write_bytes(b"\x08")
    (tmp_path / "job.yaml").write_text("model: model.onnx\ncolour: red\n")
    (tmp_path / "wrong.yaml").write_text("colour: 3\n")
    program = """
from launcher.cli import build_parser, main
from launcher.job.job import merge
for given in ([], ["--colour", "blue"]):
    args = build_parser().parse_args(["run", "--config", "job.yaml", *given])
    print("job:", merge(vars(args), args.config).colour)
for command in (["run", "--help"], ["eval", "--help"], ["run", "--colour", "red", "--config", "wrong.yaml"],
                ["run", "--colour", "green"]):
    try:
        main(command)
    except SystemExit:
        pass
"""
    place = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True, cwd=tmp_path, env=place, text=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert re.findall("job: (.*)", done.stdout) == ["red", "blue"], done.stderr
    assert len(re.findall(r"--colour \{red,blue\}\s+what ranks are painted", done.stdout)) == 2
    assert "wrong.yaml: $.colour: expected one of red, blue, found 3" in done.stderr
    assert "argument --colour: invalid choice: 'green' (choose from" in done.stderr


def test_the_page_of_the_command_line_names_all_keys() -> None:
    text = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    keys = text.partition("The keys are ")[2].partition(". What")[0]
    named = re.findall(r"`(\w+)`", keys)
    assert sorted(named) == sorted({*OPTIONS, "float16", "float32"})
