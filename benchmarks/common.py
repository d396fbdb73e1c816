"""What benchmarks have in common: arguments, small models, ranks to start, and processes that answer lines.

Imported first, it also makes this project's packages importable.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import onnx
    import onnxruntime

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Lets Open MPI run in containers."""
MB = 1 << 20


def parser_of(text: str | None, **options: Any) -> argparse.ArgumentParser:
    """A parser that shows a module's docstring. ``options``: defaults by name; of a list a user gives several
    items, False is a switch, and a type stands for an option without default."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in options.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        elif isinstance(default, list):
            parser.add_argument(flag, type=type(default[0]), nargs="*", default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser


def write_json(file: Path | None, found: object) -> None:
    """Writes figures, where a file is asked for."""
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n")


def model_of(
    nodes: Sequence[tuple[Any, ...]],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str] | None],
    weights: Mapping[str, np.ndarray],
    **opsets: int,
) -> onnx.ModelProto:
    """A model of float32. ``nodes``: operator, inputs, outputs and perhaps attributes of each; ``inputs`` and
    ``outputs``: their shapes; ``opsets``: of other domains."""
    from onnx import TensorProto, helper, numpy_helper

    def values(shapes: Mapping[str, Sequence[int | str] | None]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in shapes.items()]

    graph = helper.make_graph(
        [helper.make_node(*node[:3], **dict(*node[3:])) for node in nodes],
        "benchmark",
        values(inputs),
        values(outputs),
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    domains = [helper.make_opsetid(name.replace("_", "."), version) for name, version in opsets.items()]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), *domains], ir_version=8)


def session_of(model: Path | onnx.ModelProto, threads: int = 1) -> onnxruntime.InferenceSession:
    """Plain ONNX Runtime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    given = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def mpirun() -> str | None:
    """The mpirun of this environment, or of the system."""
    own = Path(sys.executable).with_name("mpirun")
    return str(own) if own.exists() else shutil.which("mpirun")


def identities(size: int) -> list[dict[str, str]]:
    """What tells each of so many ranks of one job, all on this host, which one it is."""
    job = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "SHARDRUN_JOB": secrets.token_hex(16)}
    return [{**job, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def run_ranks(command: Sequence[str], size: int, **environment: str) -> int:
    """Starts so many ranks and waits for them; their largest exit code."""
    started = [
        subprocess.Popen(command, env={**os.environ, **environment, **who}) for who in identities(size)
    ]
    return max(process.wait() for process in started)


def take_own_core(rank: int, size: int) -> None:
    """Binds this process to a core of its own, where there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    if size <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})


def bytes_of(pid: int | str = "self") -> dict[str, int]:
    """The memory of a process by kind, such as ``Pss``, in which a page of several processes counts once."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name.rstrip(":"): int(size) << 10 for name, size, *_ in map(str.split, lines)}


@dataclass
class Asked:
    """A process that answers a line on its standard input with a line of JSON."""

    name: str
    process: subprocess.Popen[str]
    said: Any = None
    """What it said first."""

    def line(self) -> str:
        """Its next line; `SystemExit` where it has ended."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}: see its lines above.")
        return text

    def ask(self, request: object) -> Any:
        """Sends a request, and waits for its answer."""
        assert self.process.stdin is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return json.loads(self.line())

    def memory(self) -> dict[str, int]:
        """As `bytes_of`."""
        return bytes_of(self.process.pid)

    def close(self) -> None:
        """Lets it end, for it reads no more lines."""
        try:
            self.process.communicate("", timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def started(name: str, command: Sequence[str], **how: Any) -> Asked:
    """A process that has said a first line, and answers others."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **how)
    made = Asked(name, process)
    made.said = json.loads(made.line())
    return made
