"""Files that are cut short while they are mapped end in one sentence, and nothing made of them stays."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ranks
from ranks.weights.prepared.store import Store
from sharding.errors import ModelError
from sharding.slices.cut_short import WHOLE_FILES
from sharding.slices.folder import replace_files
from tests.sharding import graphs

SENTENCE = "could not be read to its end: it was cut short while it was read"


def _in_threads(data: Any) -> object:
    with ThreadPoolExecutor(4, initializer=WHOLE_FILES.joining()) as pool:
        return [pool.submit(data[start::8].sum) for start in range(8)]


READERS: dict[str, Callable[[Any], object]] = {
    "sum": lambda data: data.sum(),
    "hash": lambda data: hashlib.sha256(data).hexdigest(),
    "bytes": lambda data: bytes(data[5:]),
    "threads": _in_threads,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"\1" * (1 << 20))
    return path


@pytest.mark.parametrize("left", [0, 4096, 5000])
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_one_sentence_names_the_file(file: Path, reader: Callable[[Any], object], left: int) -> None:
    with pytest.raises(ModelError, match=f"{file} {SENTENCE}"), WHOLE_FILES:
        data = np.memmap(file, np.uint8, "r")
        os.truncate(file, left)
        reader(data)
    with WHOLE_FILES:  # what was cut short before is no reason to doubt others
        assert np.memmap(Path(__file__), np.uint8, "r").any()


def test_an_error_that_comes_of_it_is_not_the_cause(file: Path) -> None:
    with pytest.raises(ModelError, match=SENTENCE) as found, WHOLE_FILES:
        data = np.memmap(file, np.uint8, "r")
        os.truncate(file, 0)
        raise ValueError(f"it begins with {data[0]}")
    assert str(found.value.__cause__) == "it begins with 0"


def test_nothing_made_of_it_takes_its_place(file: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.write_bytes(b"before")
    with pytest.raises(ModelError, match=SENTENCE), WHOLE_FILES:
        data = np.memmap(file, np.uint8, "r")
        os.truncate(file, 0)
        replace_files([(output, lambda target: target.write(bytes(data)) and None)])
    assert output.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 2


def test_weights_kept_for_many_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut short between the hash of a model and the reading of its weights."""
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    text = "g (float[n, 512] x) => (float[n, 512] y) { y = MatMul(x, w) }"
    path = graphs.save(tmp_path / "model.onnx", text, {"w": graphs.array(512, 512)}, external=True)
    (data,) = tmp_path.glob("model.onnx?*")
    demand = Store._demand_space

    def cut(store: Store, model: bytes | Path) -> None:
        demand(store, model)
        mapped = np.memmap(data, np.uint8, "r")
        os.truncate(data, 4096)
        assert not mapped[-1]

    monkeypatch.setattr(Store, "_demand_space", cut)
    with pytest.raises(RuntimeError, match=SENTENCE):
        ranks.share_weights(str(path))
    assert not list((tmp_path / "cache" / "weights").glob("*.onnx"))


def test_threads_that_read_other_files_are_not_blamed(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"\1" * (1 << 16))
    with ThreadPoolExecutor(1) as pool, WHOLE_FILES:
        entered = pool.submit(WHOLE_FILES.__enter__)
        entered.result()
        data = pool.submit(np.memmap, file, np.uint8, "r").result()
        os.truncate(file, 0)
        assert pool.submit(data.sum).result() == 0
        WHOLE_FILES.check()
        with pytest.raises(ModelError, match=f"{file} {SENTENCE}"):
            pool.submit(WHOLE_FILES.__exit__, None, None, None).result()
        assert np.memmap(other, np.uint8, "r").all()
    WHOLE_FILES.check()
    with WHOLE_FILES:
        WHOLE_FILES.check()


def test_a_thread_that_began_later_keeps_its_reading_when_this_one_ends(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"\1" * (1 << 16))
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ModelError, match=f"{file} {SENTENCE}"), WHOLE_FILES:
            pool.submit(WHOLE_FILES.__enter__).result()
            data = np.memmap(file, np.uint8, "r")
            os.truncate(file, 0)
            assert data.sum() == 0
        data = pool.submit(np.memmap, other, np.uint8, "r").result()
        os.truncate(other, 0)
        assert pool.submit(data.sum).result() == 0
        with pytest.raises(ModelError, match=f"{other} {SENTENCE}"):
            pool.submit(WHOLE_FILES.__exit__, None, None, None).result()


@pytest.mark.parametrize("inside", [True, False], ids=["while files are read", "else"])
@pytest.mark.parametrize("cause", ["sent", "memory", "thread", "descriptors"])
def test_other_bus_errors_end_the_process(inside: bool, cause: str, tmp_path: Path) -> None:
    """Those that a process sends, those of memory that others see what is written into, and those of threads
    that answer from a file which is cut short while this one reads another; and where nothing can be done."""
    cut = "m = np.memmap('f', np.uint8, 'r'); os.truncate('f', 0); "
    causes = {
        "sent": "os.kill(os.getpid(), signal.SIGBUS)",
        "memory": "m = mmap.mmap(f.fileno(), 1 << 16); os.truncate('f', 0); m[5000] = 1",
        "thread": cut + "threading.Thread(target=lambda: m.sum()).start()",
        "descriptors": cut + "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); m.sum()",
    }
    lines = ["with WHOLE_FILES:" if inside else "if True:", f"  {causes[cause]}; time.sleep(60)"]
    code = "import mmap, os, resource, signal, threading, time\nimport numpy as np\n"
    code += "from sharding.slices.cut_short import WHOLE_FILES\n"
    code += "f = open('f', 'w+b'); f.truncate(1 << 16)\n" + "\n".join(lines)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == -signal.SIGBUS
