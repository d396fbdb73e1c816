"""What a ModelGroup saves: two models that share most of their weights, together and apart.

    python benchmarks/model_group.py [--quick] [--json FILE]

The models are BERT-base with two heads: the same encoder, one with a classifier behind it, one that gives
every token's vector. Each arrangement runs in a process of its own, both models in turn, at two lengths.
Printed: the proportional set size beyond the bare process (weights in files, which processes share, and the
process's own memory), what the runs added to the process's own memory, and milliseconds an inference.
`--quick` takes MiniLM. Answers are compared with plain ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from common import bytes_of, parser_of, write_json
from onnx import helper, numpy_helper

APART, CALCULATED = "apart", "SHARE_WEIGHT_WORKSPACE, calculated"
ARRANGEMENTS = (APART, "SHARE_WORKSPACE", "SHARE_WEIGHT", "SHARE_WEIGHT_WORKSPACE", CALCULATED)


def heads(source: Path, folder: Path) -> tuple[Path, Path]:
    """Writes the model's encoder with a classifier of two classes, and as it is, each with its own data."""
    paths = folder / "classifier.onnx", folder / "encoder.onnx"
    model = onnx.load(str(source))
    encoded = next(value for value in model.graph.output if len(value.type.tensor_type.shape.dim) == 3)
    del model.graph.output[:]
    model.graph.output.append(encoded)
    onnx.save(model, paths[1], save_as_external_data=True, location="encoder.data")
    model = onnx.load(str(paths[1]))
    width = encoded.type.tensor_type.shape.dim[2].dim_value
    weight = np.random.default_rng(3).standard_normal((width, 2)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "classes"))
    model.graph.node.append(helper.make_node("MatMul", [encoded.name, "classes"], ["scores"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["b", "s", 2]))
    onnx.save(model, paths[0], save_as_external_data=True, location="classifier.data")
    return paths


def feeds(path: Path, length: int) -> dict[str, Any]:
    """Words of one sentence, all real."""
    random = np.random.default_rng(7)
    inputs = onnx.load(str(path), load_external_data=False).graph.input
    return {
        value.name: np.ones((1, length), np.int64)
        if "mask" in value.name
        else random.integers(0, 30000 if value.name == "input_ids" else 1, (1, length))
        for value in inputs
    }


def work(arrangement: str, paths: list[str], lengths: list[int], rounds: int) -> dict[str, Any]:
    """Builds and runs both models in this process, as the arrangement says."""
    import ranks

    context = ranks.Context()
    context.cpu.thread_num = 1
    data = [[feeds(Path(path), length) for length in lengths] for path in paths]
    bare = bytes_of()
    workspace = 0
    if arrangement != APART:
        group = ranks.ModelGroup(ranks.ModelGroupFlag[arrangement.split(",", 1)[0]])
        group.add_model(paths)
        if arrangement == CALCULATED:
            shapes = {path: {name: array.shape for name, array in data[0][-1].items()} for path in paths}
            group.cal_max_size_of_workspace(ranks.ModelType.ONNX, context, shapes=shapes)
            workspace = group.max_size_of_workspace
    models = []
    for path in paths:
        models.append(ranks.Model())
        models[-1].build_from_file(path, ranks.ModelType.ONNX, context)
    built = bytes_of()
    answers: list[Any] = []
    times: list[float] = []
    for _ in range(rounds):
        answers = []
        for model, own in zip(models, data, strict=True):
            for feed in own:
                begin = time.perf_counter()
                outputs = model.predict(list(feed.values()))
                times.append(time.perf_counter() - begin)
                answers.append(outputs[0].get_data_to_numpy())
    run = bytes_of()
    return {
        "memory": run["Pss"] - bare["Pss"],
        "runs": run["Pss_Anon"] - built["Pss_Anon"],
        "workspace": workspace,
        "milliseconds": statistics.median(times) * 1000,
        "error": max(_errors(paths, data, answers)),
    }


def _errors(paths: list[str], data: list[list[dict[str, Any]]], answers: list[Any]) -> list[float]:
    errors, waiting = [], iter(answers)
    for path, own in zip(paths, data, strict=True):
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        for feed in own:
            (right,) = session.run(None, feed)
            errors.append(float(np.abs(next(waiting) - right).max() / np.abs(right).max()))
    return errors


def main() -> None:
    """Measures and prints."""
    parser = parser_of(__doc__, quick=False, json=Path)
    parser.add_argument("--work", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        arrangement, rounds, lengths, *paths = arguments.work
        found = work(arrangement, paths, json.loads(lengths), int(rounds))
        print(json.dumps(found))
        return
    from tests import models

    lengths, rounds = ([16, 32], 3) if arguments.quick else ([32, 128], 10)
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = heads(models.get("minilm" if arguments.quick else "bert_base").path, Path(folder))
        environment = {**os.environ, "SHARDRUN_CACHE": f"{folder}/cache"}
        for arrangement in ARRANGEMENTS:
            command = [sys.executable, __file__, "--work", arrangement, str(rounds), json.dumps(lengths)]
            # Twice: weights are prepared in the first process that needs them, which takes memory of its own.
            for _ in range(2):
                done = subprocess.run(
                    [*command, *map(str, paths)],
                    env=environment,
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            figures[arrangement] = json.loads(done.stdout.splitlines()[-1])
    print(f"{'':36}{'memory':>10}{'by runs':>10}{'workspace':>11}{'a run':>10}{'error':>10}")
    for name, figure in figures.items():
        sizes = (f"{figure[key] / 1e6:.1f} MB" for key in ("memory", "runs", "workspace"))
        print(
            f"{name:36}{next(sizes):>10}{next(sizes):>10}{next(sizes):>11}"
            f"{figure['milliseconds']:>7.1f} ms{figure['error']:>10.1e}"
        )
    write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
