"""Two hosts without a common file system: what the second one has of the first one's folder is an empty one
of its own, of a few megabytes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.clusters import NAMES
from tests.launcher.clusters.conftest import Cluster
from tests.launcher.clusters.test_two_hosts import IN_TWO_NODES, TWO
from tests.launcher.processes import wait_until

FIRST, SECOND = NAMES
DATA = 12 << 20


class Apart(Cluster):
    """The same hosts with a folder that only the first has."""

    def there(self, *words: object) -> str:
        """What a command on the second host prints."""
        done = subprocess.run(
            self.hosts.command(SECOND, words), capture_output=True, text=True, timeout=30, check=True
        )
        return done.stdout

    def kept(self) -> list[str]:
        """The files of copies in the cache of the second host."""
        found = self.there("find", self.folder.parent, "-type", "f", "-path", "*/slices/*")
        return sorted(path.rpartition("/slices/")[2] for path in found.splitlines())

    def resized(self, size: str) -> None:
        """Gives the second host an empty file system of this size."""
        if str(self.folder.parent) in self.there("cat", "/proc/mounts"):
            self.there("umount", self.folder.parent)
        self.there("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", self.folder.parent)


@pytest.fixture(scope="module")
def hosts_apart(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    made = Apart(cluster.hosts, tmp_path_factory.mktemp("apart") / "work")
    manifest = json.loads((made.slices / "manifest.json").read_text())
    for rank in manifest["ranks"]:
        data = np.random.default_rng(rank["rank"]).bytes(DATA)
        path = made.slices / f"rank_{rank['rank']}.data"
        path.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        rank["files"].append({"file": path.name, "bytes": DATA, "sha256": digest})
    (made.slices / "manifest.json").write_text(json.dumps(manifest))
    made.resized("64m")
    try:
        yield made
    finally:
        made.there("umount", made.folder.parent)


@pytest.fixture
def apart(hosts_apart: Apart) -> Apart:
    hosts_apart.resized("64m")
    return hosts_apart


def check(apart: Apart, launcher: str, before: tuple[str, ...] = ()) -> None:
    hosts = ("--ranks", 2) if before else TWO
    words = ("-v", "run", apart.slices, *hosts, "--launcher", launcher, "--stage", "--verify")
    for again in (False, True):
        done = apart.run(*words, before=before)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(" ok") and "DIFFERS" not in done.stdout
        sent = re.search(rf"{SECOND} has 12\.6 MB for its ranks, of which (.*) were sent now", done.stderr)
        assert sent is not None and sent[1] == ("0 B" if again else "12.6 MB"), done.stderr
        names = {re.sub(r"^whole-1-[0-9a-f]{24}(\.lock)?", "", path) for path in apart.kept()}
        assert names == {"", "/complete.json", "/manifest.json", "/rank_1.onnx", "/rank_1.data"}


@pytest.mark.parametrize("launcher", ["ssh", "mpirun"])
def test_files_of_its_ranks_are_copied(apart: Apart, launcher: str) -> None:
    check(apart, launcher)


def test_files_are_copied_to_nodes_of_slurm(slurm: Cluster, apart: Apart) -> None:
    apart.slurm = slurm.slurm
    try:
        check(apart, "slurm", IN_TWO_NODES)
    finally:
        apart.slurm = None


@pytest.mark.parametrize("launcher", ["ssh", "mpirun"])
def test_without_it_the_error_says_so(apart: Apart, launcher: str) -> None:
    done = apart.run("run", apart.slices, *TWO, "--launcher", launcher)
    assert done.returncode == 1
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"shardrun: error: rank 1 on host {SECOND}"), done.stderr
    assert f"{apart.slices} does not exist on host {SECOND}" in first and "give --stage" in first


def test_an_empty_folder_is_a_file_system_that_is_not_mounted(apart: Apart) -> None:
    apart.there("mkdir", "-p", apart.slices)
    done = apart.run("run", apart.slices, *TWO, "--launcher", "ssh")
    apart.there("rmdir", apart.slices)
    assert done.returncode == 1
    assert f"{apart.slices} is an empty folder on host {SECOND}" in done.stderr.splitlines()[0]
    assert "give --stage" in done.stderr.splitlines()[0]


def test_a_model_is_sliced_here_and_copied(apart: Apart) -> None:
    from tests.launcher.cli_tools import save_mlp

    save_mlp(apart.folder / "model.onnx")
    done = apart.run("run", apart.folder / "model.onnx", *TWO, "--launcher", "ssh", "--stage", "--verify")
    assert done.returncode == 0, done.stderr
    assert any("rank_1.onnx" in path for path in apart.kept())
    assert not any("rank_0" in path for path in apart.kept())


def test_rank_models_made_elsewhere_are_copied(apart: Apart) -> None:
    """Each rank's own file, with the weights beside it."""
    for rank in range(2):
        (apart.folder / "made" / f"rank_{rank}").mkdir(parents=True, exist_ok=True)
        model = onnx.load(apart.slices / f"rank_{rank}.onnx")
        onnx.save(
            model, apart.folder / "made" / f"rank_{rank}" / "model.onnx", save_as_external_data=True,
            location="weights", size_threshold=0,
        )  # fmt: skip
    words = ("run", apart.folder / "made" / "rank_{}" / "model.onnx", *TWO, "--launcher", "ssh", "--stage")
    done = apart.run(*words)
    assert done.returncode == 0, done.stderr
    found = apart.there("find", apart.folder.parent, "-type", "f", "-path", "*/staged/*").splitlines()
    names = {path.rpartition("/")[2] for path in found if not path.endswith(".lock")}
    assert names == {"model.onnx", "weights", "complete.json"}


