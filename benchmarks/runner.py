"""`ModelParallelRunner` under load, beside plain ONNX Runtime and mindspore_lite's own runner.

    python benchmarks/runner.py [--models mobilenet_v2 bert_base] [--workers 1 2 4 8] [--clients 1 2 8 32]
                                [--threads 1] [--seconds 4] [--rounds 5] [--mindspore-python PYTHON37]
                                [--quick] [--json FILE]

Every client is a thread that asks again as soon as it has its answer. Contestants, each in a process of its
own, all with the same ONNX file, or what mindspore_lite's converter makes of it:

- `ranks`: ModelParallelRunner
- `onnxruntime shared`: one session that all clients call at once, whatever the number of workers
- `onnxruntime per worker`: a session per worker, taken by whichever client is first
- `mindspore_lite`: its ModelParallelRunner, where --mindspore-python names a Python with the package

They take turns, `--seconds` each, for `--rounds` rounds (with `--quick` a minute: 1 and 2 workers, 8
clients). Printed are medians over the rounds of the requests per second, the processor time of a request
(which other work on the machine disturbs less), the 95th percentile of all waits, and the memory of the
process (PSS) after the last round. Models: MobileNetV2 on a 224 x 224 picture, BERT-base on 128 words; both
with all lengths fixed, as mindspore_lite needs them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import MB, ROOT, Asked, parser_of, write_json

LOAD = Path(__file__).with_name("runner_load.py")
RANKS, SHARED, PER_WORKER, LITE = "ranks", "onnxruntime shared", "onnxruntime per worker", "mindspore_lite"


def mobilenet_v2(path: Path) -> None:
    """The test model, with its input fixed to one picture of 224 x 224."""
    import onnx

    from tests import models

    model = onnx.load(models.get("mobilenet_v2").path)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for dim, length in zip(dims, (1, 3, 224, 224), strict=True):
        dim.dim_value = length
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)


def bert_base(path: Path) -> None:
    """BERT-base with random weights on 128 words, of operators that mindspore_lite's converter knows.

    It has no parser for those in which transformers prepares the mask (GreaterOrEqual), nor for the later
    LayerNormalization: the mask is prepared here as BERT's first implementation did, in operator set 13.
    """
    import torch
    from transformers import BertConfig, BertModel

    class LastHidden(torch.nn.Module):
        def __init__(self, bert: Any) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            added = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * -10000.0
            words = self.bert.embeddings(input_ids=input_ids)
            return self.bert.encoder(words, attention_mask=added).last_hidden_state

    torch.manual_seed(1)
    config = BertConfig(initializer_range=0.05)
    config._attn_implementation = "eager"
    bert = BertModel(config, add_pooling_layer=False).eval()
    ids = torch.arange(128).reshape(1, 128)
    torch.onnx.export(
        LastHidden(bert),
        (ids, torch.ones_like(ids)),
        str(path),
        dynamo=False,
        opset_version=13,
        input_names=["input_ids", "attention_mask"],
        output_names=["last_hidden_state"],
    )


MODELS = {"mobilenet_v2": mobilenet_v2, "bert_base": bert_base}

CONVERT = """
import sys, mindspore_lite
converter = mindspore_lite.Converter()
converter.save_type = mindspore_lite.ModelType.MINDIR
converter.convert(mindspore_lite.FmkType.ONNX, sys.argv[1], sys.argv[2])
"""


def convert(python: str, model: Path) -> Path:
    """The model as MindIR, by mindspore_lite's converter."""
    target = model.with_suffix("")
    command = [python, "-c", CONVERT, str(model), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"mindspore_lite cannot convert {model.name}:\n{done.stdout}{done.stderr}")
    return target.with_suffix(".mindir")


@dataclass
class Contestant(Asked):
    """A process under load, and what it did."""

    first: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def turn(self, clients: int, seconds: float) -> None:
        """One round, kept."""
        found = self.ask((clients, seconds))
        self.rates.append(len(found["waits"]) / found["seconds"])
        self.used.append(found["used"] / len(found["waits"]) * 1e3)
        self.waits += found["waits"]

    def forget(self) -> None:
        """Ready for another number of clients."""
        self.rates, self.used, self.waits = [], [], []


@contextmanager
def started(name: str, python: str, model: Path, workers: int, threads: int) -> Iterator[Contestant]:
    """A contestant that has answered its first request."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [python, str(LOAD), name, str(model), str(workers), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT) if name == RANKS else ""},
        )
        try:
            contestant = Contestant(name, process)
            try:
                contestant.first = json.loads(contestant.line())["ready"]
                yield contestant
            except SystemExit:
                errors.seek(0)
                print(errors.read()[-3000:], file=sys.stderr)
                raise
        finally:
            process.kill()
            process.communicate()


def compare(
    model: Path, lite: Path | None, python: str, workers: int, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """One model, one number of workers, all numbers of clients."""
    found = []
    with ExitStack() as stack:
        contestants = [
            stack.enter_context(started(name, sys.executable, model, workers, arguments.threads))
            for name in (RANKS, SHARED, PER_WORKER)
        ]
        if lite is not None:
            contestants.append(stack.enter_context(started(LITE, python, lite, workers, arguments.threads)))
        expected = np.array(contestants[1].first)
        for contestant in contestants:
            error = np.abs(np.array(contestant.first) - expected).max() / np.abs(expected).max()
            if error > (1e-4 if contestant.name != LITE else 1e-2):
                raise SystemExit(f"{contestant.name} answers otherwise than ONNX Runtime: {error:.1e}")
        for clients in arguments.clients:
            for contestant in contestants:
                contestant.forget()
                contestant.ask((clients, min(1.0, arguments.seconds)))  # its arena grows to its size
            for _ in range(arguments.rounds):
                for contestant in contestants:
                    contestant.turn(clients, arguments.seconds)
            for contestant in contestants:
                found.append(
                    {
                        "model": model.stem,
                        "workers": workers,
                        "clients": clients,
                        "contestant": contestant.name,
                        "rate": statistics.median(contestant.rates),
                        "used": statistics.median(contestant.used),
                        "p95": float(np.percentile(contestant.waits, 95)),
                        "memory": contestant.memory()["Pss"] / MB,
                        "resident": contestant.memory()["Rss"] / MB,
                    }
                )
                show(found[-1])
    return found


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    print(
        f"{row['model']:14}{row['workers']:3} workers{row['clients']:4} clients  {row['contestant']:24}"
        f"{row['rate']:8.2f}/s{row['used']:9.2f} ms cpu{row['p95']:9.1f} ms p95{row['memory']:8.0f} MB",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    numbers = {"workers": [1, 2, 4, 8], "clients": [1, 2, 8, 32], "threads": 1, "seconds": 4.0, "rounds": 5}
    parser = parser_of(__doc__, **numbers, quick=False, mindspore_python="", json=Path)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.workers, arguments.clients = [1, 2], [8]
        arguments.seconds, arguments.rounds = 1.5, 3
    python = arguments.mindspore_python
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            model = Path(folder) / f"{name}.onnx"
            MODELS[name](model)
            lite = convert(python, model) if python else None
            for workers in arguments.workers:
                found += compare(model, lite, python, workers, arguments)
    write_json(arguments.json, found)


if __name__ == "__main__":
    main()
