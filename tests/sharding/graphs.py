"""Small ONNX graphs for tests of slicing, from text: https://onnx.ai/onnx/intro/python.html#text."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from sharding.onnx_files import protobuf

Array = np.ndarray[Any, Any]


def array(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def model(text: str, weights: dict[str, Array], opset: int = 18) -> onnx.ModelProto:
    """The model whose graph is ``text`` with these initializers."""
    more = ', "com.microsoft" : 1' if "com.microsoft." in text else ""
    header = "" if text.lstrip().startswith("<") else f'<ir_version: 9, opset_import: ["" : {opset}{more}]>\n'
    model = onnx.parser.parse_model(header + text)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return model


def save(
    path: Path, text: str, weights: dict[str, Array], *, opset: int = 18, external: bool = False
) -> Path:
    """Saves the same, checked."""
    made = model(text, weights, opset)
    onnx.checker.check_model(made)
    onnx.save(
        made,
        path,
        save_as_external_data=external,
        location=path.name + ".data",
        size_threshold=0,
    )
    return path


def vast(path: Path, rows: int, columns: int) -> Path:
    """Saves a product whose weight lies in the model's own file, of which nearly all is a hole."""
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g (float[n, {rows}] x) => (float[n, {columns}] y) '
        "{ y = MatMul(x, w) }"
    )
    size = 4 * rows * columns
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[rows, columns])
    start = weight.SerializeToString() + protobuf.varint(9 << 3 | 2) + protobuf.varint(size)
    for inner, number in ((made.graph.SerializeToString(), 5), (_without_graph(made), 7)):
        start = inner + protobuf.varint(number << 3 | 2) + protobuf.varint(len(start) + size) + start
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + size)
    return path


def _without_graph(made: onnx.ModelProto) -> bytes:
    rest = onnx.ModelProto()
    rest.CopyFrom(made)
    rest.ClearField("graph")
    return rest.SerializeToString()


def session(model: Path | bytes | onnx.ModelProto, *, optimized: bool = True) -> onnxruntime.InferenceSession:
    """Plain ONNX Runtime for a model: one thread, and nothing is said but errors."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


SMALL_BYTES = 1 << 26


def digest(folder: Path) -> str | None:
    """Of the names and bytes of its files: what was made of them holds as long as it is the same. The times
    of files are too coarse for that. None where they are large: nothing is to be kept of those.

    It is compared with those of a few other folders, for which check sums do, in a fifth of the time."""
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    if sum(path.stat().st_size for path in paths) > SMALL_BYTES:
        return None
    return repr([(path.name, path.stat().st_size, _check_sum(path)) for path in paths])


def _check_sum(path: Path) -> int:
    found, block = 0, bytearray(1 << 18)
    view = memoryview(block)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            found = zlib.crc32(view[:count], found)
    return found


MLP = """
mlp (float[batch, 16] x) => (float[batch, 8] y) {
  a = MatMul(x, w1)
  b = Add(a, b1)
  c = Relu(b)
  d = MatMul(c, w2)
  y = Add(d, b2)
}
"""


def mlp_weights(inner: int = 32) -> dict[str, Array]:
    return {"w1": array(16, inner), "b1": array(inner), "w2": array(inner, 8), "b2": array(8)}


def mlp(path: Path, *, inner: int = 32, external: bool = False) -> Path:
    """Two products with a Relu between: 16 to ``inner`` to 8."""
    return save(path, MLP, mlp_weights(inner), external=external)
