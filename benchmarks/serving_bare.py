"""An HTTP server that answers at once, for benchmarks/serving.py: what a server costs where nothing is
computed or checked.

    python benchmarks/serving_bare.py MODEL.onnx INPUTS.npz PORT

Each request gets the same answer, in the Open Inference Protocol's binary form: the first output of these
inputs.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import onnxruntime
import uvicorn

HEADER = b"inference-header-content-length"


def application(value: np.ndarray) -> Any:
    """What answers requests."""
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
        await send(begin)
        await send({"type": "http.response.body", "body": body})

    return answer


def main() -> None:
    """Serves until it is ended."""
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    with np.load(sys.argv[2]) as file:
        value = np.asarray(session.run(None, dict(file))[0], np.float32)
    del session  # its threads too
    how = {"log_level": "warning", "access_log": False, "lifespan": "off", "server_header": False}
    uvicorn.run(application(value), port=int(sys.argv[3]), loop="uvloop", http="httptools", **how)


if __name__ == "__main__":
    main()
