"""Primitives of MindIR where one number decides: what numpy computes, with settings that the file gives and
without."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.importers import import_model
from sharding.importers.mindir.primitives.base import Value
from sharding.importers.mindir.primitives.operands import Builder
from sharding.importers.mindir.primitives.steps import part
from tests.sharding import graphs
from tests.sharding.importers.mindir_files import File

Array = np.ndarray[Any, Any]
X = np.float32([[1, 2, 4], [3, 0.5, -1]])
ENDLESS = np.float32([1, np.inf, np.nan, 0, -3])
DIVISORS = np.float32([2, 0, 0, 0, 4])
REAL, IMAGINARY = np.float32([[1, 2, 4], [3, 0.5, -1]]), np.float32([[0, 1, 5], [2, 2, 0]])


def run(folder: Path, kind: str, *operands: Any, parts: bool = False, **settings: Any) -> Any:
    """What a primitive gives of inputs (arrays) and numbers that the file holds; ``parts``: the first two are
    the parts of one operand of complex numbers, and the answer is of such."""
    given = [item for item in operands if isinstance(item, np.ndarray)]
    file = File()
    graph = file.graph("main", *((f"x{i}", item.dtype.name, item.shape) for i, item in enumerate(given)))
    names = iter([graph[f"x{i}"] for i in range(len(given))])
    taken = [next(names) if isinstance(item, np.ndarray) else graph.const(item) for item in operands]
    if parts:
        taken[:2] = [graph.prim("Complex", *taken[:2])]
    found = graph.prim(kind, *taken, **settings)
    graph.gives(graph.prim("ViewAsReal", found) if parts else found)
    session = graphs.session(import_model(file.save(folder / "number.mindir")))
    (answer,) = session.run(None, {f"x{i}": item for i, item in enumerate(given)})
    return np.asarray(answer)


CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], Any]] = {
    "0 times anything": ("MulNoNan", (ENDLESS, DIVISORS), {}, [2, 0, 0, 0, -12]),
    "0 divided by anything": ("Xdivy", (DIVISORS[1:], ENDLESS[1:]), {}, [0, 0, 0, 4 / -3]),
    "anything divided by 0": ("DivNoNan", (ENDLESS, DIVISORS), {}, [0.5, 0, 0, 0, -0.75]),
    "0 times any logarithm": ("Xlogy", (DIVISORS, ENDLESS[[0, 2, 3, 4, 1]]), {}, [0, 0, 0, 0, np.inf]),
    "a running product": ("CumProd", (X, 1), {}, np.cumprod(X, 1)),
    "before each": (
        "CumProd",
        (X, 1),
        {"exclusive": True},
        [[1, 1, 2], [1, 3, 1.5]],
    ),
    "from the end": ("CumProd", (X, 1), {"reverse": True}, [[8, 8, 4], [-1.5, -0.5, -1]]),
    "behind each": ("CumProd", (X, 1), {"exclusive": True, "reverse": True}, [[8, 4, 1], [-0.5, -1, 1]]),
    "cosines": (
        "Acosh",
        (np.array([0.5, 1, 1.5, 9e9, 2e10, 1e300]),),
        {},
        [np.nan, *map(math.acosh, [1, 1.5, 9e9, 2e10, 1e300])],
    ),
    **{
        f"{kind} {value}": (kind, (X, X + 5, X - 9, value), {}, wanted(X, X + 5, X - 9, value))
        for kind, wanted in (
            ("Addcmul", lambda x, y, z, value: x + value * y * z),
            ("Addcdiv", lambda x, y, z, value: x + value * y / z),
        )
        for value in (0, 1, 2, 3)
    },
    "samples in the middle": (
        "ROIAlign",
        (
            np.broadcast_to(np.arange(8, dtype=np.float32), (1, 1, 8, 8)).copy(),
            np.float32([[0, 1, 1, 4, 4]]),
        ),
        {"pooled_height": 1, "pooled_width": 2, "spatial_scale": 1.0, "sample_num": 1},
        [[[[2, 4]]]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_answers(name: str, tmp_path: Path) -> None:
    kind, operands, settings, wanted = CASES[name]
    np.testing.assert_allclose(run(tmp_path, kind, *operands, **settings), wanted, rtol=1e-6)


INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_whole_numbers_of_each_type_from_0_on(dtype: str, tmp_path: Path) -> None:
    limits = np.iinfo(dtype)
    x = np.array([limits.min, limits.max, limits.max - 1, 0, 7, min(2**31 + 5, limits.max), 5], dtype)
    other = np.array([3, 0, limits.max, limits.min, 7, 3, limits.max], dtype)
    np.testing.assert_array_equal(run(tmp_path, "ReLU", x), np.maximum(x, 0))
    for kind, wanted in (("Maximum", np.maximum), ("Minimum", np.minimum)):
        np.testing.assert_array_equal(run(tmp_path, kind, x, other), wanted(x, other))


@pytest.mark.parametrize(
    ("dtype", "low", "high", "wanted"),
    [  # MindSpore's own answers
        ("uint8", 0, 300, [44, 44, 44, 26]),
        ("uint8", -10, 60, [60, 60, 60, 60]),
        ("int8", 0, 300, [44, 44, 44, 26]),
        ("uint32", -10, 60, [60, 60, 60, 60]),
        ("int32", 0, 300, [85, 63, 51, 26]),
        ("uint8", 10.5, 60.5, [60.5, 60.5, 51, 26]),
    ],
)
def test_bounds_that_a_type_does_not_hold(
    dtype: str, low: float, high: float, wanted: list[float], tmp_path: Path
) -> None:
    found = run(tmp_path, "ClampScalar", np.array([85, 63, 51, 26], dtype), low, high)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("kind", "wanted"), [("FFT", np.fft.fft), ("IFFT", np.fft.ifft)], ids=lambda item: str(item)[:4]
)
def test_the_last_axis_is_transformed(kind: str, wanted: Any, tmp_path: Path) -> None:
    """Where the file names none."""
    found = run(tmp_path, kind, REAL, IMAGINARY, parts=True)
    np.testing.assert_allclose(
        found[..., 0] + 1j * found[..., 1], wanted(REAL + 1j * IMAGINARY), rtol=1e-5, atol=1e-5
    )


SCALARS: dict[str, Callable[[Any, Any], Any]] = {
    "ScalarNe": operator.ne,
    "ScalarEq": operator.eq,
    "ScalarLt": operator.lt,
    "ScalarLe": operator.le,
    "ScalarGt": operator.gt,
    "ScalarGe": operator.ge,
    "ScalarAdd": operator.add,
    "ScalarSub": operator.sub,
    "ScalarMul": operator.mul,
    "ScalarFloorDiv": operator.floordiv,
    "ScalarMod": operator.mod,
    "ScalarMax": max,
    "ScalarMin": min,
}


@pytest.mark.parametrize("kind", SCALARS)
def test_numbers_known_before_a_run_and_in_it(kind: str, tmp_path: Path) -> None:
    for x, y in ((7, 3), (-7, 3), (3, 3), (-6, -4)):
        wanted = SCALARS[kind](x, y)
        for operands in ((x, y), (np.array(x), y), (x, np.array(y)), (np.array(x), np.array(y))):
            found = run(tmp_path, kind, *operands)
            assert found.shape == () and found == wanted, (operands, found)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((0, -1), (0, 0)),
        ((-1, 0), (0, 0)),
        ((0, 2, -1), (0, 2, 0)),
        ((2, -1), (2, 0)),
        ((5, 0, 7), (5, 0, 7)),
    ],
)
def test_what_is_left_of_no_rows(shape: tuple[int, ...], wanted: tuple[int, ...], tmp_path: Path) -> None:
    """As MindSpore has it."""
    found = run(tmp_path, "Reshape", np.zeros((0, 4), np.float32), shape)
    assert found.shape == wanted


def test_a_range_of_vectors_of_one_number(tmp_path: Path) -> None:
    found = run(tmp_path, "Arange", np.array([2]), np.array([9]), np.array([3]))
    np.testing.assert_array_equal(found, [2, 5, 8])


@pytest.mark.parametrize("kinds", [(17, 9, 17), (17, 17, 9), (9, 17, 17), (17, 17, 17)])
def test_places_of_each_axis(kinds: tuple[int, ...], tmp_path: Path) -> None:
    """An ellipsis (9) among tensors (17): what it stands for comes behind their vectors, of which each stands
    for the axis of its place."""
    own = [np.array([kind * 10 + place]) for place, kind in enumerate(kinds) if kind == 17]
    other = [np.array([90 + place]) for place, kind in enumerate(kinds) if kind == 9]
    found = run(
        tmp_path, "RemakeTupleIndex", np.zeros((4, 4, 4), np.float32), *own, *other, tuple_index_types=kinds
    )
    np.testing.assert_array_equal(found, [[kind * 10 + place for place, kind in enumerate(kinds)]])


@pytest.mark.parametrize(
    ("mode", "wanted", "pads"),
    [
        ("valid", (9, 9), (0, 0, 0, 0)),
        ("valid", (10, 9), (0, 0, 0, 0)),
        ("same", (8, 7), (1, 1, 0, 1)),
        ("pad", (8, 7), (1, 1, 1, 1)),
    ],
)
def test_a_transposed_convolution_is_as_long_as_it_was(
    mode: str, wanted: tuple[int, int], pads: tuple[int, ...], tmp_path: Path
) -> None:
    """By a stride of 2 two lengths become one: what is missing comes at the end. Torch answers."""
    torch = pytest.importorskip("torch", reason="torch, which answers, is missing")
    drawn = np.random.default_rng(0)
    x, w = (drawn.standard_normal(shape, np.float32) for shape in ((1, 2, 4, 4), (2, 3, 3, 3)))
    padding = pads if mode == "pad" else (0,) * 4
    settings: dict[str, Any] = {
        "stride": (2, 2),
        "dilation": (1, 1),
        "group": 1,
        "mode": 1,
        "kernel_size": (3, 3),
    }
    settings |= {"pad_mode": mode, "pad": padding, "pad_list": padding, "format": "NCHW"}
    found = run(tmp_path, "Conv2DBackpropInput", x, w, (1, 3, *wanted), **settings)
    given = torch.zeros((1, 3, *wanted), requires_grad=True)
    wide = torch.nn.functional.pad(given, pads)  # of the last axis first
    torch.nn.functional.conv2d(wide, torch.from_numpy(w), stride=2).backward(torch.from_numpy(x))
    np.testing.assert_allclose(found, given.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axes", [2, 3])
def test_the_largest_of_what_is_no_number(axes: int, tmp_path: Path) -> None:
    """Of three axes it is the window's answer, of two it is none."""
    x = np.arange(3.0**axes, dtype=np.float32).reshape(1, 1, *[3] * axes)
    x[(..., *[1] * axes)] = np.nan
    settings: dict[str, Any] = {"ksize": (2,) * axes, "output_shape": (1,) * axes}
    settings["format"] = "NCHW" if axes == 2 else "NCDHW"
    kind = "FractionalMaxPoolWithFixedKsize" if axes == 2 else "FractionalMaxPool3DWithFixedKsize"
    samples = np.zeros((1, 1, axes), np.float32)
    file = File()
    graph = file.graph("main", ("x0", "float32", x.shape), ("x1", "float32", samples.shape))
    shape = ("float32", (1, 1, *[1] * axes))
    both = graph.prim(kind, graph["x0"], graph["x1"], types=(shape, ("int64", shape[1])), **settings)
    graph.gives(graph.prim("TupleGetItem", both, graph.const(0), types=(shape,)))
    session = graphs.session(import_model(file.save(tmp_path / "none.mindir")))
    (found,) = session.run(None, {"x0": x, "x1": samples})
    np.testing.assert_array_equal(np.asarray(found).reshape(-1), [8 if axes == 2 else np.nan])


def test_a_part_has_the_other_lengths_of_the_whole() -> None:
    for axis in (-3, -2, -1):
        b = Builder(17)
        shape: list[int | None] = [4, 5, 6]
        shape[axis] = None
        found = part(b, Value("x", np.dtype(np.float32), tuple(shape)), 1, 3, axis)
        shape[axis] = 2
        assert found.shape == tuple(shape)
