"""All-reduce of ranks on two hosts, flat and hierarchical, and whole models: time, bytes and packets sent.

    python benchmarks/hosts.py [--ranks 4] [--link 1gbit 10gbit] [--bytes 3072 393216 4194304] [--rounds 5]
    python benchmarks/hosts.py --models bert llama [--meshes tensor=4 pipeline=2,tensor=2]

Needs root and `ip` and `tc` of iproute2; `--ranks` is even. The hosts are two network namespaces of this
machine, joined by one link whose rate `tc` limits (a token bucket in either direction); they are made anew
and removed. In each run the ranks have joined all groups and take turns between them, one burst each. A time
is one call on rank 0, float32, in place: the median in milliseconds. Bytes and packets are what host 1 sent
in a call on average, as its interface counts them. "mpi" is flat Open MPI over TCP, as MpiCommunicator uses
it, its ranks started by mpirun across both hosts; "gloo" is flat Gloo.

With `--models` a line is one inference: of BERT-base (a row of 128 tokens), and of a step of a decoder of
eight layers of 512 that reads one token beside 127 kept ones. Each mesh runs with flat Gloo and with sums
within the hosts first. `tc` adds no delay by itself (its netem is not in every kernel): the latency is that
of a local link, so that a real network's per-message costs come on top.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import AS_ROOT, identities, mpirun, parser_of

TIMEOUT = 120.0
HOSTS = ("shardrun-b1", "shardrun-b2")
ADDRESSES = ("10.83.0.1", "10.83.0.2")
BURST_SECONDS = 0.5


@contextlib.contextmanager
def two_hosts(rate: str) -> Iterator[None]:
    """Two namespaces and a link between them of ``rate``, as `tc` writes it."""
    try:
        for name in HOSTS:
            ip("netns", "add", name)
        ip(*f"link add eth0 netns {HOSTS[0]} type veth peer name eth0 netns {HOSTS[1]}".split())
        for name, address in zip(HOSTS, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
            shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "eth0", *shape], check=True)
        yield
    finally:
        for name in HOSTS:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def ip(*arguments: str) -> None:
    """Runs `ip`."""
    subprocess.run(["ip", *arguments], check=True)


def sent() -> tuple[int, int]:
    """Bytes and packets that this host has sent over the link."""
    folder = Path("/sys/class/net/eth0/statistics")
    return int((folder / "tx_bytes").read_text()), int((folder / "tx_packets").read_text())


def rank(options: argparse.Namespace) -> None:
    """One rank: joins all groups, and times them in turn; rank 0 writes what it found."""
    from ranks.collectives import connect
    from ranks.identity.identity import identify

    who = identify()
    who = replace(who, local_size=who.world_size // 2)
    worlds = {name: connect(who, name, TIMEOUT) for name in options.backends}
    found: list[dict[str, Any]] = []
    for size in options.bytes:
        times: dict[str, list[float]] = {name: [] for name in worlds}
        link = {name: np.zeros(2) for name in worlds}
        for turn in range(options.rounds + 1):
            for name, world in worlds.items():
                buffer = world.allocate((size // 4,), np.dtype(np.float32))
                buffer[...] = 0
                calls = np.zeros(1, np.int64)
                if turn:
                    calls[0] = max(3, int(BURST_SECONDS / max(1e-5, statistics.median(times[name][:9]))))
                world.broadcast(calls)
                world.barrier()
                before = np.array(sent())
                for _ in range(int(calls[0]) or 9):
                    start = time.perf_counter()
                    world.all_reduce(buffer)
                    times[name].append(time.perf_counter() - start)
                if turn:
                    link[name] += (np.array(sent()) - before) / (int(calls[0]) * options.rounds)
                world.barrier()
        for name, taken in times.items():
            label = getattr(worlds[name], "name", name)
            row = {"name": label, "bytes": size, "ms": statistics.median(taken[9:]) * 1e3}
            found.append({**row, "sent": link[name][0], "packets": link[name][1]})
    for world in worlds.values():
        world.close()
    if who.rank == 0:
        Path(options.result).write_text(json.dumps(found))


def model_rank(options: argparse.Namespace) -> None:
    """One rank of a whole model."""
    from ranks.identity.identity import identify
    from ranks.run.executor import LoadOptions
    from ranks.run.target import load

    who = identify()
    who = replace(who, local_size=who.world_size // 2)
    patient = LoadOptions(timeout=TIMEOUT)
    world, model = load(options.slices, who, collectives=options.backends[0], threads=1, options=patient)
    with np.load(options.feeds) as found:
        feeds = dict(found)
    times: list[float] = []
    for turn in range(2 + 4 * options.rounds):
        world.barrier()
        if turn == 2:
            before = np.array(sent())
        start = time.perf_counter()
        model.run(feeds)
        times.append(time.perf_counter() - start)
    link = (np.array(sent()) - before) / (4 * options.rounds)
    if who.rank == 0:
        row = {"ms": statistics.median(times[2:]) * 1e3, "sent": link[0], "packets": link[1]}
        Path(options.result).write_text(json.dumps(row))
    model.close()
    sys.stdout.flush()
    os._exit(0)  # torch may abort while Python takes it apart


def models_of(names: list[str], folder: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """The models and the inputs of one inference."""
    if "bert" in names:
        from benchmarks.latency import feeds_of
        from tests import models

        yield "BERT-base", models.get("bert_base").path, feeds_of(128)
    if "llama" in names:
        from tests.sharding.llama import Llama

        sizes = Llama(layers=8, heads=8, kv_heads=4, size=64, inner=1536, words=8192, cache=True)
        yield "decoder step", sizes.save(folder / "llama.onnx"), sizes.feeds(1, 1, 127)


def models(options: argparse.Namespace, folder: Path) -> int:
    """Runs each model on each mesh by both collectives."""
    from launcher.job.cache import sliced
    from sharding.demands.options import SliceOptions
    from sharding.slices.mesh import parse_mesh

    for name, path, feeds in models_of(options.models, folder):
        np.savez(folder / "feeds.npz", **feeds)
        for mesh in options.meshes:
            slices = sliced(path, options.ranks, options=SliceOptions(mesh=parse_mesh(mesh)))
            for backend in ("hierarchical", "gloo"):
                result = folder / "result.json"
                flags = ["--slices", str(slices), "--feeds", str(folder / "feeds.npz")]
                flags += ["--backends", backend, "--rounds", str(options.rounds), "--result", str(result)]
                if gloo_ranks(options, [sys.executable, __file__, *flags]):
                    return 1
                row = json.loads(result.read_text())
                print(
                    f"{name:>13} {mesh:>20} {backend:>13} {row['ms']:>9.1f} ms {row['sent'] / 1024:>9.1f} KB"
                    f" {row['packets']:>8.1f} packets",
                    flush=True,
                )
    return 0


def gloo_ranks(options: argparse.Namespace, command: list[str]) -> int:
    """Starts the ranks without an MPI, half of them on each host."""
    common = {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29517", "GLOO_SOCKET_IFNAME": "eth0"}
    half = options.ranks // 2
    started = []
    for number, who in enumerate(identities(options.ranks)):
        place = {"LOCAL_RANK": str(number % half), "LOCAL_WORLD_SIZE": str(half)}
        environ = {**os.environ, **common, **who, **place}
        words = ["ip", "netns", "exec", HOSTS[number // half], *command]
        started.append(subprocess.Popen(words, env=environ))
    return max(process.wait() for process in started)


def mpi_ranks(options: argparse.Namespace, command: list[str], folder: Path) -> int:
    """Starts the ranks by mpirun, which reaches the second host by a program in the place of ssh."""
    found = mpirun()
    if found is None:
        print("no mpirun: left out")
        return 0
    agent = folder / "agent"
    cases = "".join(f"  {a}) name={h};;\n" for a, h in zip(ADDRESSES, HOSTS, strict=True))
    agent.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}esac\nshift\nexec ip netns exec $name sh -c "$*"\n')
    agent.chmod(0o700)
    half = options.ranks // 2
    environ = {
        **os.environ,
        **AS_ROOT,
        "PRTE_MCA_plm_ssh_agent": str(agent),
        "OMPI_MCA_btl_tcp_if_include": "eth0",
        "TMPDIR": str(folder),
    }
    hosts = ",".join(f"{address}:{half}" for address in ADDRESSES)
    flags = ["-n", str(options.ranks), "--host", hosts, "--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE"]
    return subprocess.run(
        ["ip", "netns", "exec", HOSTS[0], found, *flags, *command], env=environ, check=False
    ).returncode


def main() -> int:
    """Makes the hosts, starts the ranks and prints what rank 0 found."""
    sizes = {"bytes": [3 << 10, 384 << 10, 4 << 20], "link": ["1gbit", "10gbit"]}
    meshes = ["tensor=4", "pipeline=2,tensor=2"]
    parser = parser_of(__doc__, ranks=4, rounds=5, **sizes, meshes=meshes)
    parser.add_argument("--models", nargs="+", choices=("bert", "llama"), help="whole models instead")
    parser.add_argument("--slices", help=argparse.SUPPRESS)
    parser.add_argument("--feeds", help=argparse.SUPPRESS)
    parser.add_argument("--backends", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.result:
        (model_rank if options.slices else rank)(options)
        return 0
    for rate in options.link if options.models else ():
        with tempfile.TemporaryDirectory() as name, two_hosts(rate):
            print(f"one inference, {options.ranks} ranks on two hosts, {rate}/s")
            if models(options, Path(name)):
                return 1
    for rate in () if options.models else options.link:
        with tempfile.TemporaryDirectory() as name, two_hosts(rate):
            rows: list[dict[str, Any]] = []
            for start, backends in (
                (gloo_ranks, ["hierarchical", "gloo"]),
                (mpi_ranks, ["hierarchical", "mpi"]),
            ):
                result = Path(name, "result.json")
                flags = ["--backends", *backends, "--rounds", str(options.rounds), "--result", str(result)]
                command = [sys.executable, __file__, *flags, "--bytes", *map(str, options.bytes)]
                more = (Path(name),) if start is mpi_ranks else ()
                if start(options, command, *more):  # type: ignore[operator]
                    return 1
                if result.exists():
                    rows += json.loads(result.read_text())
                    result.unlink()
            report(rows, rate, options.ranks)
    return 0


def report(rows: list[dict[str, Any]], rate: str, ranks: int) -> None:
    """One line for each size and backend."""
    print(f"float32 all-reduce, {ranks} ranks on two hosts, {rate}/s")
    print(f"{'bytes':>10} {'by':>10} {'ms':>9} {'KB sent':>9} {'packets':>8}")
    for row in sorted(rows, key=lambda row: row["bytes"]):
        print(
            f"{row['bytes']:>10} {row['name']:>10} {row['ms']:>9.3f} {row['sent'] / 1024:>9.1f}"
            f" {row['packets']:>8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
