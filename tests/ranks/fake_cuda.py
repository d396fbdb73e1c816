"""The fake CUDA driver of fake_cuda.c, compiled once per machine, and the program that attaches in tests."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ranks.devices.cuda_driver import Driver
from ranks.sessions.session import SessionConfig
from ranks.weights.device import device_model
from tests.models import cache_folder

SOURCE = Path(__file__).with_suffix(".c")
# Weights that are packed anew for the CPU would be another copy: on the GPU there is no packing.
CONFIG = SessionConfig(threads=1, entries={"session.disable_prepacking": "1"})


def library() -> str:
    """The compiled driver; skips the test where there is no C compiler."""
    return compiled(SOURCE)


def compiled(source: Path) -> str:
    """A library of a C file, made once per machine; skips the test where there is no C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip(f"no C compiler (cc) to compile {source.name}")
    name = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    target = cache_folder() / f"{source.stem}_{name}.so"
    if not target.exists():
        part = target.with_name(f"{target.name}.{os.getpid()}")
        command = [compiler, "-w", "-O1", "-fPIC", "-shared", "-o", part, source]
        subprocess.run(command, check=True, timeout=60)
        part.replace(target)
    return str(target)


class FakeDriver(Driver):
    """Its memory is the host's, for ONNX Runtime too, whose CPU sessions then use it in place."""

    dlpack_device = 1  # kDLCPU

    def __init__(self, path: str | None = None) -> None:
        super().__init__(path or library())

    @property
    def live(self) -> int:
        """Allocations, handles and mappings that this process has not given back."""
        assert self._library.fake_depth() == 0, "a context was left current"
        return int(self._library.fake_live())


def main() -> None:
    """Attaches to the weights that come over the socket given by number and answers with results.

    Then, for each line of standard input, runs the model again.
    """
    path, folder, number, feed = sys.argv[1:]
    peer = socket.socket(fileno=int(number))
    data, descriptors, _, _ = socket.recv_fds(peer, 1 << 20, 8)
    weights = device_model.open_device_weights(json.loads(data), descriptors, Path(folder), FakeDriver(path))
    for descriptor in descriptors:
        os.close(descriptor)
    session = weights.session(CONFIG, "the model")
    x = np.load(feed)
    print(json.dumps({"read_only": weights.read_only, "bytes": weights.bytes}), flush=True)
    for _ in sys.stdin:
        (y,) = session.run(None, {"x": x})
        print(json.dumps(y.tolist()), flush=True)
    del session
    weights.close()


if __name__ == "__main__":
    main()
