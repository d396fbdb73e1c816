"""Triton Inference Server in front of ONNX Runtime, for benchmarks/serving.py: PyTriton's build of it,
whose models are functions in Python.

python benchmarks/serving_triton.py MODEL.onnx THREADS PORT NAME
"""

import signal
import sys
import threading

import numpy as np
import onnxruntime
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64}


def main() -> None:
    """Serves until it is ended."""
    path, threads, port, name = sys.argv[1:]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def tensor(one: onnxruntime.NodeArg) -> Tensor:
        shape = tuple(axis if isinstance(axis, int) else -1 for axis in one.shape)
        return Tensor(name=one.name, dtype=TYPES[one.type], shape=shape)

    names = [one.name for one in session.get_outputs()]

    def infer(requests: list) -> list:
        return [dict(zip(names, session.run(None, dict(request)), strict=True)) for request in requests]

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    config = TritonConfig(
        http_port=int(port), http_address="127.0.0.1", allow_grpc=False, allow_metrics=False, log_verbose=0,
        http_thread_count=2,
    )  # fmt: skip
    with Triton(config=config) as triton:
        triton.bind(
            model_name=name, infer_func=infer,
            inputs=list(map(tensor, session.get_inputs())), outputs=list(map(tensor, session.get_outputs())),
            config=ModelConfig(batching=False),
        )  # fmt: skip
        triton.run()
        ended.wait()


if __name__ == "__main__":
    main()
