"""An HTTP server that answers at once, for benchmarks/serving.py: what a server costs where nothing is
computed or checked.

    python benchmarks/serving_bare.py MODEL.onnx INPUTS.npz PORT [RANKS]

Each request gets the same answer, in the Open Inference Protocol's binary form: the first output of these
inputs. With RANKS so many ranks compute these inputs before each answer: what a server keeps of their rate
that does nothing but HTTP.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import onnxruntime
import uvicorn

HEADER = b"inference-header-content-length"


def application(value: np.ndarray, compute: Callable[[], Awaitable[object]] | None) -> Any:
    """What answers requests, each after ``compute``."""
    output = {
        "name": "y", "shape": value.shape, "datatype": "FP32",
        "parameters": {"binary_data_size": value.nbytes},
    }  # fmt: skip
    head = json.dumps({"outputs": [output]}).encode()
    body = head + value.tobytes()
    begin = {
        "type": "http.response.start", "status": 200,
        "headers": [(HEADER, b"%d" % len(head)), (b"content-length", b"%d" % len(body))],
    }  # fmt: skip

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        if compute is not None and scope["method"] == "POST":
            await compute()
        await send(begin)
        await send({"type": "http.response.body", "body": body})

    return answer


def ranks_of(model: str, feeds: dict[str, np.ndarray], ranks: int) -> Callable[[], Awaitable[object]]:
    """What has ranks compute these inputs."""
    import launcher

    group = launcher.start(model, ranks=ranks, threads=1, launcher="local", allow_replicated=True)

    async def compute() -> object:
        group._read_in(asyncio.get_running_loop())  # as the server's models have it
        return await group.submit_async(feeds)

    return compute


def main() -> None:
    """Serves until it is ended."""
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    with np.load(sys.argv[2]) as file:
        feeds = dict(file)
    value = np.asarray(session.run(None, feeds)[0], np.float32)
    del session  # its threads too
    compute = None if len(sys.argv) < 5 else ranks_of(sys.argv[1], feeds, int(sys.argv[4]))
    how = {"log_level": "warning", "access_log": False, "lifespan": "off", "server_header": False}
    uvicorn.run(application(value, compute), port=int(sys.argv[3]), loop="uvloop", http="httptools", **how)


if __name__ == "__main__":
    main()
