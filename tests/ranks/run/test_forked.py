"""Children forked while sessions with threads are loaded: they predict, free what they have, and end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks import api_models

SECONDS = 60
PROGRAM = """
import gc, os, signal, sys, time
import numpy as np
import ranks

def main(kind, path):
    context = ranks.Context()
    context.target = ["cpu"]
    context.cpu.thread_num = context.parallel.workers_num = 2
    given = np.ones((3, 8), np.float32)
    owner = None
    if kind == "runner":
        model = ranks.ModelParallelRunner()
        model.build_from_file(path, context)
    elif kind == "shared":
        owner = ranks.share_weights(path)
        model = ranks.attach(owner.handle, path, context=context)
    else:
        model = ranks.Model()
        if kind == "group":
            group = ranks.ModelGroup(ranks.ModelGroupFlag.SHARE_WORKSPACE)
            group.add_model([path])
        model.build_from_file(path, ranks.ModelType.MINDIR, context)
    expected = model.predict([given])[0].get_data_to_numpy()
    time.sleep(0.5)  # the sessions' threads, which looked out for work awake, have fallen asleep
    for how in ("exit", "free", "fork again"):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            assert np.array_equal(model.predict([given])[0].get_data_to_numpy(), expected)
            if how == "free":
                del model, owner
                gc.collect()
            if how == "fork again" and os.fork():
                code = os.waitstatus_to_exitcode(os.wait()[1])
                sys.exit(code)
            sys.exit(5)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(how, status, flush=True)
    assert np.array_equal(model.predict([given])[0].get_data_to_numpy(), expected)

main(*sys.argv[1:])
"""


@pytest.mark.parametrize("kind", ["runner", "model", "group", "shared"])
def test_forked_children_end(tmp_path: Path, kind: str) -> None:
    """Each answers as its parent does, and none waits for the parent's threads at its exit."""
    path = api_models.linear(tmp_path / "m.onnx")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, str(path)],
        capture_output=True, text=True, timeout=SECONDS * 2, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["exit 5", "free 5", "fork again 5"], done.stderr
