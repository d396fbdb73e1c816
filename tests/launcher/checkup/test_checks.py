"""What the checks make of the words of other programs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.checkup.base import REGISTRY, Asked
from launcher.checkup.checks import mpi, onnxruntime, slurm, torch
from launcher.errors import LaunchError


def run(name: str) -> list[tuple[str, str]]:
    return [(one.level, one.what) for one in REGISTRY[name].run(Asked())]


def says(monkeypatch: pytest.MonkeyPatch, module: Any, text: str, code: int = 0) -> None:
    done = subprocess.CompletedProcess([], code, "" if code else text, text if code else "")
    monkeypatch.setattr(module, "ask", lambda *words, **more: done)


@pytest.mark.parametrize(
    ("text", "code", "level", "what"),
    [
        ("a warning\n2.5 1 1 2.21.5\n", 0, "ok", "2.5, Gloo, NCCL 2.21.5, sees GPUs"),
        ("2.5 1 0 \n", 0, "ok", "2.5, Gloo, no NCCL"),
        ("2.5 0 0 \n", 0, "fail", "2.5, no Gloo, no NCCL"),
        ("ImportError: no", 1, "fail", "cannot be imported (ImportError: no)"),
    ],
)
def test_torch(monkeypatch: pytest.MonkeyPatch, text: str, code: int, level: str, what: str) -> None:
    says(monkeypatch, torch, text, code)
    monkeypatch.setattr(torch, "find_spec", lambda name: name)
    assert run("torch") == [(level, what)]
    monkeypatch.setattr(torch, "find_spec", lambda name: None)
    assert run("torch") == [("warn", "not installed")]


@pytest.mark.parametrize(
    ("text", "code", "level", "what"),
    [
        ("1.2 CUDAExecutionProvider CPUExecutionProvider\n", 0, "ok", "1.2: CUDA, CPU"),
        ("1.2 CUDAExecutionProvider\n", 0, "fail", "1.2 without the CPU provider"),
        ("ImportError: no", 1, "fail", "cannot be imported (ImportError: no)"),
    ],
)
def test_onnx_runtime(monkeypatch: pytest.MonkeyPatch, text: str, code: int, level: str, what: str) -> None:
    says(monkeypatch, onnxruntime, text, code)
    assert run("onnxruntime") == [(level, what)]


@pytest.mark.parametrize(
    ("library", "level", "what"),
    [
        ("Open MPI v5.0.1, package", "ok", "Open MPI v5.0.1, /x/mpirun; mpi4py loads the same"),
        ("MPICH Version: 4.0", "fail", "/x/mpirun is openmpi, but mpi4py loads MPICH Version: 4.0"),
        (OSError("none"), "warn", "/x/mpirun; mpi4py has no library (none)"),
        (LaunchError("There is no mpirun: get one"), "warn", "There is no mpirun"),
    ],
)
def test_mpi(monkeypatch: pytest.MonkeyPatch, library: Any, level: str, what: str) -> None:
    asked: list[dict[str, str]] = []

    def find() -> Any:
        if isinstance(library, LaunchError):
            raise library
        return SimpleNamespace(path=Path("/x/mpirun"), library=Path("/x/lib.so"), library_kind="openmpi")

    def version(environ: dict[str, str]) -> str:
        asked.append(environ)
        if isinstance(library, OSError):
            raise library
        return str(library)

    monkeypatch.setattr(mpi, "find", find)
    monkeypatch.setattr(mpi, "library_version", version)
    assert run("mpi") == [(level, what)]
    assert asked == ([] if isinstance(library, LaunchError) else [{"MPI4PY_LIBMPI": "/x/lib.so"}])


@pytest.mark.parametrize(
    ("text", "code", "level", "what"),
    [
        ("a* 2 idle\nb 1 down\nodd\n", 0, "ok", "a: 2 idle, b: 1 down; this is job 7"),
        ("a* 2 mix-\n", 0, "ok", "a: 2 mix-; this is job 7"),
        ("a* 2 down*\n", 0, "warn", "no node can take a job (a: 2 down*)"),
        ("", 0, "warn", "no node can take a job (none is known)"),
        ("no daemon", 1, "warn", "installed, but it does not answer (no daemon)"),
    ],
)
def test_slurm(monkeypatch: pytest.MonkeyPatch, text: str, code: int, level: str, what: str) -> None:
    says(monkeypatch, slurm, text, code)
    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert run("slurm") == [(level, what)]
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
    ((level, what),) = run("slurm")
    assert level == "ok" and what.startswith("not installed here")
