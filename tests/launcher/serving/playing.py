"""Ranks that tests play, so that each moment can be chosen."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import psutil

from launcher.serving.access import Tokens
from launcher.serving.batching import Batching
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.tensor_model import TensorModel
from ranks.common.tensors import TensorSpec
from tests.copies import SERVER
from tests.launcher.serving.running import Running, running

URL = "/v2/models/played/infer"
SPEC = TensorSpec("x", np.dtype(np.float32), ("n",))


@dataclass
class Played:
    """Ranks that double what they get; ``act`` is called with each request's numbers."""

    act: Callable[[list[float]], None] = lambda numbers: None
    inputs: list[TensorSpec] = field(default_factory=lambda: [SPEC])
    optional_inputs: list[TensorSpec] = field(default_factory=list)
    outputs: list[TensorSpec] = field(default_factory=lambda: [TensorSpec("y", SPEC.dtype, SPEC.shape)])
    stats: list[Any] = field(default_factory=list)
    closed: int = 0
    state: str = "ready"
    restarts: int = 0
    weights_version: int = 0
    said: dict[int, Any] = field(default_factory=dict)
    variable_weights: list[TensorSpec] = field(default_factory=list)
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def _tensors(self, feeds: Any, *, hint: bool = True) -> Any:
        return feeds

    def predict(self, feeds: Any) -> Any:
        self.act(feeds["x"].tolist())
        return {"y": feeds["x"] * 2}

    def submit_async(self, feeds: Any) -> asyncio.Future[Any]:
        return asyncio.wrap_future(self.thread.submit(self.predict, feeds))

    def _submit_fitting(self, feeds: Any) -> asyncio.Future[Any]:
        return self.submit_async(feeds)

    def _read_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """There is nothing to read."""

    def work(self) -> dict[int, Any]:
        return self.said

    def close(self) -> None:
        self.closed += 1
        self.thread.shutdown(wait=False)


def ask(number: float, **parameters: int) -> dict[str, Any]:
    x = {"name": "x", "shape": [1], "datatype": "FP32", "data": [number]}
    return {"inputs": [x], **({"parameters": parameters} if parameters else {})}


@contextlib.contextmanager
def played(
    open_group: Callable[[], Any],
    *,
    tokens: Tokens | None = None,
    batching: Batching | None = None,
    **limits: Any,
) -> Iterator[tuple[Running, httpx.Client, TensorModel]]:
    settled, metrics = ServeLimits(**limits), Metrics()
    model = TensorModel("played", settled, metrics, open_group=open_group, batching=batching or Batching())
    more = {} if tokens is None else {"tokens": tokens}
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(running(model, limits=settled, metrics=metrics, **more))
        yield found, stack.enter_context(httpx.Client(base_url=found.url, timeout=60)), model


class Gate:
    """Ranks that compute only when they may."""

    def __init__(self) -> None:
        self.open, self.began = threading.Event(), threading.Event()
        self.seen: list[float] = []

    def __call__(self) -> Played:
        return Played(self._act)

    def _act(self, numbers: list[float]) -> None:
        self.began.set()
        assert self.open.wait(30)
        self.seen += numbers


def ranks_here() -> set[int]:
    """The process ids of all ranks that this process has started."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = " ".join(child.cmdline())
            if "rank" in words and SERVER.name not in words:  # that one imports modules of ranks
                found.add(child.pid)
    return found
