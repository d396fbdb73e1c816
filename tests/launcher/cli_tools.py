"""What the tests of the command share: a tiny model, and running the command as a user does."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.copies import Copies, Copy
from tests.launcher import processes
from tests.sharding import graphs

ROOT = Path(__file__).parents[2]
SECONDS = 90
_IMPORTED = (
    "onnx",
    "onnx_ir",
    "onnx_ir.passes.common",
    "numpy.random",
    "rich.progress",
    "tokenizers",
    "jinja2.sandbox",
)


def save_mlp(path: Path, seed: int = 0, *, width: int = 64, external: bool = False) -> Path:
    """A model of two MatMuls with weights of 8 * ``width`` and ``width`` * 6: y[batch, 6] of x[batch, 8]."""
    random = np.random.default_rng(seed)
    shapes = {"w0": (8, width), "b0": (width,), "w1": (width, 6)}
    weights = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    text = """mlp (float[batch, 8] x) => (float[batch, 6] y) {
      [first] h0 = MatMul(x, w0)
      h1 = Add(h0, b0)
      h2 = Relu(h1)
      [second] y = MatMul(h2, w1)
    }"""
    return graphs.save(path, text, weights, opset=17, external=external)


def environment(**more: str) -> dict[str, str]:
    """The environment for a command: ours on the path, no leftovers of a launcher around the tests."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_", "PMI", "SHARDRUN_"))
        and name not in {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    }
    # Open MPI refuses root unless told so, and binds two ranks to one core each.
    mpi = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**environ, "PYTHONPATH": str(ROOT), **mpi, **more}


def shardrun(
    *arguments: Any, cwd: Path, seconds: float = SECONDS, before: Sequence[str] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``shardrun ARGUMENTS`` (after the words ``before``, such as mpirun's) in ``cwd``."""
    return run([*before, sys.executable, "-m", "launcher.cli", *map(str, arguments)], cwd, seconds, **environ)


def run(
    command: Sequence[Any], cwd: Path, seconds: float = SECONDS, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; fails if a process of it is left, in which case all are killed."""
    return _watched(
        lambda variables: subprocess.run(
            list(map(str, command)), cwd=cwd, env=variables, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=seconds, check=False,
        ),
        cwd,
        environ,
    )  # fmt: skip


def copied(
    *arguments: Any, cwd: Path, seconds: float = SECONDS, before: Sequence[str] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    """As `shardrun`, but in a copy of a process that has imported the command, which starts sooner; for tests
    of what it does, not of how it starts and ends. After words such as mpirun's, with a script of the user's
    in it, or where it is a rank of others, it is a process of its own."""
    if before or arguments[0] == "exec" or "RANK" in environ:
        return shardrun(*arguments, cwd=cwd, seconds=seconds, before=before, **environ)
    words = ["-m", "launcher.cli", *arguments]
    return _watched(lambda variables: copies().run(words, variables, cwd, seconds), cwd, environ)


def begun(*arguments: Any, cwd: Path) -> Copy | subprocess.Popen[str]:
    """The same while it runs; who asks ends it."""
    words = ["-m", "launcher.cli", *arguments]
    return copies().popen(words, environment(SHARDRUN_CACHE=str(cwd / "cache")), cwd)


@functools.cache
def copies(*more: str) -> Copies:
    """Of a process that has imported the command, and these modules besides."""
    return Copies(["launcher.*", "ranks.*", "sharding.*", *_IMPORTED, *more], environment())


def _watched(
    start: Callable[[dict[str, str]], subprocess.CompletedProcess[str]], cwd: Path, environ: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    mark = uuid.uuid4().hex
    own = {processes.MARK: mark, "SHARDRUN_CACHE": str(cwd / "cache")}
    try:
        done = start(environment(**own, **environ))
        left = [] if processes.wait_until(lambda: not processes.marked(mark), 5) else processes.marked(mark)
    finally:
        for pid in processes.marked(mark):
            os.kill(pid, signal.SIGKILL)
    assert not left, left
    return done


def path_with_quick_torch(folder: Path) -> str:
    """A PYTHONPATH for ``shardrun doctor`` where its answer about torch is not what is tested: to import the
    real one takes longer than all else."""
    package = folder / "quick" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "__version__ = '0'\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"
    )
    (package / "distributed.py").write_text(
        "is_available = is_gloo_available = lambda: True\nis_nccl_available = lambda: False\n"
    )
    return f"{package.parent}:{ROOT}"


def mpirun(ranks: int) -> list[str]:
    """The words before a command that start it on ``ranks`` ranks; mpirun of PATH or beside this Python."""
    beside = Path(sys.executable).parent / "mpirun"
    program = shutil.which("mpirun") or str(beside)
    return [program, "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "-n", str(ranks)]
