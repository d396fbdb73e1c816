"""Damaged MindIR files: changed bytes, truncations, and changed fields of the message.

    python -m tests.sharding.importers.mindir_mutations 100000 [SEED]

imports so many of them in processes with limited memory, and names each that is neither converted nor refused
in a sentence, or takes long.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

from sharding.errors import ShardrunError
from sharding.importers import import_model
from sharding.importers.mindir.schema import messages

DATA = Path(__file__).parents[2] / "data" / "mindir"
SEEDS = (
    "mlp",
    "ctrl_flow",
    "dyn_attn",
    "lstm",
    "multi_out",
    "ops_zoo",
    "unet_s",
    "shard_col_allgather/rank_0",
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    5,
    7,
    8,
    20,
    25,
    27,
    30,
    64,
    127,
    255,
    2**31 - 1,
    2**31,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
)
TEXTS = ("", "x", "REF::", "../x", "/etc/passwd", "\x00", "é" * 300, ":model:", "main", "ф", "a" * 5000)
SECONDS = 10.0
BYTES = 4 << 30


def seeds() -> list[bytes]:
    """Files to damage: those of both versions, the smallest first."""
    paths = [path for name in SEEDS for path in DATA.glob(f"{name}/model*.mindir") if "v0" not in path.name]
    with zipfile.ZipFile(DATA / "nets_v3.zip") as nets:
        names = sorted(name for name in nets.namelist() if name.endswith(".mindir"))
        networks = [nets.read(name) for name in names]
    return sorted([*(path.read_bytes() for path in paths), *networks], key=len)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One damaged copy."""
    kind = rng.random()
    if kind < 0.15:
        return data[: rng.randrange(len(data))]
    if kind < 0.5:
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    model = messages()["Model"]()
    model.ParseFromString(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _change(model, rng)
    return model.SerializePartialToString()


def _change(message: Any, rng: random.Random) -> None:
    """Changes one field somewhere inside a message."""
    while True:
        fields = [field for field, _ in message.ListFields()] or list(message.DESCRIPTOR.fields)
        if rng.random() < 0.03:
            fields = list(message.DESCRIPTOR.fields)
        field = rng.choice(fields)
        value = getattr(message, field.name)
        repeated = hasattr(value, "append") or hasattr(value, "add")
        if field.message_type is None:
            return _set(message, field, value, rng, repeated=repeated)
        if repeated:
            if not value or rng.random() < 0.02:
                value.add()
            elif rng.random() < 0.04:
                del value[rng.randrange(len(value))]
                return None
            elif rng.random() < 0.04:
                value.add().CopyFrom(rng.choice(value))
                return None
            message = rng.choice(value)
        else:
            message = value


def _set(message: Any, field: Any, value: Any, rng: random.Random, *, repeated: bool) -> None:
    number = rng.choice(NUMBERS) if rng.random() < 0.8 else rng.randrange(-40, 40)
    kind = field.cpp_type
    new: Any = number
    if kind in {field.CPPTYPE_INT32, field.CPPTYPE_ENUM}:
        new = max(-(2**31), min(number, 2**31 - 1))
    elif kind == field.CPPTYPE_UINT64:
        new = abs(number) % 2**63
    elif kind in {field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE}:
        new = rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf"), 0.5))
    elif kind == field.CPPTYPE_BOOL:
        new = bool(number % 2)
    elif kind == field.CPPTYPE_STRING:
        other = str(value[0]) if repeated and value else str(value)
        new = rng.choice((*TEXTS, other + "x", other[:-1], other[::-1]))
        if field.type == field.TYPE_BYTES:
            new = rng.choice((b"", b"\x00" * 3, b"\xff" * 64, new.encode()))
    if not repeated:
        setattr(message, field.name, new)
    elif value and rng.random() < 0.7:
        value[rng.randrange(len(value))] = new
    elif rng.random() < 0.5:
        value.append(new)
    elif value:
        del value[rng.randrange(len(value))]


def outcome(path: Path) -> str:
    """How the import of a file ends: ``converted``, ``refused``, or what must not be."""
    start = time.monotonic()
    try:
        import_model(path).SerializeToString()
        found = "converted"
    except ShardrunError as error:
        text = str(error)
        found = (
            "refused" if text and "\n" not in text and len(text) < 20_000 else f"bad message: {text[:300]!r}"
        )
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        found = f"crash: {type(error).__name__}: {str(error)[:200]} at {where}"
    took = time.monotonic() - start
    return found if took < SECONDS else f"slow: {took:.1f} s, {found}"


def _work(task: tuple[int, int, str]) -> Counter[str]:
    seed, count, folder = task
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    faulthandler.enable()
    signal.alarm(int(600 + count * SECONDS / 10))
    rng, files = random.Random(seed), seeds()
    found: Counter[str] = Counter()
    path = Path(folder) / f"fuzz_{seed}.mindir"
    for number in range(count):
        data = mutated(rng.choice(files[: 4 + number % len(files)]), rng)
        path.write_bytes(data)
        result = outcome(path)
        found[result] += 1
        if result not in {"converted", "refused"}:
            (Path(folder) / f"bad_{seed}_{number}.mindir").write_bytes(data)
    path.unlink()
    return found


def main(count: int, seed: int) -> int:
    """Imports ``count`` damaged files in two processes; returns how many ended as they must not."""
    folder = tempfile.mkdtemp(prefix="mindir-fuzz-")
    piece = 1000
    tasks = [(seed + n, min(piece, count - n * piece), folder) for n in range(-(-count // piece))]
    total: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for found in pool.imap_unordered(_work, tasks):
            total += found
            print(sum(total.values()), dict(total.most_common(2)), flush=True)
    bad = {name: number for name, number in total.items() if name not in {"converted", "refused"}}
    for name, number in bad.items():
        print(f"{number} x {name}")
    print(f"damaged files are in {folder}" if bad else "all were converted or refused")
    return sum(bad.values())


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1) else 0)
