"""`shardrun serve` under load, beside the same ranks without a server, and other servers of the same
models.

    python benchmarks/serving.py [--models tiny mobilenet_v2 bert_base language] [--clients 1 8 64]
        [--texts 1 8] [--seconds 1.5] [--rounds 3] [--peers FOLDER] [--language FOLDER --weights FOLDER]
        [--before FOLDER] [--also=FLAGS] [--realtime] [--quick] [--json FILE]

Contestants, each started once:

- `group.predict`: the ranks in the process that asks, with a thread for each client: what all others are
  compared with
- `serve, JSON`, `serve, binary`, `serve, gRPC`: `shardrun serve` in front of the same ranks, by the Open
  Inference Protocol
- `nothing, binary`: benchmarks/serving_bare.py, which answers at once: what HTTP itself costs here
- `bare, binary`: the same with the ranks asked before each answer, and nothing read, checked or counted
- `FastAPI, JSON` and `binary`: benchmarks/serving_plain.py, ONNX Runtime with as many threads as there are
  ranks
- `MLServer`, `Triton`: these servers around the same ONNX Runtime session
  (benchmarks/serving_peer_models.py)
- `vLLM`: its server for the CPU, tensor parallel, for the language model

The last three are there where `scripts/serving_peers.sh FOLDER` has made their environments. Clients are of
benchmarks/serving_load.py, in one process, over loopback. The contestants take turns in a new order each
round, for `--seconds` each; those that would spin meanwhile are stopped. The first answer of each is
compared with ONNX Runtime's.

Printed are, over all rounds, median, 90th and 99th percentile of the waits, requests per second, the median's
distance from `group.predict` and the part of its rate, and the processor time of a request (server and ranks,
without the clients; of `group.predict` with them), and how much of it is the ranks'. Of texts: to the first
token, between two, and tokens a second. Models: one product with a body of 1 KB, MobileNetV2 on a 224 x 224
picture, BERT-base on 128 words, and a language model (of scripts/generation_peers.sh: FOLDER is of GenAI's
builder, WEIGHTS of transformers), whose texts are 64 tokens after a prompt of 128.

`--vllm PYTHON` names one that has vLLM (default: that of `--peers`), and `--before FOLDER` has another
version of this project contend, too, and `--also="--bind none"` this one with more flags. With `--realtime`
(for root) the contestants go before what else the machine does; `--quick` takes seconds: the smallest model,
1 and 4 clients.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import HERE, ROOT, parser_of, session_of, write_json
from serving_bodies import (
    HEADER,
    METHOD,
    Feeds,
    Load,
    as_bytes,
    as_json,
    as_message,
    first_output,
    first_raw_output,
)
from serving_servers import Server, first, started, used_below

BASELINE = "group.predict"
PROMPT, NEW = 128, 64


@dataclass
class Contestant:
    """A way of asking a server, and how long that took."""

    name: str
    server: Server
    ask: Callable[[int, float], dict[str, Any]]
    """A load of so many clients for so many seconds."""
    waits: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)
    below: list[float] = field(default_factory=list)
    """What of it the processes below the first one have used."""

    def turn(self, clients: int, seconds: float, *, kept: bool = True) -> None:
        """One round."""
        if self.server.spins:
            self.server.told(signal.SIGCONT)
            time.sleep(0.3)
        own = self.server.process.pid
        before = used_below(own)
        found = self.ask(clients, seconds)
        spent = {pid: used - before.get(pid, 0.0) for pid, used in used_below(own).items()}
        if self.server.spins:
            self.server.told(signal.SIGSTOP)
        if "error" in found:
            raise SystemExit(f"{self.name}: {found['error']}")
        if not kept:
            return
        count = found["tokens"] if "tokens" in found else len(found["waits"])
        self.waits += found["gaps"] if "gaps" in found else found["waits"]
        self.first += found.get("first", [])
        self.rates.append(count / found["seconds"])
        used = sum(spent.values())
        self.used.append(1e3 * used / max(1, count))
        self.below.append(1e3 * (used - spent.get(own, 0.0)) / max(1, count))

    def forget(self) -> None:
        """Ready for another number of clients."""
        self.waits, self.first, self.rates, self.used, self.below = [], [], [], [], []


def _asker(
    clients: Server, server: Server, load: Load, folder: Path
) -> Callable[[int, float], dict[str, Any]]:
    body = folder / f"{server.port}-{len(load.headers)}.body"
    body.write_bytes(load.body)
    fixed = {"kind": "whole", "port": server.port, "head": load.head(), "body": str(body)}
    return lambda count, seconds: clients.ask({**fixed, "clients": count, "seconds": seconds})


def checked(server: Server, load: Load, expected: np.ndarray, name: str) -> None:
    """Ends where the server's answer is not ONNX Runtime's."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("POST", load.path, load.body, dict(load.headers))
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{name}: status {answer.status}: {data[:600]!r}")
    agree(first_output(data, answer.headers.get(HEADER)), expected, name)


