"""Weights as they lie in a model's message."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np
import onnx
import pytest

from ranks.common.descriptors import close_all
from ranks.common.tensors import element_dtype
from ranks.errors import ModelError
from ranks.weights.updated.bound import BoundWeights
from ranks.weights.updated.memory import Published
from ranks.weights.updated.values import of_file

if TYPE_CHECKING:
    from ranks.weights.updated.variable import VariableWeights

FILE = Path("m.onnx")
FLOAT, HALF, WIDE = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"raw_data": bytes(12)}, "of m.onnx has 12 bytes instead of 16."),
        ({"raw_data": bytes(17)}, "of m.onnx has 17 bytes instead of 16."),
        (
            {"float_data": [1.0, 2.0, 3.0]},
            "of m.onnx is damaged: cannot reshape array of size 3 into shape (2,2).",
        ),
    ],
)
def test_values_that_are_not_whole(data: dict[str, object], said: str) -> None:
    tensor = onnx.TensorProto(name="w", dims=[2, 2], data_type=FLOAT, **data)
    with pytest.raises(ModelError, match=f"^The weight 'w' {re.escape(said)}$"):
        of_file(tensor, FILE)


@pytest.mark.parametrize(
    ("kind", "dtype"), [(FLOAT, np.float32), (HALF, np.float16), (WIDE, ml_dtypes.bfloat16)]
)
@pytest.mark.parametrize("raw", [False, True])
def test_values_in_the_message(kind: int, dtype: type, raw: bool) -> None:
    wanted = np.array([[1.5, -2.0, 0.25]], dtype)
    tensor = onnx.helper.make_tensor(
        "w", kind, [1, 3], wanted.tobytes() if raw else wanted.ravel().tolist(), raw
    )
    found = of_file(tensor, FILE)
    assert found.dtype == wanted.dtype and found.tolist() == wanted.tolist()


def test_another_shape_ends_what_is_known_of_shapes() -> None:
    """As of what a model computes of a weight alone: the places, say, of numbers that are not 0."""

    def version(*shape: int) -> Any:
        return SimpleNamespace(arrays={"w": np.zeros((2, 2)), "places": np.zeros(shape)}, feeds={})

    versions = iter([version(2, 1), first := version(2, 1), first, version(2, 3), version(2, 3)])
    bound = BoundWeights(cast("VariableWeights", SimpleNamespace(snapshot=lambda: next(versions))))
    told = [(bound.renew(), bound.reshaped) for _ in range(4)]
    assert told == [(True, False), (False, False), (True, True), (True, False)]


def test_published_values_can_be_changed_by_nobody() -> None:
    """Nor can their files be made shorter, which would end who has mapped them."""
    published = Published(1)
    wanted = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([7], np.int8)}
    published.publish(2, published.place(wanted))
    told, files = published.describe()
    assert told["version"] == 2 and len(files) == 2
    try:
        for file in files:
            size = os.fstat(file).st_size
            for change in (
                lambda f: os.pwrite(f, b"x", 0),
                lambda f: os.ftruncate(f, 0),
                lambda f: mmap.mmap(f, 1),
            ):
                with pytest.raises(OSError, match="not permitted"):
                    change(file)
            with pytest.raises(OSError, match="not permitted"):
                os.ftruncate(file, 2 * size)
            with pytest.raises(OSError, match="not permitted"):
                fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        values = {name: place for name, *place in cast("list[Any]", told["values"])}
        for name, array in wanted.items():
            element, shape, _, offset = values[name]
            data = os.pread(files[1], array.nbytes, offset)
            assert np.frombuffer(data, element_dtype(element)).reshape(shape).tolist() == array.tolist()
    finally:
        close_all(files)
