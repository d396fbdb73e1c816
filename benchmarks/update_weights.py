"""What variable weights cost: to replace them, and in every prediction, on BERT-base.

    python benchmarks/update_weights.py [--quick] [--runs N] [--threads 1] [--json FILE]

Updating: milliseconds of `RankModel.update_weights` for 1 %, 10 % and 100 % of the bytes of weights that may
vary (those of products and embeddings), all of them marked as variable; then the same while they are shared
with other processes. Predicting: models with none, 10 % and all of the weights of products variable take
turns, call by call, at sequence lengths 1, 8, 32 and 128; printed are medians in milliseconds, and beside
them plain ONNX Runtime with the same weights as inputs, as anybody would do it. With one thread predictions
are measured in CPU time, which other work on the machine changes less. `--runs` are predictions of each (40,
with `--quick` 5).
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from common import parser_of, write_json
from onnx import numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
LENGTHS = (1, 8, 32, 128)


def weights_of(path: Path, *operators: str) -> dict[str, Array]:
    """The matrices that these operators of a model read, in an order mixed by chance."""
    model = onnx.load(path)
    read = {name for node in model.graph.node if node.op_type in operators for name in node.input}
    found = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.name in read and len(tensor.dims) == 2 and tensor.data_type == tensor.FLOAT
    }
    names = sorted(found)
    random.Random(1).shuffle(names)
    return {name: found[name] for name in names}


def share(weights: dict[str, Array], part: float, total: int) -> dict[str, Array]:
    """The first of the weights, up to a part of all bytes (one at least)."""
    chosen, size = {}, 0
    for name, array in weights.items():
        if size >= part * total:
            break
        chosen[name], size = array, size + array.nbytes
    return chosen


def updates(path: Path, threads: int, runs: int) -> dict[str, dict[str, float]]:
    """Milliseconds of an update, by how much it replaces and whether the weights are shared."""
    from ranks.run import executor

    weights = weights_of(path, "MatMul", "Gather")
    total = sum(array.nbytes for array in weights.values())
    model = executor.load(path, threads=threads, variable_weights=list(weights))
    assert model.weights is not None
    model.weights.snapshot()
    products = weights_of(path, "MatMul")  # the embedding alone is more than a tenth
    products = dict(sorted(products.items(), key=lambda item: item[1].nbytes))
    result = {}
    for shared in (False, True):
        if shared:
            for file in model.weights.export()[1]:
                os.close(file)
        for part in (0.01, 0.1, 1.0):
            given = share(products if part < 1 else weights, part, total)
            size = sum(array.nbytes for array in given.values())
            times = []
            for _ in range(runs + 1):
                start = time.perf_counter()
                model.update_weights(given)
                times.append(1e3 * (time.perf_counter() - start))
            label = f"{100 * size / total:.0f} % ({size / 1e6:.0f} MB){', shared' if shared else ''}"
            result[label] = {"median": statistics.median(times[1:]), "slowest": max(times[1:])}
    model.close()
    return result


def bare(path: Path, given: dict[str, Array], threads: int) -> Callable[[dict[str, Array]], Any]:
    """Plain ONNX Runtime on the model with these weights turned into inputs."""
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    for index in range(len(graph.initializer) - 1, -1, -1):
        tensor = graph.initializer[index]
        if tensor.name in given:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, 1, list(tensor.dims)))
            del graph.initializer[index]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    folder = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(folder, str(path.parent.resolve()))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in given.items()}
    return lambda feeds: session.run(None, {**feeds, **values})


def predictions(path: Path, threads: int, runs: int) -> dict[str, dict[int, float]]:
    """Median milliseconds of a prediction, by contestant and sequence length."""
    from ranks.run import executor

    weights = weights_of(path, "MatMul")
    total = sum(array.nbytes for array in weights_of(path, "MatMul", "Gather").values())
    tenth = share(weights, 0.1, total)
    # The first session of a process is a tenth slower at one row than those after it, whatever it holds.
    first = bare(path, {}, threads)
    calls: dict[str, Callable[[dict[str, Array]], Any]] = {
        "none variable": executor.load(path, threads=threads).run,
        "none, plain ONNX Runtime": bare(path, {}, threads),
        "10 % variable": executor.load(path, threads=threads, variable_weights=list(tenth)).run,
        "all of products": executor.load(path, threads=threads, variable_weights=list(weights)).run,
        "10 %, plain ONNX Runtime": bare(path, tenth, threads),
        "all, plain ONNX Runtime": bare(path, weights, threads),
    }
    result: dict[str, dict[int, float]] = {name: {} for name in calls}
    first({"input_ids": np.ones((1, 1), np.int64), "attention_mask": np.ones((1, 1), np.int64)})
    clock = time.thread_time if threads == 1 else time.perf_counter
    for length in LENGTHS:
        ones = np.ones((1, length), np.int64)
        feeds = {"input_ids": ones, "attention_mask": ones}
        times: dict[str, list[float]] = {name: [] for name in calls}
        answers = {}
        for run in range(runs + 2):
            for name, call in calls.items():
                start = clock()
                answers[name] = call(feeds)[0]
                if run >= 2:
                    times[name].append(1e3 * (clock() - start))
        right = answers["none variable"]
        for name, answer in answers.items():
            wrong = float(np.abs(answer - right).max() / np.abs(right).max())
            assert wrong <= 1e-4, f"{name}: relative error {wrong} at sequence {length}"
            result[name][length] = statistics.median(times[name])
    return result


def main() -> None:
    """Measures and prints."""
    arguments = parser_of(__doc__, quick=False, runs=int, threads=1, json=Path).parse_args()
    from tests import models

    path = models.get("bert_base").path
    runs = arguments.runs or (5 if arguments.quick else 40)
    updated = updates(path, arguments.threads, 3 if arguments.quick else 10)
    print("Updating, milliseconds (median, slowest)")
    for label, found in updated.items():
        print(f"  {label:24}{found['median']:9.1f}{found['slowest']:9.1f}")
    predicted = predictions(path, arguments.threads, runs)
    base = predicted["none variable"]
    print(f"Predicting, milliseconds (and in parts of none variable), {arguments.threads} thread(s)")
    print(f"  {'sequence':26}" + "".join(f"{length:>16}" for length in LENGTHS))
    for name, medians in predicted.items():
        cells = (f"{medians[n]:9.2f} ({medians[n] / base[n]:.2f})" for n in LENGTHS)
        print(f"  {name:26}" + "".join(f"{cell:>16}" for cell in cells))
    write_json(arguments.json, {"updates": updated, "predictions": predicted})


if __name__ == "__main__":
    main()
