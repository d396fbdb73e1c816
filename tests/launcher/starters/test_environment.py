"""What started ranks are told of Python, and which files are copied to their hosts."""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path
from typing import Any

import pytest

import ranks
from launcher.job.rank_table import make_rank_table
from launcher.starters import local
from launcher.starters.environment import boot_command, python_path, python_there, safe_path
from launcher.starters.staging.copies import Copy, in_words
from ranks.cache.place import FORMS
from ranks.cache.staged import RANK_MODEL, SLICES
from sharding.slices.manifest import FileEntry

ROOT = str(Path(ranks.__file__).resolve().parent.parent)


def test_where_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "getsitepackages", lambda: ["/elsewhere"])
    monkeypatch.setattr(site, "getusersitepackages", lambda: "/mine")
    assert python_path({}) == ROOT
    assert python_path({"PYTHONPATH": "/a:/b"}) == os.pathsep.join([ROOT, "/a", "/b"])
    for name, found in {"getsitepackages": ["/elsewhere", ROOT], "getusersitepackages": ROOT}.items():
        with monkeypatch.context() as patch:
            patch.setattr(site, name, lambda found=found: found)
            assert python_path({"PYTHONPATH": "/a"}) is None  # it finds them by itself


def test_the_words_that_start_python() -> None:
    assert python_there(None, "-m", "x") == ["env", "PYTHONSAFEPATH=1", sys.executable, "-m", "x"]
    assert python_there("/p", "-c") == ["env", "PYTHONSAFEPATH=1", "PYTHONPATH=/p", sys.executable, "-c"]
    assert boot_command()[0] == sys.executable and "ranks.boot" in boot_command()[-1]


def test_what_a_user_says_of_the_safe_path_stays() -> None:
    assert safe_path({}) == {"PYTHONSAFEPATH": "1", "SHARDRUN_SAFE_PATH": "1"}
    assert safe_path({"PYTHONSAFEPATH": ""}) == {}


@pytest.mark.parametrize("path", [None, "/packages"])
def test_what_ranks_of_this_host_are_told(monkeypatch: pytest.MonkeyPatch, path: str | None) -> None:
    made: list[Any] = []
    monkeypatch.setattr(local, "LocalHandle", lambda program, told: made.append((program, told)))
    monkeypatch.setattr(local.environments, "python_path", lambda environ: path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    table = make_rank_table([("localhost", 2)])
    local.LocalLauncher().start(["run", "m"], 2, {"A": "b"}, table)
    [(program, told)] = made
    assert program == ["run", "m"] and len(told) == 2
    for rank, variables in enumerate(told):
        assert {name: variables[name] for name in ("RANK", "LOCAL_RANK", "DEVICE_ID")} == {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "DEVICE_ID": str(table.devices[rank].device_id)
        }  # fmt: skip
        assert (variables["WORLD_SIZE"], variables["LOCAL_WORLD_SIZE"], variables["A"]) == ("2", "2", "b")
        assert variables.get("PYTHONPATH") == path
    local.LocalLauncher().start(["run"], 1, {})
    assert "DEVICE_ID" not in made[1][1][0]


FILES = (FileEntry("a", 3, "0" * 64), FileEntry("b", 4, "1" * 64))


def copy(
    *files: FileEntry, ranks: tuple[int, ...] = (0, 2), model: str = "my model.onnx", file: str = ""
) -> Copy:
    return Copy("h", list(ranks), Path("folder"), model, files or FILES, file)


def test_the_key_of_a_copy_is_that_of_its_files() -> None:
    one = copy()
    assert one.bytes == 7 and one.kind == SLICES and copy(file="a").kind == RANK_MODEL
    assert one.key == Copy("other", [5, 7], Path("x"), "my model.onnx", FILES).key
    keys = {
        one.key,
        copy(*reversed(FILES)).key,
        copy(FILES[0]).key,
        copy(FileEntry("a", 3, "2" * 64), FILES[1]).key,
        copy(FileEntry("c", 3, "0" * 64), FILES[1]).key,
        copy(ranks=(0,)).key,
        copy(model="other.onnx").key,
        copy(file="a").key,
    }
    assert len(keys) == 8
    for name in ("my model.onnx", "ä" * 90, ".onnx", "a.b.onnx"):
        for made in (copy(model=name), copy(model=name, file="a")):
            assert FORMS[made.kind].key(made.key) == made.key  # as the host takes it


@pytest.mark.parametrize(
    ("count", "said"),
    [(1, "h0"), (3, "h0, h1, h2"), (4, "h0, h1, h2 and 1 more hosts"), (9, "h0, h1, h2 and 6 more hosts")],
)
def test_hosts_in_words(count: int, said: str) -> None:
    made = [Copy(f"h{number}", [0], Path(), "m", FILES) for number in range(count)]
    assert in_words(made) == said
