"""Exported graphs as they are kept in `tests/data/graphs`: to export all of them takes four minutes.

What is kept of a model is what the exporter wrote, less what is random in it: large tensors of
floats, and such example inputs, are only described (how many, their mean, spread and range) and drawn anew
from a seed when the model is built. Graph, names, shapes, small tensors, tables of whole numbers and token
numbers stay exactly. Weights that an installed package has are named, and read from there.
`scripts/keep_graphs.py` makes the archive; another builder or exporter is another `recipe`, for which nothing
is kept, so that `zoo` exports.
"""

import functools
import hashlib
import json
import lzma
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tests.architectures.exporting import Feeds, save_feeds

if TYPE_CHECKING:
    import onnx

GRAPHS = Path(__file__).parent / "data" / "graphs"
"""The archives, one for each zoo."""
PACKAGES = ("torch", "transformers", "onnxscript")
"""Their versions decide what is exported."""
VERSIONS = "versions.json"
EXTERNAL_BYTES = 1024
"""Tensors from this size on lie in the file beside the model, as the exporter does it."""
RANDOM_BYTES = 256
RANDOM_SHARE = 0.85
"""A tensor of floats with so many bytes, of which a compressor keeps this share, is drawn anew."""

DRAWN = 1_048_573
"""Values drawn for one tensor; a larger one repeats them. A prime: no two rows of a matrix are alike."""

Described = dict[str, Any]
Given = Mapping[str, NDArray[Any]]
"""Weights by name, as a package has them."""
Kept = tuple[bytes, Described]
"""A graph, and the description of what was taken out of it and of its example inputs."""


def recipe(*sources: Path) -> str:
    """Names the builders' text that a graph was made by."""
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


@functools.cache
def installed() -> dict[str, str]:
    """The versions of what exports, those that are there; to find them takes longer than to use them."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package).partition("+")[0]
        except PackageNotFoundError:
            continue
    return found


def versions(archive: Path) -> dict[str, str]:
    """The versions that exported what is in the archive; none where there is no archive."""
    if not archive.is_file():
        return {}
    with zipfile.ZipFile(archive) as file:
        found: dict[str, str] = json.loads(file.read(VERSIONS))
    return found


def names(archive: Path) -> dict[str, str]:
    """The models in the archive, and the recipe of each."""
    if not archive.is_file():
        return {}
    with zipfile.ZipFile(archive) as file:
        stems = [item.removesuffix(".onnx") for item in file.namelist() if item.endswith(".onnx")]
    return {stem.partition("-")[0]: stem.partition("-")[2] for stem in stems}


def holds(archive: Path, name: str, made_by: str) -> bool:
    """Whether this is kept as the builders and exporters that are here now make it."""
    return names(archive).get(name) == made_by and versions(archive) == installed()


def is_random(array: NDArray[Any]) -> bool:
    """Whether these are floats of which a compressor finds nothing to say in fewer bytes."""
    if array.dtype != np.float32 or array.nbytes < RANDOM_BYTES:
        return False
    part = array.reshape(-1)[-4096:].tobytes()  # an embedding may begin with zeros, for padding
    return len(lzma.compress(part, preset=1)) >= RANDOM_SHARE * len(part)


def described(array: NDArray[Any]) -> Described:
    """What `drawn` makes another of the same kind of."""
    return {
        "shape": list(array.shape),
        "mean": float(f"{array.mean(dtype=np.float64):.6g}"),
        "spread": float(f"{array.std(dtype=np.float64):.6g}"),
        "range": [float(array.min()), float(array.max())],
    }


def drawn(description: Described, seed: Sequence[int]) -> NDArray[np.float32]:
    """Random values of that mean and spread, within that range (a variance stays positive)."""
    shape = description["shape"]
    values = np.random.default_rng(seed).standard_normal(min(math.prod(shape), DRAWN), dtype=np.float32)
    values *= np.float32(description["spread"])
    values += np.float32(description["mean"])
    return np.resize(np.clip(values, *description["range"], out=values), shape)


def strip(path: Path, given: Given | None = None) -> Kept:
    """The model at `path` without its random values, what is `given` and the exporter's remarks; and what was
    taken out."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    weights = {}
    known = {_digest(array): name for name, array in (given or {}).items() if array.nbytes >= RANDOM_BYTES}
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        turned = array.ndim == 2 and _digest(array) not in known
        if name := known.get(_digest(array.T if turned else array)):
            weights[tensor.name] = {"given": name, "turned": turned}
            _clear(tensor)
        elif is_random(array):
            weights[tensor.name] = described(array)
            _clear(tensor)
    # Stack traces, with the paths of who exported.
    for item in _remarked(model.graph):
        del item.metadata_props[:]
        if hasattr(item, "doc_string"):
            item.doc_string = ""
    feeds = [dict(np.load(file)) for file in sorted(path.parent.glob("feeds_*.npz"))]
    inputs = [{name: _feed(array) for name, array in arrays.items()} for arrays in feeds]
    external = path.with_name(f"{path.name}.data").exists()
    return model.SerializeToString(deterministic=True), {
        "weights": weights,
        "feeds": inputs,
        "external": external,
    }