@pytest.mark.parametrize("size", ["4m", "13m"])
def test_a_full_disk(apart: Apart, size: str) -> None:
    """It is seen before, or where another has taken the room meanwhile, when it is written to."""
    apart.resized(size)
    if size == "13m":  # free room is counted before this process, which writes slowly, has filled it
        apart.there("fallocate", "-l", "1m", apart.folder.parent / "another's")
    done = apart.run("run", apart.slices, *TWO, "--launcher", "ssh", "--stage")
    assert done.returncode == 1
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"shardrun: error: host {SECOND}: {apart.folder}/cache/slices/"), done.stderr
    assert "are needed there and" in first and "set SHARDRUN_CACHE to a folder" in first
    assert not any("rank_1" in path for path in apart.kept())


def test_a_host_that_goes_while_files_are_copied(apart: Apart) -> None:
    """The first cause names it; when it is back, the copy goes on where it was."""
    shape = ("tc", "-n", apart.hosts.switch, "qdisc")
    device = ("dev", f"p-{SECOND}", "root")
    slow = ("tbf", "rate", "24mbit", "burst", "32kb", "latency", "50ms")
    done = subprocess.run([*shape, "add", *device, *slow], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"tc cannot shape the link here ({done.stderr.strip()})")
    words = ("-v", "run", apart.slices, *TWO, "--launcher", "ssh", "--stage", "--verify")

    def cut() -> None:
        wait_until(lambda: any(path.endswith("rank_1.data") for path in apart.kept()), 60)
        wait_until(lambda: False, 0.5)
        apart.hosts.link(SECOND, "down")

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        command = apart.hosts.command(
            FIRST, [sys.executable, "-m", "launcher.cli", *words], SHARDRUN_CACHE=str(apart.folder / "cache")
        )
        done = subprocess.run(
            command, cwd=apart.folder, capture_output=True, text=True, timeout=100, check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )  # fmt: skip
    finally:
        thread.join()
        subprocess.run([*shape, "del", *device], check=True)
        apart.hosts.link(SECOND, "up")
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert errors and f"shardrun: error: host {SECOND} is gone: ssh ended" in errors[0], done.stderr
    assert "the next --stage goes on behind them" in errors[0]
    assert wait_until(lambda: "receiver" not in apart.there("ps", "-eo", "args"), 30)
    done = apart.run(*words)
    assert done.returncode == 0, done.stderr
    sent = re.search(r"12\.6 MB for its ranks, of which (.*) MB were sent now", done.stderr)
    assert sent is not None and 0 < float(sent[1]) < 12.5
