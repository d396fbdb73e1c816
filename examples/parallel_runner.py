"""Five clients share one model with three workers: `ModelParallelRunner`, as in mindspore_lite's tutorial.

python examples/parallel_runner.py MODEL.onnx

In a script written for mindspore_lite, only the import changes; `shardrun exec SCRIPT` runs it unchanged.
"""

import sys
import threading
import time

import numpy as np

import ranks as mslite

THREAD_NUM = 1  # of each worker
WORKERS_NUM = 3
CLIENTS = 5
TASKS = 2  # of each client


def client(runner: mslite.ModelParallelRunner, number: int) -> None:
    """Predicts on inputs of its own: every element is the client's number."""
    for task in range(1, TASKS + 1):
        inputs = runner.get_inputs()
        for tensor in inputs:
            tensor.shape = [length if length > 0 else 1 for length in tensor.shape]  # open ones need a length
            tensor.set_data_from_numpy(np.full_like(tensor.get_data_to_numpy(), number))
        start = time.perf_counter()
        outputs = runner.predict(inputs)
        milliseconds = (time.perf_counter() - start) * 1e3
        for output in outputs:
            values = output.get_data_to_numpy().flatten()[:4]
            line = (
                f"client {number} task {task}: {output.name} {output.shape} {values} {milliseconds:.1f} ms\n"
            )
            print(line, end="")  # in one piece, that lines of several threads do not mix


def main(model_path: str) -> None:
    """Builds the runner and waits for its clients."""
    context = mslite.Context()
    context.target = ["cpu"]
    context.cpu.thread_num = THREAD_NUM
    context.cpu.inter_op_parallel_num = THREAD_NUM
    context.parallel.workers_num = WORKERS_NUM
    runner = mslite.ModelParallelRunner()
    runner.build_from_file(model_path=model_path, context=context)
    clients = [threading.Thread(target=client, args=(runner, number)) for number in range(CLIENTS)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/parallel_runner.py MODEL.onnx")
    try:
        main(sys.argv[1])
    except RuntimeError as error:
        sys.exit(f"parallel_runner: {error}")
