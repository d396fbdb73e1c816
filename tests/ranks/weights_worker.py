"""Processes that share weights, told what to do step by step over a pipe.

They come from multiprocessing's fork server, which has imported what they need: dozens start in a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import ranks
from ranks.errors import ShardrunError
from ranks.weights.prepared.store import Store
from ranks.weights.shared import client, handle, protocol, server, sharing

LIMIT = 60.0
INPUT = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)


def oracle(path: Path) -> Any:
    """What plain ONNX Runtime computes from `INPUT`."""
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": INPUT})[0]


class Worker:
    """One process; what it is told to do is a method of `_Doer`."""

    def __init__(self, process: ForkServerProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        assert process.pid is not None
        self.pid = process.pid

    def start(self, what: str, **arguments: Any) -> None:
        """Says what to do, without waiting until it is done."""
        self.pipe.send((what, arguments))

    def reply(self) -> Any:
        """What came of it; an error of ours is a `Refused`. Raises `EOFError` where the process has ended."""
        assert self.pipe.poll(LIMIT), "the process does not answer"
        return self.pipe.recv()

    def do(self, what: str, **arguments: Any) -> Any:
        """Has something done, and returns what came of it."""
        self.start(what, **arguments)
        return self.reply()

    def predicts(self, expected: Any) -> bool:
        """Whether its model gives what plain ONNX Runtime gives."""
        found = self.do("predict")
        assert isinstance(found, np.ndarray), found
        return bool(np.abs(found - expected).max() / np.abs(expected).max() <= 1e-4)

    def kill(self) -> None:
        """kill -9, and waits for the end."""
        self.process.kill()
        self.process.join(LIMIT)
        assert self.process.exitcode is not None

    def go_on(self) -> None:
        """Lets a process that stopped at a step go on."""
        os.kill(self.pid, signal.SIGCONT)


@dataclass(frozen=True)
class Refused:
    """An error of ours, in a worker."""

    kind: str
    text: str


class Workers:
    """Starts workers, and ends all of them."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.ranks.weights_worker"])
        self._all: list[Worker] = []
        self.environment: dict[str, str] = {}
        """Of every new worker."""

    def new(self, **environment: str) -> Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(theirs, self.environment | environment), daemon=True
        )
        process.start()
        theirs.close()
        self._all.append(Worker(process, ours))
        return self._all[-1]

    def end(self) -> None:
        for worker in self._all:
            worker.kill()
            worker.pipe.close()
        self._all.clear()

    @staticmethod
    def stop_server() -> None:
        """Ends the fork server itself, which would live as long as the tests."""
        forkserver._forkserver._stop()  # type: ignore[attr-defined]


def _serve(pipe: Connection, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    doer = _Doer(pipe)
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(getattr(doer, what)(**arguments))
        except (ShardrunError, OSError) as error:
            pipe.send(Refused(type(error).__name__, str(error)))


class _Doer:
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._model: Any = None
        self._kept: list[Any] = []

    def share(self, path: str, **arguments: Any) -> int | str:
        self._model = ranks.share_weights(path, **arguments)
        return self._model.handle  # type: ignore[no-any-return]

    def attach(self, given: int | str, path: str, **arguments: Any) -> str:
        self._model = ranks.attach(given, path, **arguments)
        return "attached"

    def attach_many(self, given: int | str, path: str, count: int) -> str:
        for _ in range(count):
            with ranks.attach(given, path) as model:
                model.predict([INPUT])
        return "attached"

    def build(self, path: str, config_path: str = "", config_dict: Any = None) -> str:
        self._model = ranks.Model()
        self._model.build_from_file(path, ranks.ModelType.ONNX, None, config_path, config_dict)
        return str(self._model.get_model_info("shareable_weight_mem_handle"))

    def predict(self) -> Any:
        return self._model.predict([INPUT])[0].get_data_to_numpy()

    def resize(self, shape: list[int]) -> Any:
        self._model.resize(self._model.get_inputs(), [shape])
        return self._model.predict([np.ones(shape, np.float32)])[0].get_data_to_numpy()

    def close(self) -> str:
        self._model.close()
        return "closed"

    def drop(self) -> str:
        self._model = None
        return "dropped"

    def connect(self, given: int | str) -> str:
        self._kept.append(client.connect(handle.address(given), 5.0))
        return "connected"

    def patience(self, seconds: float) -> str:
        server.HANDSHAKE_SECONDS = seconds
        return "set"

    def stop_at(self, step: str) -> str:
        """Stops this process when it has done a step of the protocol, and says so."""

        def stop(record: logging.LogRecord) -> bool:
            if record.getMessage() == step:
                self._pipe.send(f"at {step}")
                # To this thread: of a signal to the process another thread hears first, and this one goes on.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            return False

        protocol.log.setLevel(logging.DEBUG)
        protocol.log.addFilter(stop)
        return "set"

    def pretend(self, **facts: str) -> str:
        """Takes other facts for its own."""
        real: Callable[[Any], dict[str, str]] = sharing._facts
        sharing._facts = lambda use: {**real(use), **facts}
        return "set"

    def on_fake_gpu(self, path: str) -> str:
        """Takes the CPU for a GPU: its memory is that of a driver made for tests."""
        from ranks.devices.providers import CPU
        from ranks.weights.device import on_device
        from tests.ranks.fake_cuda import FakeDriver

        on_device.driver = lambda: FakeDriver(path)
        on_device.OwnedOnDevice.providers = on_device.AttachedOnDevice.providers = (CPU,)
        sharing.CUDA = CPU
        return "set"

    def become(self, user: int) -> str:
        os.setuid(user)
        return "done"

    def descriptors(self) -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def use_up_descriptors(self) -> str:
        import resource

        self._kept.append(resource.getrlimit(resource.RLIMIT_NOFILE))
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, self._kept[-1][1]))
        with contextlib.suppress(OSError):
            while True:
                self._kept.append(os.open("/dev/null", os.O_RDONLY))
        return "done"

    def free_descriptors(self) -> str:
        for number in self._kept:
            if isinstance(number, int):
                os.close(number)
        return "done"

    def threads(self) -> int:
        return sum(thread.name == "shardrun-weights" for thread in threading.enumerate())

    def mapped_weights(self) -> dict[str, str]:
        """Files of weights that are mapped, and how."""
        found = {}
        for line in Path("/proc/self/maps").read_text().splitlines():
            parts = line.split(maxsplit=5)
            if len(parts) == 6 and "/blobs/" in parts[5]:
                found[parts[5]] = parts[1]
        return found

    def folder_flags(self) -> int:
        """The flags of the folder's descriptor, as the owner sent it."""
        import fcntl

        return fcntl.fcntl(self._kept[-1].folder, fcntl.F_GETFL)

    def write_to(self, name: str) -> str:
        """Opens a file of weights for writing by the folder's descriptor, as an unprivileged process."""
        _drop_capabilities()
        with Path(f"/proc/self/fd/{self._kept[-1].folder}/{name}").open("r+b"):
            return "opened"

    def map_writable(self, name: str) -> str:
        import mmap

        with Path(f"/proc/self/fd/{self._kept[-1].folder}/{name}").open("rb") as file:
            mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            return "mapped"

    def store_folder(self) -> str:
        from ranks.weights.prepared.store import default_store

        store = default_store()
        assert isinstance(store, Store)
        return str(store.folder)

    def hostile(self, given: int | str, count: int, seed: int) -> dict[str, int]:
        from tests.ranks.weights_hostile import attack

        return attack(handle.address(given).socket_name, count, seed)


def _drop_capabilities() -> None:
    """capset(2) with nothing: even root must then keep to the modes of files."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
