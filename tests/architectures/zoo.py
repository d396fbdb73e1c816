"""The architectures by name, built once per machine and cached: real models' structure with random weights.

    zoo.build(["bert", "llama_4bit"])        # in one process; nothing where they are in the cache
    model = zoo.get("bert")
    model.path, model.feeds                  # an ONNX file and two sets of example inputs of other shapes

The cache is that of `tests.models`. Exported graphs are kept in `tests/data` (see `kept`).
"""

import fcntl
import functools
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from tests import kept
from tests.architectures import decoders, encoders, language, variants
from tests.architectures.build import EXPORTED, MODULES
from tests.models import BUILD_SECONDS, ROOT, Model, cache_folder

BASES = variants.BASES
NAMES = (*EXPORTED, *BASES)

ARCHIVE = kept.GRAPHS / "architectures.zip"

TRANSFORMER_LAYERS = language.LAYERS
LAYERS = {
    "albert": encoders.SHARED_LAYERS,
    "swin": sum(encoders.SWIN_DEPTHS),
    "clip": 2 * language.LAYERS,
    "t5_merged": 2 * language.LAYERS,
    "deepseek_v3": decoders.FEW_LAYERS,
    "gpt_oss": decoders.FEW_LAYERS,
}
"""Of those that do not have `TRANSFORMER_LAYERS`; both towers of CLIP together, both branches of a merged
decoder."""
OUTSIDE = {"deepseek_v3": 2, "gpt_oss": 2}
"""Collectives of embedding and head, of models with so few layers that they would count as a layer's."""
LAYER_COLLECTIVES = 2
"""The goal for each transformer layer: one sum after attention and one after the feed-forward."""
WEIGHT_SLACK = 0.03
"""What a rank may hold of the weight bytes over its equal part."""
FLOAT_TOLERANCE = 1e-4
INT8_TOLERANCE = 0.1
"""A value beside a rounding boundary moves by a whole step where float sums are added in another order: plain
ONNX Runtime with and without its own optimisations differs from itself as much (`measure.own_spread`)."""


def layers(name: str) -> int | None:
    """Transformer layers, of an architecture that has them."""
    if name.startswith(("resnet", "mobilenet", "unet", "lstm")):
        return None
    return LAYERS.get(name, TRANSFORMER_LAYERS)


def tolerance(name: str) -> float:
    """The largest relative error that is accepted of a slicing."""
    return INT8_TOLERANCE if "int8" in name else FLOAT_TOLERANCE


def get(name: str) -> Model:
    """The architecture called `name` (one of `NAMES`), built into the cache first if need be."""
    build([name])
    path = _path(name)
    first, second = (dict(np.load(path.parent / f"feeds_{number}.npz")) for number in range(2))
    return Model(name, path, (first, second))


def build(names: Iterable[str]) -> None:
    """Build what the cache lacks: from kept graphs, and the rest in one process: torch is slow to import."""
    wanted = list(dict.fromkeys(item for name in names for item in (BASES.get(name, name), name)))
    if all(_path(name).is_file() for name in wanted):
        return
    folder = cache_folder() / "architectures"
    folder.mkdir(exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [name for name in wanted if not _path(name).is_file()]
        # Built beside its final place and renamed whole: an interrupted build never looks like a model.
        with tempfile.TemporaryDirectory(dir=folder, prefix="build.") as scratch:
            built = {name: Path(scratch) / name / f"{name}.onnx" for name in missing}
            for name, path in built.items():
                path.parent.mkdir()
                if is_kept(name):
                    kept.restore(ARCHIVE, name, path)
            run_builders({name: built.get(name, _path(name)) for name in wanted})
            for name, path in built.items():
                path.parent.rename(_path(name).parent)


def run_builders(targets: Mapping[str, Path]) -> None:
    """Build what is not there yet, in a process of its own."""
    if all(path.is_file() for path in targets.values()):
        return
    command = [sys.executable, "-m", "tests.architectures.build"]
    command += [f"{name}={path}" for name, path in targets.items()]
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * BUILD_SECONDS,
        check=False,
    )
    if done.returncode != 0 or not all(path.is_file() for path in targets.values()):
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )


def recipe(name: str) -> str:
    """Names what an exported architecture is made by: other builders make another."""
    module = next(module for module in MODULES if name in module.BUILDERS)
    return kept.recipe(Path(__file__).with_name("exporting.py"), Path(str(module.__file__)))


@functools.cache
def is_kept(name: str) -> bool:
    """Whether the graph of this architecture need not be exported."""
    return name in EXPORTED and kept.holds(ARCHIVE, name, recipe(name))


@functools.cache
def _path(name: str) -> Path:
    """Where a model is kept; the folder is another one for other builders, exporters or quantisers."""
    base = BASES.get(name, name)
    digest = hashlib.sha256(f"{recipe(base)} {kept.installed()}".encode())
    if is_kept(base):
        digest.update(Path(kept.__file__).read_bytes() + ARCHIVE.read_bytes())
    if name in BASES:
        digest.update(Path(variants.__file__).read_bytes())
    digest.update(_onnxruntime().encode())
    return cache_folder() / "architectures" / f"{name}-{digest.hexdigest()[:12]}" / f"{name}.onnx"


@functools.cache
def _onnxruntime() -> str:
    """The version of the build of ONNX Runtime that is here, of the two that there are."""
    found = []
    for package in ("onnxruntime", "onnxruntime-gpu"):
        try:
            found.append(version(package))
        except PackageNotFoundError:
            continue
    return "".join(found)
