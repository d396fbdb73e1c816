"""A plain server of one model: FastAPI, uvicorn and ONNX Runtime, for benchmarks/serving.py.

    python benchmarks/serving_plain.py MODEL.onnx THREADS PORT

Takes the Open Inference Protocol's requests, JSON and binary, and checks nothing.
"""

import json
import sys

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

TYPES = {"FP32": np.float32, "INT64": np.int64}
HEADER = "inference-header-content-length"


def application(session: onnxruntime.InferenceSession) -> FastAPI:
    """The server's two routes, which are one in the protocol."""
    app = FastAPI()
    names = [output.name for output in session.get_outputs()]

    def answer_json(body: dict) -> dict:
        feeds = {
            one["name"]: np.array(one["data"], TYPES[one["datatype"]]).reshape(one["shape"])
            for one in body["inputs"]
        }
        outputs = session.run(None, feeds)
        return {
            "outputs": [
                {"name": name, "shape": value.shape, "datatype": "FP32", "data": value.ravel().tolist()}
                for name, value in zip(names, outputs, strict=True)
            ]
        }

    def answer_binary(data: bytes, length: int) -> Response:
        at, feeds = length, {}
        for one in json.loads(data[:length])["inputs"]:
            size = one["parameters"]["binary_data_size"]
            feeds[one["name"]] = np.frombuffer(data[at : at + size], TYPES[one["datatype"]]).reshape(
                one["shape"]
            )
            at += size
        outputs = session.run(None, feeds)
        head = json.dumps(
            {
                "outputs": [
                    {
                        "name": name, "shape": value.shape, "datatype": "FP32",
                        "parameters": {"binary_data_size": value.nbytes},
                    }
                    for name, value in zip(names, outputs, strict=True)
                ]
            }
        ).encode()  # fmt: skip
        parts = [head, *(value.tobytes() for value in outputs)]
        return Response(
            b"".join(parts), headers={HEADER: str(len(head))}, media_type="application/octet-stream"
        )

    @app.post("/v2/models/{model}/infer")
    async def infer(model: str, request: Request):
        if (length := request.headers.get(HEADER)) is not None:
            return await run_in_threadpool(answer_binary, await request.body(), int(length))
        return await run_in_threadpool(answer_json, await request.json())

    return app


def main() -> None:
    """Serves until it is ended."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(sys.argv[2])
    session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    uvicorn.run(application(session), port=int(sys.argv[3]), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
