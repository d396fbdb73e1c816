"""Ranks as actors of a Ray cluster of two nodes, which are processes of this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import LaunchError
from launcher.starters import base
from launcher.starters.ray import RayLauncher, why_gone
from tests.launcher.processes import Runner, wait_until

SECONDS = 180.0
ON_LOOPBACK = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: at 70 MB it is no requirement of the tests (pip install 'shardrun[ray]')",
)

CLUSTER = """\
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = cluster.add_node(num_cpus=2)
print(cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(second, allow_graceful=False)
    second = cluster.add_node(num_cpus=2) if "anew" in line else None
    print("removed", flush=True)
cluster.shutdown()
"""
RUN = """\
import sys
from launcher.cli import main
sys.exit(main(["exec", "--launcher", "ray", *sys.argv[1:]]))
"""
# The process of Ray's worker is the parent of the agent, which is the rank's.
ACTOR = "int(open(f'/proc/{os.getppid()}/stat').read().rsplit(')', 1)[1].split()[1])"


@pytest.fixture(scope="module")
def cluster() -> Iterator[subprocess.Popen[str]]:
    # Ray's sockets lie there, whose paths must be short.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, **ON_LOOPBACK, "RAY_TMPDIR": folder}, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            os.environ["RAY_ADDRESS"] = process.stdout.readline().strip()
            yield process
        finally:
            os.environ.pop("RAY_ADDRESS", None)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(SECONDS)
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "rank.py"
    path.write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\nexec(sys.argv[1])\n")
    return path


@needs_ray
def test_what_each_rank_is_told(cluster: subprocess.Popen[str], run_script: Runner, script: Path) -> None:
    """Three ranks on nodes of one core and two: their folder, their variables, and what they print."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SHARDRUN_COLLECTIVES", "A")
    code = f"print(*(os.environ[name] for name in {names}), os.getcwd()); print('e', file=sys.stderr)"
    running = run_script(RUN, "--ranks", "3", "--env", "A=x y", str(script), code, **ON_LOOPBACK)
    status, out, errors = running.end(SECONDS)
    here = Path.cwd()
    assert status == 0, errors
    name = os.uname().nodename
    lines = [f"[{rank}@{name}] {rank} 3 {rank} 3 auto x y {here}" for rank in range(3)]
    assert sorted(out.splitlines()) == lines
    assert sorted(line for line in errors.splitlines() if line.endswith(" e")) == [
        f"[{rank}@{name}] e" for rank in range(3)
    ]


@needs_ray
@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("sys.exit(7)", "ended with exit code 7."),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV."),
        ("raise ValueError('on purpose')", "ValueError: on purpose"),
        (f"os.kill({ACTOR}, signal.SIGKILL); time.sleep(99)", "is gone: its Ray actor has died (Worker"),
    ],
    ids=["exit", "signal", "exception", "actor"],
)
def test_the_first_cause_is_named(
    cluster: subprocess.Popen[str], run_script: Runner, script: Path, ending: str, message: str
) -> None:
    code = f"if rank == 1: {ending}\ntime.sleep(99)"
    status, out, errors = run_script(RUN, "--ranks", "2", str(script), code, **ON_LOOPBACK).end(SECONDS)
    host = os.uname().nodename
    lines = [line for line in errors.splitlines() if line.startswith("shardrun: error:")]
    assert status == (7 if "exit" in ending else 1) and not out
    assert lines[0].removeprefix(f"shardrun: error: rank 1 on host {host}").lstrip(": ").startswith(message)


@needs_ray
def test_what_the_cluster_has_no_room_for(
    cluster: subprocess.Popen[str], run_script: Runner, script: Path
) -> None:
    running = run_script(RUN, "--ranks", "3", "--gpus", "1", str(script), "", **ON_LOOPBACK)
    status, _, errors = running.end(SECONDS)
    assert status == 1 and "Traceback" not in errors
    assert "The Ray cluster (2 nodes) has room for 0 ranks of 1 core and 1 GPU, but 3 are to start" in errors


@needs_ray
def test_ctrl_c_ends_all(cluster: subprocess.Popen[str], run_script: Runner, script: Path) -> None:
    begun = script.parent / "begun"
    code = f"open({str(begun)!r}, 'w').close()\ntime.sleep(99)"
    running = run_script(RUN, "--ranks", "2", "--env", "MARK_OF_RANKS=1", str(script), code, **ON_LOOPBACK)
    assert wait_until(begun.exists, SECONDS)
    running.signal_group(signal.SIGINT)
    status, _, errors = running.end(60)
    assert status == 130 and "Traceback" not in errors, errors


@needs_ray
def test_a_node_that_dies(cluster: subprocess.Popen[str], run_script: Runner, script: Path) -> None:
    """Last of those on the cluster: Ray's own clean-up of a dead node goes on for a while."""
    begun = script.parent / "begun"
    code = f"open({str(begun)!r} + str(rank), 'w').close()\ntime.sleep(99)"
    running = run_script(RUN, "--ranks", "3", str(script), code, **ON_LOOPBACK)
    assert wait_until(lambda: all(Path(f"{begun}{rank}").exists() for rank in range(3)), SECONDS)
    assert cluster.stdin is not None
    cluster.stdin.write("anew\n")
    cluster.stdin.flush()
    status, out, errors = running.end(60)
    assert status == 1 and not out
    assert "is gone: its Ray" in errors and "state-dump" not in errors


@needs_ray
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "No Ray cluster answers at 127.0.0.1:1 (Connection refused): start it there"),
        ("nowhere", "The Ray address 'nowhere' is none: expected HOST:PORT"),
        ("ray://127.0.0.1:1", "is that of a Ray client, which cannot start ranks: give the HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there(run_script: Runner, script: Path, address: str, said: str) -> None:
    running = run_script(RUN, "--ranks", "2", "--ray-address", address, str(script), "", **ON_LOOPBACK)
    status, _, errors = running.end(SECONDS)
    assert status == 1 and said in errors and "Traceback" not in errors


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    launcher = base.choose("ray")
    assert isinstance(launcher, RayLauncher)
    with pytest.raises(LaunchError, match=r"^There is no Ray in this Python: install it \(pip install "):
        launcher.place(2, None)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("The actor died because its node has died. Node Id: 1", "its Ray node has died"),
        ("The actor is dead because it was killed by `ray.kill`.", "its Ray actor was killed by ray.kill"),
        (
            "The actor died.\n\tpid: 4\nWorker exit type: SYSTEM_ERROR Worker exit detail: Worker ended. "
            "Some common causes include: (1) any",
            "its Ray actor has died (Worker ended)",
        ),
        ("The actor a is unavailable: RpcError", "its Ray actor, or the Ray node that this was on, is gone"),
        ("what nobody\nknows.", "its Ray actor has died (what nobody knows)"),
    ],
)
def test_why_an_actor_is_gone(said: str, why: str) -> None:
    assert why_gone(said) == why
