"""The model zoo: real and random models with example inputs, built once per machine and cached.

    model = models.get("bert_base")
    model.path        # an ONNX file (large ones keep their weights in external data beside it)
    model.feeds       # example inputs, of two different shapes: [{"input_ids": array, ...}, {...}]

The cache is $SHARDRUN_TEST_CACHE, else `shardrun-tests` in the user's cache folder. Graphs that take long to
export are kept (see `tests.kept`).
"""

import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.minilm.weights import weights_folder
from tests import kept

ROOT = Path(__file__).parents[1]
EXPORT = ROOT / "examples/minilm/export.py"
BUILD_SECONDS = 600

Feeds = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Model:
    """A model of the zoo."""

    name: str
    path: Path
    feeds: tuple[Feeds, Feeds]


def cache_folder() -> Path:
    """Where built models (and slices of them) are kept between test runs; created if missing."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "shardrun-tests"
    folder = Path(os.environ.get("SHARDRUN_TEST_CACHE") or default).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _text_feeds(vocabulary: int, *, mask: bool) -> tuple[Feeds, Feeds]:
    random = np.random.default_rng(7)

    def make(batch: int, sequence: int) -> Feeds:
        feeds: Feeds = {"input_ids": random.integers(0, vocabulary, (batch, sequence), dtype=np.int64)}
        if mask:
            lengths = np.linspace(sequence, max(2, sequence // 2), batch).astype(np.int64)
            feeds["attention_mask"] = (np.arange(sequence)[None] < lengths[:, None]).astype(np.int64)
        return feeds

    return make(2, 16), make(1, 9)


def _image_feeds(name: str, *shapes: tuple[int, ...]) -> tuple[Feeds, Feeds]:
    random = np.random.default_rng(8)
    first, second = ({name: random.standard_normal(shape, dtype=np.float32)} for shape in shapes)
    return first, second


_FEEDS: dict[str, Callable[[], tuple[Feeds, Feeds]]] = {
    "minilm": lambda: _text_feeds(30522, mask=True),
    "bert_base": lambda: _text_feeds(30522, mask=True),
    "gpt2": lambda: _text_feeds(50257, mask=False),
    "gpt2_lm": lambda: _text_feeds(50257, mask=False),
    "resnet18": lambda: _image_feeds("image", (2, 3, 64, 64), (1, 3, 96, 64)),
    "mobilenet_v2": lambda: _image_feeds("image", (2, 3, 64, 64), (1, 3, 64, 64)),
    "ppocr_rec": lambda: _image_feeds("x", (2, 3, 48, 160), (1, 3, 48, 96)),
    "mlp": lambda: _image_feeds("x", (4, 48), (1, 48)),
}

NAMES = tuple(_FEEDS)
ARCHIVE = kept.GRAPHS / "models.zip"
KEPT = ("minilm", "bert_base", "gpt2_lm", "resnet18", "mobilenet_v2")


@functools.cache
def get(name: str) -> Model:
    """The model called `name` (one of `NAMES`), built into the cache first if need be (seconds, once)."""
    path = _ppocr_file() if name == "ppocr_rec" else _built(name)
    return Model(name, path, _FEEDS[name]())


def _ppocr_file() -> Path:
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "rapidocr_onnxruntime is not installed; ./run.sh test installs it (pip, --no-deps)"
        )
    return Path(spec.origin).parent / "models" / "ch_PP-OCRv4_rec_infer.onnx"


def recipe(name: str) -> str:
    """Names what the model is made by."""
    more = [EXPORT] if name == "minilm" else []
    return kept.recipe(ROOT / "tests/model_builders.py", *more)


def given(name: str) -> kept.Given:
    """The weights of this model that an installed package has."""
    if name != "minilm":
        return {}
    from safetensors.numpy import load_file

    return load_file(weights_folder() / "model.safetensors")


@functools.cache
def is_kept(name: str) -> bool:
    """Whether the graph of this model need not be exported."""
    return kept.holds(ARCHIVE, name, recipe(name))


@functools.cache
def _folder() -> str:
    """Names this way of building: another exporter or builder makes other files, in another folder."""
    read = [source.read_bytes() for source in (Path(kept.__file__), ARCHIVE) if source.is_file()]
    return hashlib.sha256(f"{recipe('minilm')} {kept.installed()}".encode() + b"".join(read)).hexdigest()[:12]


def _built(name: str) -> Path:
    folder = cache_folder() / _folder() / name
    path = folder / f"{name}.onnx"
    if path.is_file():
        return path
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file():
            # Built beside its final place and renamed whole: an interrupted build never looks like a model.
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{name}.") as scratch:
                _build(name, Path(scratch) / "model" / path.name)
                shutil.rmtree(folder, ignore_errors=True)
                (Path(scratch) / "model").rename(folder)
    return path


def _build(name: str, path: Path) -> None:
    path.parent.mkdir()
    if is_kept(name):
        kept.restore(ARCHIVE, name, path, given(name))
        return
    run_builder(name, path)


def run_builder(name: str, path: Path) -> None:
    """Build the model `name` at `path`, in a process of its own."""
    command = [sys.executable, "-m", "tests.model_builders", name, str(path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode != 0 or not path.is_file():
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
