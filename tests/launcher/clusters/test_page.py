"""The commands of docs/clusters.md, on two hosts and in Slurm; the others run with those of all pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.common.mpi_library import flavour_of, library_version
from tests.clusters import NAMES
from tests.end_to_end.test_documents import ROOT, blocks, matches
from tests.launcher.cli_tools import environment, save_mlp
from tests.launcher.clusters.conftest import SECONDS, Cluster

PAGE = ROOT / "docs" / "clusters.md"


def commands(kind: str) -> list[tuple[str, str]]:
    found = []
    for _, _, text in blocks(PAGE, kind):
        own = text.replace("node1", NAMES[0]).replace("node2", NAMES[1])
        # Which cores there are is the machine's.
        own = re.sub(r"^cores .*$", "...", own, flags=re.MULTILINE)
        found += re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", own, re.MULTILINE)
    return found


def run_all(cluster: Cluster, folder: Path, kind: str) -> None:
    save_mlp(folder / "model.onnx")
    program = folder / "bin" / "shardrun"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m launcher.cli "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), str(cluster.hosts.bin), os.environ["PATH"], "/usr/sbin"])
    more = cluster.slurm.environment if cluster.slurm is not None else {}
    told = {"PATH": path, "COLUMNS": "120", "SHARDRUN_CACHE": str(folder / "cache"), **more}
    asked = commands(kind)
    assert len(asked) > 3
    for command, expected in asked:
        words = cluster.hosts.command(NAMES[0], ["bash", "-c", f"cd {folder} && {command}"], **told)
        done = subprocess.run(
            words, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert matches(expected, done.stdout), f"{command}\nsays:\n{done.stdout}\n{done.stderr}"


def test_commands_for_hosts(cluster: Cluster, tmp_path: Path) -> None:
    run_all(cluster, tmp_path, "hosts")


def test_commands_for_slurm(slurm: Cluster, tmp_path: Path) -> None:
    run_all(slurm, tmp_path, "slurm")
    assert slurm.slurm is not None
    slurm.slurm.idle()


@pytest.mark.parametrize("plugin", ["none", "pmi2", "pmix"])
def test_the_table_of_plugins(slurm: Cluster, plugin: str) -> None:
    """With the MPI library that is installed here: the row of the page says what comes of each plugin."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    if flavour_of(library_version()) != "openmpi":  # asked elsewhere: to import it here would start MPI
        pytest.skip("the MPI library here is not Open MPI")
    listed = slurm.hosts.command(NAMES[0], ["srun", "--mpi=list"], **slurm.slurm.environment)  # type: ignore[union-attr]
    if plugin not in subprocess.run(listed, capture_output=True, text=True, check=False).stdout:
        pytest.skip(f"this Slurm has no plugin {plugin}")
    done = slurm.run(
        *("run", slurm.slices, "--timeout", "30"),
        before=("srun", "--nodes=2", "--ntasks=2", f"--mpi={plugin}", "--kill-on-bad-exit=1"),
    )  # fmt: skip
    if plugin == "pmi2":
        assert done.returncode != 0 and "made a world of 1" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert f"collectives by             {'mpi' if plugin == 'pmix' else 'gloo'}" in done.stdout