def agree(found: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Ends where an answer is not ONNX Runtime's."""
    error = np.abs(found - expected).max() / np.abs(expected).max()
    if found.shape != expected.shape or not error < 1e-4:
        raise SystemExit(f"{name} answers otherwise than ONNX Runtime: {error:.1e}")


def compared(
    contestants: Sequence[Contestant], model: str, counts: Sequence[int], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """All numbers of clients; shown as they come."""
    rows: list[dict[str, Any]] = []
    for one in contestants if arguments.realtime else ():
        first(one.server.process.pid)
    for count in counts:
        for one in contestants:
            one.forget()
            one.turn(count, min(0.5, arguments.seconds), kept=False)
        for _ in range(arguments.rounds):
            for one in random.sample(contestants, len(contestants)):
                one.turn(count, arguments.seconds)
        base = {
            "p50": float(np.median(contestants[0].waits)),
            "rate": statistics.median(contestants[0].rates),
        }
        for one in contestants:
            p50, p90, p99 = (float(value) for value in np.percentile(one.waits, (50, 90, 99)))
            row = {
                "model": model, "clients": count, "contestant": one.name, "p50": p50, "p90": p90, "p99": p99,
                "rate": statistics.median(one.rates), "used": statistics.median(one.used),
                "below": statistics.median(one.below),
                "more": p50 - base["p50"], "part": statistics.median(one.rates) / base["rate"],
            }  # fmt: skip
            if one.first:
                row |= {
                    "first": float(np.median(one.first)),
                    "first_p99": float(np.percentile(one.first, 99)),
                }
            rows.append(row)
            show(row)
    return rows


def show(row: Mapping[str, Any]) -> None:
    """One line."""
    unit, first = "request", ""
    if "first" in row:
        unit, first = "token", f"  first token {row['first']:7.1f} ms, 99 % {row['first_p99']:7.1f}"
    print(
        f"{row['model']:12}{row['clients']:4} clients  {row['contestant']:18}{row['p50']:9.3f} ms"
        f"{row['p90']:9.3f}{row['p99']:9.3f}{row['more']:+9.3f}{row['rate']:10.1f} {unit}s/s"
        f"{row['part']:7.3f}{row['used']:9.3f} ms cpu, ranks {row['below']:.3f}{first}",
        flush=True,
    )


def _own(model: Path, name: str, ranks: int) -> list[str]:
    return [
        sys.executable, "-m", "launcher.cli", "serve", str(model), "--name", name, "--ranks", str(ranks),
        "--threads", "1", "--launcher", "local", "--port", "PORT", "--allow-replicated",
    ]  # fmt: skip


def tensors(name: str, model: Path, feeds: Feeds, arguments: argparse.Namespace, folder: Path) -> list[Any]:
    """A model of tensors: all contestants there are."""
    import serving_peer_models

    session = session_of(model)
    expected = np.asarray(session.run(None, dict(feeds))[0], np.float32).ravel()
    del session
    inputs = folder / f"{name}.npz"
    np.savez(inputs, **feeds)
    python, ranks = sys.executable, arguments.ranks
    loads = {"JSON": as_json(name, feeds), "binary": as_bytes(name, feeds)}
    with ExitStack() as stack:
        clients = stack.enter_context(_clients())
        if arguments.realtime:
            first(clients.process.pid)
        command = [python, str(HERE / "serving_group.py"), "tensors", str(model), str(inputs), str(ranks)]
        group = stack.enter_context(started(command, None))
        found = [
            Contestant(
                BASELINE, group, lambda count, seconds: group.ask({"clients": count, "seconds": seconds})
            )
        ]

        def add(title: str, server: Server, kinds: Sequence[str]) -> None:
            for kind in kinds:
                checked(server, loads[kind], expected, title)
                asker = _asker(clients, server, loads[kind], folder)
                found.append(Contestant(f"{title}, {kind}", server, asker))

        bare = [python, str(HERE / "serving_bare.py"), str(model), str(inputs), "PORT"]
        add("nothing", stack.enter_context(started(bare, "/")), ["binary"])
        add("bare", stack.enter_context(started([*bare, str(ranks)], "/")), ["binary"])
        grpc = ["--grpc-port", "GRPC"] if _has_grpc() else []
        server = stack.enter_context(started([*_own(model, name, ranks), *grpc], "/v2/health/ready"))
        add("serve", server, ["JSON", "binary"])
        if grpc:
            found.append(
                Contestant(
                    "serve, gRPC",
                    server,
                    _grpc_asker(clients, server, as_message(name, feeds), expected, folder),
                )
            )
        if arguments.before:
            root = arguments.before.resolve()
            server = stack.enter_context(started(_own(model, name, ranks), "/v2/health/ready", root=root))
            add("before", server, ["JSON", "binary"])
        if arguments.also:
            command = [*_own(model, name, ranks), *arguments.also.split()]
            add(
                f"serve {arguments.also}",
                stack.enter_context(started(command, "/v2/health/ready")),
                ["binary"],
            )
        for peer in serving_peer_models.PEERS if arguments.peers else ():
            if (how := peer.command(arguments.peers, name, model, ranks, folder)) is not None:
                server = stack.enter_context(
                    started(how, peer.ready.replace("NAME", name), spins=peer.spins, env=peer.env)
                )
                add(peer.title, server, peer.kinds)
        return compared(found, name, arguments.clients, arguments)


def _has_grpc() -> bool:
    """Whether this version serves over gRPC."""
    command = [sys.executable, "-m", "launcher.cli", "serve", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    return "--grpc-port" in told


def _grpc_asker(
    clients: Server, server: Server, message: bytes, expected: np.ndarray, folder: Path
) -> Callable[[int, float], dict[str, Any]]:
    import grpc

    body = folder / f"{server.grpc}.message"
    body.write_bytes(message)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        answer = channel.unary_unary(METHOD)(body.read_bytes(), timeout=120)
    agree(first_raw_output(answer), expected, "serve, gRPC")
    fixed = {"kind": "remote", "port": server.grpc, "method": METHOD, "body": str(body)}
    return lambda count, seconds: clients.ask({**fixed, "clients": count, "seconds": seconds})


@contextlib.contextmanager
def _clients() -> Iterator[Server]:
    command = [sys.executable, str(HERE / "serving_load.py")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Server("the clients", process)
    finally:
        process.kill()
        process.communicate()


def texts(arguments: argparse.Namespace, folder: Path) -> list[Any]:
    """A language model: all contestants there are."""
    import serving_peer_models

    ranks, words = arguments.ranks, np.random.default_rng(0)
    model = serving_peer_models.worded(arguments.language, folder / "language")
    with ExitStack() as stack:
        clients = stack.enter_context(_clients())
        if arguments.realtime:
            first(clients.process.pid)

        def prompts(count: int) -> list[list[int]]:  # new ones each time: nobody has them in a cache
            return [words.integers(5, 900, PROMPT).tolist() for _ in range(count)]

        def asker(server: Server) -> Callable[[int, float], dict[str, Any]]:
            fixed = {
                "model": "language", "max_tokens": NEW, "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True},
            }  # fmt: skip

            def ask(count: int, _: float) -> dict[str, Any]:
                bodies = [{**fixed, "prompt": prompt} for prompt in prompts(count)]
                return clients.ask(
                    {"kind": "stream", "port": server.port, "path": "/v1/completions", "bodies": bodies}
                )

            return ask

        command = [sys.executable, str(HERE / "serving_group.py"), "texts", str(model), "-", str(ranks)]
        group = stack.enter_context(started(command, None))
        found = [
            Contestant("engine", group, lambda count, _: group.ask({"prompts": prompts(count), "new": NEW}))
        ]
        server = stack.enter_context(started(_own(model, "language", ranks), "/v2/health/ready"))
        found.append(Contestant("serve", server, asker(server)))
        python = arguments.vllm or (arguments.peers and arguments.peers / "vllm" / "bin" / "python")
        if python and python.exists() and arguments.weights:
            weights = serving_peer_models.worded(arguments.weights, folder / "weights")
            how = serving_peer_models.vllm(python, weights, ranks, PROMPT + NEW)
            server = stack.enter_context(
                started(how, "/health", spins=True, env=serving_peer_models.vllm_env(ranks))
            )
            found.append(Contestant("vLLM", server, asker(server)))
        return compared(found, "language", arguments.texts, arguments)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    import serving_peer_models

    made = serving_peer_models.MODELS
    numbers = {"clients": [1, 8, 64], "texts": [1, 8], "ranks": 2, "seconds": 1.5, "rounds": 3}
    places = dict.fromkeys(("peers", "language", "weights", "vllm", "before", "json"), Path)
    parser = parser_of(__doc__, **numbers, **places, also=str, realtime=False, quick=False)
    parser.add_argument("--models", nargs="+", choices=[*made, "language"], default=[*made, "language"])
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.models, arguments.clients, arguments.seconds, arguments.rounds = ["tiny"], [1, 4], 0.05, 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["SHARDRUN_CACHE"] = str(folder / "cache")
        for name in arguments.models:
            if name == "language":
                if arguments.language is None:
                    print("language: left out, for --language names no folder")
                    continue
                rows += texts(arguments, folder)
            else:
                model = folder / name / f"{name}.onnx"
                model.parent.mkdir()
                rows += tensors(name, model, made[name](model), arguments, folder)
    write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
