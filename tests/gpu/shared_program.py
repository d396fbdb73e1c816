"""A process of tests/gpu/test_shared_weights.py: `MODE MODEL FEED`, MODE "owner", "alone" or a handle.

Says in lines of JSON how much free device memory building and running the model took, and what it computed;
then, for each line of standard input, what it computes.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import onnx
import onnxruntime as ort

import ranks
from ranks.devices import devices
from ranks.devices.cuda_driver import Driver
from ranks.devices.providers import CUDA
from tests.sharding import graphs


def started(driver: Driver) -> int:
    """Free bytes of the device once this process has its context and libraries there."""
    model = graphs.model("g (float[2, 2] x) => (float[2, 2] y) { y = MatMul(x, x) }", {}, opset=17)
    devices.require(CUDA)  # loads CUDA's libraries, which may lie where pip put them
    session = ort.InferenceSession(model.SerializeToString(), providers=["CUDAExecutionProvider"])
    session.run(None, {"x": np.ones((2, 2), np.float32)})
    assert isinstance(onnx.__version__, str)
    return driver.free_bytes(0)


def main() -> None:
    """Builds, runs and answers."""
    mode, path, feed = sys.argv[1:]
    driver = Driver()
    before = started(driver)
    context = ranks.Context()
    context.target = ["gpu"]
    x = np.load(feed)
    if mode == "owner":
        model: ranks.Model = ranks.share_weights(path, context, family=int(sys.stdin.readline()))
    elif mode == "alone":
        model = ranks.Model()
        model.build_from_file(path, ranks.ModelType.ONNX, context)
    else:
        model = ranks.attach(mode, path, context)
    run = model.predict
    first = run([x])[0].get_data_to_numpy()
    handle = str(model.handle) if mode == "owner" else ""  # type: ignore[attr-defined]
    taken = before - driver.free_bytes(0)
    print(json.dumps({"taken": taken, "handle": handle, "result": first.tolist()}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(run([x])[0].get_data_to_numpy().tolist()), flush=True)


if __name__ == "__main__":
    main()
