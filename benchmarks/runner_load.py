"""One contestant of benchmarks/runner.py in a process of its own; also runs under Python 3.7.

    python runner_load.py CONTESTANT MODEL WORKERS THREADS

Answers each line "[CLIENTS, SECONDS]" on standard input with one line of JSON: how many requests that many
threads, each waiting for its answer before it asks again, had answered, and how long each waited.
"""

import json
import queue
import sys
import threading
import time

import numpy as np


def arrays(described):
    """The inputs of one request: random pictures, or words that are all real."""
    random = np.random.RandomState(7)
    made = []
    for name, shape, dtype in described:
        if np.dtype(dtype).kind == "f":
            made.append(random.standard_normal(shape).astype(dtype))
        elif "mask" in name:
            made.append(np.ones(shape, dtype))
        else:
            made.append(random.randint(0, 30000, shape).astype(dtype))
    return made


def mindspore_api(package, model, workers, threads):
    """A request to a `ModelParallelRunner`, of mindspore_lite or of ranks, as its tutorial makes one."""
    context = package.Context()
    context.target = ["cpu"]
    context.cpu.thread_num = threads
    context.cpu.inter_op_parallel_num = 1
    context.parallel.workers_num = workers
    runner = package.ModelParallelRunner()
    runner.build_from_file(model, context)
    kinds = {"FLOAT32": np.float32, "INT32": np.int32, "INT64": np.int64}
    data = arrays([(one.name, one.shape, kinds[one.dtype.name]) for one in runner.get_inputs()])

    def request():
        inputs = runner.get_inputs()
        for tensor, array in zip(inputs, data):  # noqa: B905
            tensor.set_data_from_numpy(array)
        return [tensor.get_data_to_numpy() for tensor in runner.predict(inputs)]

    return request


def onnxruntime_sessions(model, sessions, threads):
    """A request to plain ONNX Runtime: to one of the sessions that is free, or (0) to one shared by all."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    made = [
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for _ in range(max(1, sessions))
    ]
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    described = [(one.name, one.shape, kinds[one.type]) for one in made[0].get_inputs()]
    feeds = dict(zip([name for name, _, _ in described], arrays(described)))  # noqa: B905
    if sessions == 0:
        return lambda: made[0].run(None, feeds)
    free = queue.SimpleQueue()
    for session in made:
        free.put(session)

    def request():
        session = free.get()
        try:
            return session.run(None, feeds)
        finally:
            free.put(session)

    return request


def make(contestant, model, workers, threads):
    """The function that makes one request and returns the output arrays."""
    if contestant == "ranks":
        import ranks

        return mindspore_api(ranks, model, workers, threads)
    if contestant == "mindspore_lite":
        import mindspore_lite

        return mindspore_api(mindspore_lite, model, workers, threads)
    return onnxruntime_sessions(model, 0 if contestant == "onnxruntime shared" else workers, threads)


def load(request, clients, seconds):
    """Requests of ``clients`` threads for some seconds: waits in ms, the time it took, and processor time."""
    waits = [[] for _ in range(clients)]
    failures = []
    begin = threading.Barrier(clients + 1)

    def client(mine):
        begin.wait()
        while time.perf_counter() < deadline:
            start = time.perf_counter()
            try:
                request()
            except Exception as error:
                failures.append(str(error))
                return
            mine.append((time.perf_counter() - start) * 1e3)

    threads = [threading.Thread(target=client, args=(mine,)) for mine in waits]
    for thread in threads:
        thread.start()
    deadline = time.perf_counter() + seconds
    started, used = time.perf_counter(), time.process_time()
    begin.wait()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(failures[0])
    return {
        "waits": [wait for mine in waits for wait in mine],
        "seconds": time.perf_counter() - started,
        "used": time.process_time() - used,
    }


def main():
    """Builds the contestant, says "ready" with its first output, then answers until its input ends."""
    contestant, model, workers, threads = sys.argv[1:]
    request = make(contestant, model, int(workers), int(threads))
    first = request()[0]
    print(json.dumps({"ready": np.asarray(first, np.float64).ravel()[:64].tolist()}), flush=True)
    for line in sys.stdin:
        clients, seconds = json.loads(line)
        print(json.dumps(load(request, clients, seconds)), flush=True)


if __name__ == "__main__":
    main()
