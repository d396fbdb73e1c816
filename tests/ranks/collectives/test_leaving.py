"""A process that ends while a library is still at work on its groups: it ends as it would without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher.cli_tools import environment

pytest.importorskip("torch", reason="torch is not installed")

SCRIPT = """
import os, sys, time
from datetime import timedelta
import torch.distributed as dist
from ranks.collectives.torch import group as groups
from ranks.run import group

seconds, how = (words.split(",")[int(os.environ["RANK"])] for words in sys.argv[1:])
seconds = float(seconds)

class Slow:
    def __del__(self):  # when the interpreter is being taken apart, and threads may no longer run Python
        time.sleep(1.5)

slow, store = Slow(), dist.HashStore()
destroy = groups.TorchGroups._destroy

def hangs(self):
    destroy(self)
    try:
        store.wait(["nobody"], timedelta(seconds=seconds))
    except Exception:
        pass

groups._ORDERLY = groups._ABORT = 0.1
groups._LAST = 20.0 if seconds < 20 else 0.1
groups.TorchGroups._destroy = hangs
group.join(collectives="gloo")
print("joined")
if how == "leave":
    group.leave()
if how == "code":
    from ranks.common.leaving import leave
    leave(3)
"""


def test_it_ends_well(tmp_path: Path) -> None:
    """A thread of a library that came back after the interpreter would end it by SIGABRT. Rank 0 leaves and
    the library is not long at work; the other rank leaves nothing, and the library never ends."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "launcher.cli", "exec", "--ranks", "2", "--launcher", "local", "--collectives",
         "gloo", script, "0.7,100", "leave,forget"],
        env=environment(), capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("joined") == 2


def test_its_exit_code_is_kept(tmp_path: Path) -> None:
    """That of a command which has failed, also where the end of its groups is not waited for."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "launcher.cli", "exec", "--ranks", "2", "--launcher", "local", "--collectives",
         "gloo", script, "100,100", "code,code"],
        env=environment(), capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.count("joined")) == (3, 2), done.stderr
    assert "exit code 3" in done.stderr
