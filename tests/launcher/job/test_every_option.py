"""Every key of a job file, by every command that reads one: followed, refused, or said not to be followed."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from launcher.cli import build_parser, main
from launcher.errors import ConfigError
from launcher.generation.options import GENERATE, GenerateOptions
from launcher.job.job import gather
from launcher.job.option_table import Option
from launcher.job.options import OPTIONS, Options
from launcher.job.values import Several
from launcher.submission.names import SYSTEMS
from launcher.submission.options import SUBMIT, SubmitOptions
from tests.launcher.cli_tools import save_mlp

KEYS: dict[str, object] = {
    "model": "m.onnx", "ranks": 2, "rank_table": "table.json", "launcher": "local", "hosts": "a:1,b:1",
    "hostfile": "hosts.txt", "nodes": 2, "bind": "none", "env": {"GREETING": "hello"},
    "mpi_args": "--verbose", "srun_args": "--time=5", "stage": True, "ray_address": "head:6379", "gpus": 1,
    "target": "gpu", "collectives": "gloo", "threads": 3, "timeout": 33, "hang_timeout": 22,
    "log_dir": "logs", "tee": "0", "log_json": True, "restart": "on-failure", "allow_replicated": True,
    "strategy": "pipeline", "mesh": "tensor=2", "micro_batches": 2, "memory": "1GB",
    "link": "1Gbit/s,0.2ms", "profile": "profile.json", "steer": "steer.yaml", "plan": "plan.json",
    "sums": "whole", "ignore_annotations": True, "state": {"x": "y"}, "inputs": ["x.npz"],
    "dims": {"batch": 4}, "seed": 3, "output": "y.npz", "repeat": 4, "verify": True, "against": "m.onnx",
    "files": ["*.npz"], "outputs": "answers", "resume": True, "keep_going": True,
    "precision_mode": "enforce_fp32", "execution_plan": {"MatMul": "float32"}, "dec_key_file": "key",
    "dec_mode": "AES-GCM",
}  # fmt: skip
BESIDE: dict[str, dict[str, object]] = {
    "micro_batches": {"strategy": "pipeline"}, "outputs": {"files": ["*.npz"]},
    "resume": {"files": ["*.npz"], "outputs": "answers"}, "keep_going": {"files": ["*.npz"], "outputs": "a"},
    "files": {"outputs": "answers"}, "dec_mode": {"dec_key_file": "key"}, "against": {"verify": True},
}  # fmt: skip
"""What some of them need to be of any use."""
IN_JOBS = {"ranks": {"--ntasks=2", "mpiprocs=2", "completions: 2"}, "nodes": {"--nodes=2", "select=2:"},
           "env": {"GREETING"}, "model": {"m.onnx"}}  # fmt: skip
"""What shows in a job that is handed in that these are followed, where it is no flag of the same name."""
OF_THE_LOG = {"tee", "log_json"}
"""Followed where the log is shown, and not by the job."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    save_mlp(folder / "m.onnx")
    np.savez(folder / "x.npz", x=np.ones((4, 8), np.float32))
    (folder / "key").write_bytes(b"0123456789abcdef")
    for name, text in (("steer.yaml", "'w0': column\n"), ("profile.json", "[]"), ("plan.json", "{}")):
        (folder / name).write_text(text)
    return folder


def job_file(folder: Path, name: str) -> Path:
    path = folder / f"{name}.json"
    said = {"model": "m.onnx", "ranks": 2, **BESIDE.get(name, {}), name: KEYS[name]}
    for one, other in (("mesh", "ranks"), ("rank_table", "ranks")):
        if one == name:
            said.pop(other)
    path.write_text(json.dumps(said))
    return path


def test_every_option_is_tried() -> None:
    assert set(KEYS) == set(OPTIONS)


@pytest.mark.parametrize("system", SYSTEMS.own)
def test_a_job_that_is_handed_in(
    system: str, folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    image = ["--image", "i"] if system == "kubernetes" else []
    dropped = {}
    for name, option in OPTIONS.items():
        words = ["submit", f"--{system}", "--config", str(job_file(folder, name)), "--dry-run", *image]
        caplog.clear()
        code = main(words)
        out, errors = capsys.readouterr()
        out = out.replace('"', " ")
        errors += "".join(record.getMessage() for record in caplog.records)
        shown = any(text in out for text in (*IN_JOBS.get(name, ()), f"{option.flag}=", f"{option.flag}\n"))
        shown = shown or option.flag in out.split()
        told = name in errors or option.flag in errors
        refused = code != 0 and errors
        if not (shown or told or refused or name in OF_THE_LOG):
            dropped[name] = out, errors
    assert not dropped, sorted(dropped)


def test_restart_of_a_job_file_is_not_dropped(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = job_file(folder, "restart")
    assert main(["submit", "--slurm", "--config", str(path), "--dry-run"]) == 0
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: this command does not follow restart"
    ]


def test_run_follows_all() -> None:
    args = build_parser("run").parse_args(["run", "m.onnx"])
    assert args.takes | {"model"} == set(OPTIONS)


@pytest.mark.parametrize(
    "words",
    [
        ["serve"],
        ["eval", "m.onnx", "--data", "d.csv", "--metric", "accuracy"],
        ["generate"],
        ["scripts", "m.onnx", "--output", "o"],
    ],
    ids=lambda w: w[0],
)
def test_other_commands_say_what_they_leave_out(
    words: list[str], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    takes = vars(build_parser(words[0]).parse_args(words))["takes"]
    assert takes < set(OPTIONS) and takes
    for name in OPTIONS:
        if name in {"dec_key_file", "dec_mode"}:  # the key is read
            continue
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            gather({"takes": takes}, job_file(folder, name))
        said = " ".join(record.getMessage() for record in caplog.records)
        assert (f"does not follow {name}" in said or f", {name}" in said) == (
            name not in takes | {"model"}
        ), (name, said)


def test_a_list_of_models_says_so_too(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    from launcher.serving.opening import offers

    path = folder / "models.json"
    path.write_text(json.dumps({"models": {"a": {"model": "m.onnx", "ranks": 2, "verify": True}}}))
    args = build_parser("serve").parse_args(["serve", str(path)])
    with caplog.at_level(logging.WARNING):
        (offer,) = offers(vars(args), None, None)
    assert offer.job.ranks == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: $.models.a: this command does not follow verify"
    ]


@pytest.mark.parametrize(
    ("options", "holder"), [(GENERATE, GenerateOptions), (OPTIONS, Options), (SUBMIT, SubmitOptions)]
)
def test_a_flag_that_may_be_repeated_is_named_where_one_of_its_values_is_wrong(
    options: dict[str, Option], holder: type[GenerateOptions | Options | SubmitOptions]
) -> None:
    repeated = {name: option.flag for name, option in options.items() if isinstance(option.kind, Several)}
    assert repeated or options is OPTIONS
    for name, flag in repeated.items():
        with pytest.raises(ConfigError, match=f"^{flag}: expected .*, found ''"):
            holder().with_flags({name: [""]})
