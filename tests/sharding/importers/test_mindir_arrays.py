"""Primitives of MindIR in forms that networks seldom have: settings left out, lengths and axes that only a
run tells, element types of other kinds. Numpy answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sharding.importers.mindir_runs import Declared, Made, open_axes, open_lengths, run

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
ROWS = X[0]
SIGNED = np.float32([[-2.5, 0, 1.5], [3, -0.25, 0]])
WHOLE = np.array([[3, -1, 2], [0, 5, -7]], np.int32)
TINY = np.int8([5, -3, 5])
DRAWN = np.random.default_rng(3)
A, B, C = (DRAWN.standard_normal(shape).astype(np.float32) for shape in ((2, 3), (3, 4), (2, 3)))
INT64, FLOAT32 = 35, 43  # of a file, MindSpore's own numbers


def half_open(array: Any, *axes: int) -> Declared:
    """An input of which the lengths of these axes are open."""
    return Declared(array, tuple(-1 if axis in axes else length for axis, length in enumerate(array.shape)))


Case = tuple[str, tuple[Any, ...], dict[str, Any], Any]
CASES: dict[str, Case] = {
    "two axes exchanged": ("TransposeExt", (X, 0, -1), {}, X.swapaxes(0, 2)),
    "of any number of axes": ("TransposeExt", (open_axes(X), 0, -1), {}, X.swapaxes(0, 2)),
    "an axis with itself": ("TransposeExt", (open_axes(X), 1, -2), {}, X),
    "two in front": ("TransposeExt", (open_axes(X), -3, 1), {}, X.swapaxes(0, 1)),
    "all axes in reverse": ("TExt", (X,), {}, X.T),
    "all of any number in reverse": ("TExt", (open_axes(X),), {}, X.T),
    "new axes": ("ExpandDims", (X, (0, -1)), {}, X[None, ..., None]),
    "a new axis by a setting": ("ExpandDims", (X,), {"axis": 1}, X[:, None]),
    "a new axis where a run tells": ("ExpandDims", (X, np.array(1)), {}, X[:, None]),
    "squeezed": ("Squeeze", (X[None, :, None],), {}, X),
    "one axis squeezed": ("Squeeze", (X[None, :, None], 2), {}, X[None]),
    "squeezed by what the file says": (
        "Squeeze", (half_open(X[None, :, None], 1),), {"types": (("float32", (-1, 3, 4)),)}, X,
    ),
    "squeezed with open lengths": ("Squeeze", (open_lengths(X[:1]),), {}, X[0]),
    "rolled along no axis": ("Roll", (ROWS, 5), {}, np.roll(ROWS, 5)),
    "rolled back along no axis": ("Roll", (ROWS,), {"shift": (-5,)}, np.roll(ROWS, -5)),
    "rolled along two": ("Roll", (X, (1, -2), (0, 2)), {}, np.roll(X, (1, -2), (0, 2))),
    "rolled once around": ("Roll", (X, (3, 2), (1, 0)), {}, X),
    "rolled of open lengths": ("Roll", (open_lengths(X), (1, -1), (1, 2)), {}, np.roll(X, (1, -1), (1, 2))),
    "rolled not at all": ("Roll", (open_lengths(X), (0,), (1,)), {}, X),
    "pixels of channels": (
        "PixelShuffle", (np.arange(32, dtype=np.float32).reshape(2, 4, 2, 2),), {"upscale_factor": 2},
        np.arange(32, dtype=np.float32).reshape(2, 1, 2, 2, 2, 2).transpose(0, 1, 4, 2, 5, 3)
        .reshape(2, 1, 4, 4),
    ),
    "pixels of one image": (
        "PixelShuffle", (np.arange(16, dtype=np.float32).reshape(4, 2, 2),), {"upscale_factor": 2},
        np.arange(16, dtype=np.float32).reshape(1, 2, 2, 2, 2).transpose(0, 3, 1, 4, 2).reshape(1, 4, 4),
    ),
    "tiled": ("Tile", (ROWS, (2, 3)), {}, np.tile(ROWS, (2, 3))),
    "tiled along the last axes": ("Tile", (X, (2, 3)), {}, np.tile(X, (2, 3))),
    "tiled along the last axis, a run tells": ("Tile", (X, (np.array(2),)), {}, np.tile(X, 2)),
    "tiled along more axes": ("Tile", (ROWS, (2, 1, 3)), {}, np.tile(ROWS, (2, 1, 3))),
    "a number tiled no time": ("Tile", (np.array(3, np.float32), ()), {}, np.float32(3)),
    "repeated": ("RepeatInterleaveInt", (ROWS, 2), {}, np.repeat(ROWS, 2)),
    "repeated along an axis": ("RepeatInterleaveInt", (ROWS, 2, -1), {}, np.repeat(ROWS, 2, -1)),
    "repeated each as often": (
        "RepeatInterleaveTensor", (ROWS, (2, 0, 3), 0), {}, np.repeat(ROWS, (2, 0, 3), 0)
    ),
    "broadcast": ("BroadcastTo", (ROWS[:1], (2, 3, -1)), {}, np.broadcast_to(ROWS[:1], (2, 3, 4))),
    "broadcast by a setting": (
        "BroadcastTo", (ROWS[:1],), {"shape": (3, 4)}, np.broadcast_to(ROWS[:1], (3, 4)),
    ),
    "broadcast by a run": (
        "BroadcastTo", (ROWS[:1], (np.array(3), -1)), {}, np.broadcast_to(ROWS[:1], (3, 4)),
    ),
    "broadcast to a tensor": (
        "BroadcastTo", (ROWS[:1], np.array([3, -1])), {}, np.broadcast_to(ROWS[:1], (3, 4)),
    ),
    "broadcast to a constant": (
        "BroadcastTo", (ROWS[:1], Made("TupleToTensor", (3, -1))), {}, np.broadcast_to(ROWS[:1], (3, 4)),
    ),
    "stacked": ("Stack", ((A, C),), {"axis": -1}, np.stack((A, C), -1)),
    "stacked in front": ("Stack", ((A, C),), {}, np.stack((A, C))),
    "stacked by dim": ("StackExt", ((A, C),), {"dim": 1}, np.stack((A, C), 1)),
    "stacked numbers": ("Stack", ((2, np.array(5)),), {}, np.array([2, 5])),
    "joined of ranks": ("ParallelConcat", ((A, C),), {}, np.concatenate((A, C))),
    "the first of a narrow part": ("Narrow", (X, 1, 1, 2), {}, X[:, 1:3]),
    "a narrow part at the end": ("Narrow", (X, 1, -2, 2), {}, X[:, -2:]),
    "a narrow part before the end": ("Narrow", (X, 1, -3, 2), {}, X[:, -3:-1]),
    "a narrow part where a run tells": ("Narrow", (X, 2, np.array(1), 2), {}, X[:, :, 1:3]),
    "a block": ("Slice", (X, (0, 1, 1), (2, -1, 2)), {}, X[:, 1:, 1:3]),
    "a block where a run tells": (
        "Slice", (X, (0, np.array(1), 1), (2, 2, np.array(2))), {}, X[:, 1:3, 1:3]
    ),
    "a block where a tensor tells": ("Slice", (X, np.array([0, 1, 1]), (2, -1, 2)), {}, X[:, 1:, 1:3]),
    "sorted": ("SortExt", (np.float32(4),), {"first": True}, np.float32(4)),
    "a median of a number": ("Median", (np.float32(4),), {"first": True}, np.float32(4)),
    "a median of all": ("Median", (SIGNED, True), {"first": True}, np.float32(0)),
    "an order undone": ("InvertPermutation", ((2, 0, 1),), {"joined": True}, np.array([1, 2, 0])),
    "an order of a constant undone": (
        "InvertPermutation", (Made("TupleToTensor", (2, 0, 3, 1)),), {}, np.array([1, 3, 0, 2]),
    ),
    "places in a line that an order sorts": (
        "SearchSorted", (np.float32([3, 1, 2]), np.float32([0, 2, 9]), np.array([1, 2, 0])), {},
        np.array([0, 1, 3]),
    ),
    "places behind equal ones": (
        "SearchSorted", (np.float32([1, 2, 2, 3]), np.float32([2, 1, 4]), None, INT64, True), {},
        np.array([3, 1, 4]),
    ),
    "rounded to decimals": (
        "Round", (np.float32([1.25, -0.126, 17.5]), 1), {}, np.round(np.float32([1.25, -0.126, 17.5]), 1),
    ),
    "rounded to tens": ("Round", (np.float32([15, 26, -5.1]), -1), {}, np.float32([20, 30, -10])),
    "rounded halves": ("Round", (np.float32([0.5, 1.5, 2.5, -0.5]),), {}, np.float32([0, 2, 2, 0])),
    "whole numbers rounded": ("Round", (WHOLE, -1), {}, WHOLE),
    "whole numbers without the fraction": ("Trunc", (WHOLE,), {}, WHOLE),
    "whole numbers are all numbers": ("NanToNum", (WHOLE, 7.0), {}, WHOLE),
    "numbers instead": (
        "NanToNum", (np.float32([np.nan, np.inf, -np.inf, 2]),), {},
        np.nan_to_num(np.float32([np.nan, np.inf, -np.inf, 2])),
    ),
    "own numbers instead": (
        "NanToNum", (np.float32([np.nan, np.inf, -np.inf, 2]), 7.0, 8.0, 9.0), {}, np.float32([7, 8, 9, 2]),
    ),
    "the largest half": (
        "NanToNum", (np.float16([np.inf, -np.inf]),), {}, np.float16([65504, -65504]),
    ),
    "a running sum of a number": ("CumsumExt", (np.float32(3), 0), {}, np.float32(3)),
    "a running sum": ("CumsumExt", (WHOLE, 1), {}, np.cumsum(WHOLE, 1)),
    "the running largest of whole ones": (
        "Cummax", (WHOLE, 1), {"first": True}, np.maximum.accumulate(WHOLE, 1)
    ),
    "the running smallest of whole ones": (
        "Cummin", (WHOLE, 1), {"first": True}, np.minimum.accumulate(WHOLE, 1)
    ),
    "the running largest of small ones": (
        "Cummax", (np.int8([-128, -127, -128]), 0), {"first": True}, np.int8([-128, -127, -127])
    ),
    "a sum of products": ("EinsumExt", ("ij, jk -> ik", (A, B)), {}, A @ B),
    "a sum of one": ("EinsumExt", ("ij->j", (A,)), {}, A.sum(0)),
    "a vector product": ("Cross", (A, C), {}, np.cross(A, C)),
    "a vector product along the first": (
        "Cross", (A.T, C.T), {}, np.cross(A.T, C.T, axis=0),
    ),
    "a vector product along the first of two axes of 3": (
        "Cross", (B[:, :3].copy(), B[:, 1:].copy()), {}, np.cross(B[:, :3], B[:, 1:], axis=0),
    ),
    "a vector product along a named one": (
        "Cross", (B[:, :3].copy(), B[:, 1:].copy(), 1), {}, np.cross(B[:, :3], B[:, 1:], axis=1),
    ),
    "the larger of whole ones": ("Fmax", (WHOLE, -WHOLE), {}, np.maximum(WHOLE, -WHOLE)),
    "the smaller of whole ones": ("Fmin", (WHOLE, -WHOLE), {}, np.minimum(WHOLE, -WHOLE)),
    "the larger of numbers": (
        "Fmax", (np.float32([np.nan, 1, np.nan, 2]), np.float32([3, np.nan, np.nan, 1])), {},
        np.float32([3, 1, np.nan, 2]),
    ),
    "whole rows chosen": (
        "Select", (np.array([True, False]), A, C), {}, np.stack((A[0], C[1])),
    ),
    "columns chosen": (
        "SelectV2", (np.array([True, False, True]), A, C), {},
        np.where([True, False, True], A, C),
    ),
    "a true quotient": ("DivMod", (WHOLE, np.int32([2, 4, -3])), {}, WHOLE / np.float32([2, 4, -3])),
    "a quotient rounded down": (
        "DivMod", (WHOLE, np.int32([2, 4, -3]), "floor"), {}, WHOLE // np.int32([2, 4, -3]),
    ),
    "a quotient rounded to zero": (
        "DivMod", (WHOLE, np.int32([2, 4, -3]), "trunc"), {},
        np.trunc(WHOLE / np.array([2, 4, -3])).astype(np.int32),
    ),
    "an empty tensor in its shape": ("EmptyLike", (A,), {"shaped": True}, A),
    "a new empty tensor": ("NewEmpty", (A, (4, 1)), {"shaped": True}, np.zeros((4, 1), np.float32)),
    "a line of one": ("LinSpace", (2.0, 5.0, 1), {}, np.float32([2])),
    "a line": ("LinSpace", (2.0, 5.0, 4), {}, np.float32([2, 3, 4, 5])),
    "a line where a run tells": ("LinSpace", (2.0, 5.0, np.array(4)), {}, np.float32([2, 3, 4, 5])),
    "a line of one where a run tells": ("LinSpace", (2.0, 5.0, np.array(1)), {}, np.float32([2])),
    "a band": ("MatrixBandPart", (ROWS, 0, 1), {}, np.triu(np.tril(ROWS, 1), 0)),
    "a band below": ("MatrixBandPart", (ROWS, 1, -1), {}, np.triu(ROWS, -1)),
    "a band above": ("MatrixBandPart", (ROWS, -1, 0), {}, np.tril(ROWS, 0)),
    "a band of all": ("MatrixBandPart", (ROWS, -1, -1), {}, ROWS),
    "marks": ("OneHot", (np.array([2, 0, -1, 3]), 3, 5.0, 1.0), {},
              np.float32([[1, 1, 5], [5, 1, 1], [1, 1, 1], [1, 1, 1]])),
    "marks in front": ("OneHot", (np.array([1, 0]), 3, 5.0, 1.0, 0), {},
                       np.float32([[1, 5], [5, 1], [1, 1]])),
    "marks as many as a run tells": ("OneHot", (np.array([1, 0]), np.array(3), 5.0, 1.0), {},
                                     np.float32([[1, 5, 1], [5, 1, 1]])),
    "places of two tensors": (
        "Index", (ROWS, (np.array([[0], [2]]), np.array([1, -1]))), {}, ROWS[[[0], [2]], [1, -1]],
    ),
    "places of one tensor": ("Index", (ROWS, (np.array([2, 0, -1]),)), {}, ROWS[[2, 0, -1]]),
    "places of a mask": ("Index", (ROWS, (ROWS > 5,)), {}, ROWS[ROWS > 5]),
    "places of a mask of rows": (
        "Index", (X, (X[:, :, 0] > 3, np.array([1]))), {}, X[X[:, :, 0] > 3, [1]],
    ),
    "a quotient by place": (
        "TensorScatterDiv", (ROWS, np.array([[1], [1]]), np.float32([[2] * 4, [4] * 4])), {},
        np.stack((ROWS[0], ROWS[1] / 8, ROWS[2])),
    ),
    "the largest of segments": (
        "UnsortedSegmentMax", (WHOLE, np.array([1, 1]), 3), {},
        np.stack((np.full(3, -(2**31)), WHOLE.max(0), np.full(3, -(2**31)))).astype(np.int32),
    ),
    "the smallest of segments": (
        "UnsortedSegmentMin", (WHOLE, np.array([1, -1]), 2), {},
        np.stack((np.full(3, 2**31 - 1), WHOLE[0])).astype(np.int32),
    ),
    "how many are not 0": ("LpNorm", (SIGNED, (1,), 0), {}, np.float32([2, 2])),
    "the angle of real numbers": ("Angle", (SIGNED,), {}, np.angle(SIGNED.astype(complex))),
    "the angle of none": ("Angle", (np.float32([np.nan, -0.0, -1]),), {}, np.float32([np.nan, 0, np.pi])),
    "the angle of whole numbers": ("Angle", (WHOLE,), {}, np.where(WHOLE < 0, np.pi, 0)),
    "the values themselves": ("IdentityN", ((A, C),), {"first": True}, A),
}  # fmt: skip
_ADDED = ROWS.copy()
np.add.at(_ADDED, [2, 0, 2], ROWS + 1)
CASES["a part added"] = ("IndexAdd", (ROWS, np.array([2, 0, 2]), ROWS + 1), {"axis": 0}, _ADDED)


@pytest.mark.parametrize("name", CASES)
def test_answers(name: str, tmp_path: Path) -> None:
    kind, operands, settings, wanted = CASES[name]
    settings = dict(settings)
    first, joined, shaped = (settings.pop(word, False) for word in ("first", "joined", "shaped"))
    found = run(tmp_path, kind, *operands, **settings)
    if first:
        found = found[:1]
    answer = np.stack(found) if joined else found[0]
    assert len(found) == 1 or joined
    assert answer.shape == np.shape(wanted)
    assert answer.dtype.kind == np.asarray(wanted).dtype.kind
    if not shaped:
        np.testing.assert_allclose(answer, wanted, rtol=1e-6, atol=1e-7)
