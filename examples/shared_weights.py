"""Three processes, one copy of the weights: an owner and two clients, as in mindspore_lite's tutorial.

python examples/shared_weights.py MODEL.onnx

The clients write their ids into an array, in which the owner's own place stays 0. The owner builds the model
with these ids, and writes the handle that it gets into a value. The clients build the same model with the
handle. In a script written for mindspore_lite, only the import changes; `shardrun exec SCRIPT` runs it
unchanged.
"""

import ctypes
import sys
from multiprocessing import Array, Barrier, Process, Value
from pathlib import Path
from typing import Any

import numpy as np

import ranks as mslite

CLIENTS = 2
PATIENCE = 120  # seconds that a process waits for the others


def build(model_path: str, key: str, value: str) -> mslite.Model:
    """Builds the model with one of the keys that share weights."""
    context = mslite.Context()
    context.target = ["cpu"]
    context.cpu.thread_num = 1
    model = mslite.Model()
    model.build_from_file(
        model_path, mslite.ModelType.MINDIR, context, config_dict={"cpu_context": {key: value}}
    )
    return model


def predict(model: mslite.Model, who: str) -> None:
    """Predicts on ones, and prints what came out."""
    inputs = model.get_inputs()
    # Open dimensions (-1) need a length before there can be data.
    model.resize(inputs, [[length if length > 0 else 1 for length in tensor.shape] for tensor in inputs])
    for tensor in inputs:
        tensor.set_data_from_numpy(np.ones_like(tensor.get_data_to_numpy()))
    for output in model.predict(inputs):
        values = output.get_data_to_numpy().flatten()[:4]
        print(f"{who}: {output.name} {output.shape} {values}\n", end="")  # in one piece


def process(number: int, model_path: str, pids: Any, handle: Any, meet: Any) -> None:
    """What each process does: number 0 owns the weights, the others attach to them."""
    if number != 0:
        pids[number] = int(mslite.Model().get_model_info("current_pid"))
    meet.wait(PATIENCE)  # all ids are there
    if number == 0:
        model = build(model_path, "shareable_weight_pid_list", ", ".join(map(str, pids)))
        handle.value = int(model.get_model_info("shareable_weight_mem_handle"))
        meet.wait(PATIENCE)  # the handle is there
        predict(model, "owner")
    else:
        meet.wait(PATIENCE)
        model = build(model_path, "shareable_weight_mem_handle", str(handle.value))
        predict(model, f"client {number}")
    meet.wait(PATIENCE)  # clients attach as long as the owner has the model


def main(model_path: str) -> int:
    """Starts the processes; 0 if all of them succeeded."""
    pids = Array("i", CLIENTS + 1)
    handle = Value(ctypes.c_int64, 0)
    meet = Barrier(CLIENTS + 1)
    given = (model_path, pids, handle, meet)
    processes = [Process(target=process, args=(number, *given)) for number in range(CLIENTS + 1)]
    for one in processes:
        one.start()
    while any(one.is_alive() for one in processes):
        for one in processes:
            one.join(0.05)
            if one.exitcode:
                meet.abort()  # or the others would wait for it
    return max(abs(one.exitcode or 0) for one in processes)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/shared_weights.py MODEL.onnx")
    if not Path(sys.argv[1]).is_file():
        sys.exit(f"shared_weights: there is no file {sys.argv[1]}")
    sys.exit(main(sys.argv[1]))
