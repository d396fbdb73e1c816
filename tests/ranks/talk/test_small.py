"""Small processes beside ranks: what they load, and where from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ranks.talk import small

HEAVY = {"typing", "re", "dataclasses", "pathlib", "logging", "site", "ranks", "sharding", "numpy"}
SHOW = f"import sys; print(sorted({HEAVY!r} & set(sys.modules)), *sys.argv[1:])"
LATER = "import site; site.main(); import numpy, ranks.common.waiting; print(ranks.__file__, numpy.pi > 3)"


def run(module: str, code: str, folder: Path, *words: str, **environ: str) -> str:
    done = subprocess.run(
        small.command(module, code, *words),
        cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("module", ["ranks.talk.sentry", "ranks.talk.witness"])
@pytest.mark.parametrize("safe", [{}, {"PYTHONSAFEPATH": "1"}, {"PYTHONPATH": ""}], ids=str)
def test_they_load_next_to_nothing_and_nothing_of_the_folder_they_start_in(
    module: str, safe: dict[str, str], tmp_path: Path
) -> None:
    name = module.rpartition(".")[2]
    for taken in (name, "select", "signal", "threading", "ranks"):
        (tmp_path / f"{taken}.py").write_text(f"raise SystemExit('{taken} of the current folder')\n")
    assert run(module, SHOW, tmp_path, "1", "two words", **safe) == "[] 1 two words\n"
    alone = f"assert {name}.__file__.endswith('ranks/talk/{name}.py'); {SHOW}"
    assert run(module, alone, tmp_path, **safe) == "[]\n"


def test_later_they_find_our_packages_and_those_of_others(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text("raise SystemExit('ranks of the current folder')\n")
    found = run("ranks.talk.witness", LATER, tmp_path)
    assert found == f"{Path(small.__file__).parents[1] / '__init__.py'} True\n"
