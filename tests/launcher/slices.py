"""Hand-made slice folders: y = relu(x w1) w2 and, with an index, + table[index], split over the ranks."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.sharding import graphs

HIDDEN = 12  # divides by 2, 3 and 4
ROWS = 6  # of the table that `index` selects from


def _model(w1: np.ndarray[Any, Any], w2: np.ndarray[Any, Any], sliced: bool) -> onnx.ModelProto:
    table = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
    text = f"""<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
    example (float[batch, 4] x, int64[batch] index) => (float[batch, 3] y) {{
      h = MatMul(x, w1)
      r = Relu(h)
      p = MatMul(r, w2)
      s = {"com.microsoft.AllReduce" if sliced else "Identity"}(p)
      t = Gather(table, index)
      y = Add(s, t)
    }}"""
    return graphs.model(text, {"w1": w1, "w2": w2, "table": table})


def _entry(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"file": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _tensor(name: str, dtype: str, shape: list[Any]) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape}


def make_slices(folder: Path, ranks: int = 2) -> Path:
    """A slice folder for ``ranks`` ranks, and beside the shards ``whole.onnx``, the model they came from."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    w1 = rng.standard_normal((4, HIDDEN)).astype(np.float32)
    w2 = rng.standard_normal((HIDDEN, 3)).astype(np.float32)
    onnx.save(_model(w1, w2, False), folder / "whole.onnx")
    entries = []
    for rank, (columns, rows) in enumerate(zip(np.split(w1, ranks, 1), np.split(w2, ranks, 0), strict=True)):
        path = folder / f"rank_{rank}.onnx"
        onnx.save(_model(np.ascontiguousarray(columns), rows, True), path)
        weight_bytes = columns.nbytes + rows.nbytes
        entries.append(
            {"rank": rank, "model": path.name, "weight_bytes": weight_bytes, "files": [_entry(path)]}
        )
    manifest = {
        "format": "shardrun-slices",
        "version": 2,
        "created_by": "shardrun",
        "source": _entry(folder / "whole.onnx"),
        "world_size": ranks,
        "strategy": "tensor",
        "mesh": {"data": 1, "pipeline": 1, "tensor": ranks},
        "micro_batches": 1,
        "batch": {"inputs": {}, "outputs": {}},
        "ranks": entries,
        "weights": {
            "w1": {
                "placement": "split:1",
                "dtype": "float32",
                "shape": [4, HIDDEN],
                "bytes": w1.nbytes,
                "stages": [0],
            },
            "w2": {
                "placement": "split:0",
                "dtype": "float32",
                "shape": [HIDDEN, 3],
                "bytes": w2.nbytes,
                "stages": [0],
            },
        },
        "collectives": [
            {"op": "AllReduce", "tensor": "p", "dtype": "float32", "shape": ["batch", 3], "stage": 0}
        ],
        "inputs": [_tensor("x", "float32", ["batch", 4]), _tensor("index", "int64", ["batch"])],
        "outputs": [_tensor("y", "float32", ["batch", 3])],
        "whole": {},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def feeds(batch: int = 5) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs for these models."""
    rng = np.random.default_rng(1)
    return {
        "x": rng.standard_normal((batch, 4)).astype(np.float32),
        "index": rng.integers(0, ROWS, batch),
    }