def _digest(array: NDArray[Any]) -> tuple[Any, ...]:
    content = np.ascontiguousarray(array)
    return array.dtype.str, array.shape, hashlib.sha256(content.reshape(-1).view(np.uint8).data).digest()


def _clear(tensor: "onnx.TensorProto") -> None:
    for field in ("raw_data", "float_data", "external_data", "data_location"):
        tensor.ClearField(field)  # type: ignore[arg-type]  # one of its literals


def _remarked(graph: "onnx.GraphProto") -> Iterator[Any]:
    yield graph
    yield from (*graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output)
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _remarked(body)


def _feed(array: NDArray[Any]) -> Described:
    if is_random(array):
        return described(array)
    return {"dtype": array.dtype.name, "values": array.tolist(), "shape": list(array.shape)}


def keep(archive: Path, graphs: Iterable[tuple[str, str, Kept]]) -> None:
    """Write the archive from (name, recipe, stripped model); the same models give the same bytes."""
    entries = {VERSIONS: json.dumps(installed(), sort_keys=True).encode()}
    for name, made_by, (graph, rest) in graphs:
        entries[f"{name}-{made_by}.onnx"] = graph
        entries[f"{name}-{made_by}.json"] = json.dumps(rest, sort_keys=True).encode()
    archive.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in entries.items():
            entry = zipfile.ZipInfo(name)  # of no time
            entry.compress_type = zipfile.ZIP_LZMA
            file.writestr(entry, content)


def same(left: Kept, right: Kept) -> bool:
    """Whether two exports are one: the same graph, and descriptions that agree in three digits."""

    def alike(a: Any, b: Any) -> bool:
        if isinstance(a, float) and isinstance(b, float):
            return math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-6)
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(map(alike, a, b))
        return bool(a == b)

    return left[0] == right[0] and alike(left[1], right[1])


def read(archive: Path, name: str) -> Kept:
    """What is kept of the model `name`."""
    stem = f"{name}-{names(archive)[name]}"
    with zipfile.ZipFile(archive) as file:
        return file.read(f"{stem}.onnx"), json.loads(file.read(f"{stem}.json"))


def restore(archive: Path, name: str, path: Path, given: Given | None = None) -> None:
    """Write the kept model `name` to `path`, its weights and its example inputs beside it."""
    import onnx
    from onnx import numpy_helper

    graph, rest = read(archive, name)
    model = onnx.load_model_from_string(graph)
    for number, tensor in enumerate(model.graph.initializer):
        if description := rest["weights"].get(tensor.name):
            if "given" in description:
                array = (given or {})[description["given"]]
                array = np.ascontiguousarray(array.T if description["turned"] else array)
            else:
                array = drawn(description, [0, number])
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    feeds: list[Feeds] = [
        {
            key: np.asarray(item["values"], item["dtype"]).reshape(item["shape"])
            if "values" in item
            else drawn(item, [1 + number, place])
            for place, (key, item) in enumerate(arrays.items())
        }
        for number, arrays in enumerate(rest["feeds"])
    ]
    onnx.save(
        model,
        path,
        save_as_external_data=rest["external"],
        location=f"{path.name}.data",
        size_threshold=EXTERNAL_BYTES,
    )
    save_feeds(path, *feeds)
