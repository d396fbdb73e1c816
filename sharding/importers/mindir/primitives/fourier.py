"""Fourier transforms, by ONNX's DFT along one axis after the other."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import (
    ComplexValue,
    Node,
    Operand,
    RefusedError,
    Value,
    primitive,
)
from sharding.importers.mindir.primitives.complex_numbers import conjugate, made, parts_of
from sharding.importers.mindir.primitives.indexing import END
from sharding.importers.mindir.primitives.operands import FLOAT32, Builder, Ints, known_rank

NORMS = ("backward", "forward", "ortho")
"""Which way is divided by the length, in the order of version 3's numbers; ortho: each by its root."""
MISCOUNTED = frozenset(
    {"RFFT", "RFFT2", "RFFTN", "IRFFT", "IRFFT2", "IRFFTN", "HFFT", "IHFFT", "FFTWithSize"}
)
"""Of open lengths, MindSpore computes the lengths of their results from its mark for them, -1: what it
declares from there on is not true."""
_AXIS_IS_AN_INPUT = 20
"""The version of ONNX's operators from which DFT takes its axis as an operand."""


def is_open(operand: object) -> bool:
    """Whether an operand has lengths that only a run tells."""
    return isinstance(operand, Value) and (operand.shape is None or None in operand.shape)


def _norm(setting: Operand) -> str:
    return "backward" if setting is None else Builder.text(setting, "norm", NORMS)


def _scaled(b: Builder, x: Value, length: int | Value, power: float) -> Value:
    if not power:
        return x
    count = b.cast(b.value(length), x.dtype)
    return b.op("Mul", [x, b.op("Pow", [count, b.const(power, x.dtype)])])


def _dft(
    b: Builder, x: Value, axis: int, length: Operand, *, inverse: bool, half: bool, norm: str
) -> ComplexValue:
    """Along one axis, of the given length: what is missing are zeros. ``half``: without the second half of
    the frequencies, which real numbers have twice."""
    axis = b.axis(axis, x)
    known_rank(x)
    if length is None and isinstance(x, ComplexValue):
        count: int | Value = b.dim(x.real, axis)
    else:
        count = b.dim(x, axis) if length is None else b.integer(length, "the length of the transform")
    last = b.ints((-1,))
    if isinstance(x, ComplexValue):
        operand = b.op(
            "Concat", [b.op("Unsqueeze", [part, last]) for part in (x.real, x.imaginary)], {"axis": -1}
        )
    else:
        operand = b.op("Unsqueeze", [b.floating(x), last])
    size = None if length is None else b.value(count)
    attributes: dict[str, object] = {"inverse": int(inverse), "onesided": int(half)}
    if b.opset >= _AXIS_IS_AN_INPUT:
        found = b.op("DFT", [operand, size, b.const(axis, np.int64)], attributes)
    else:
        found = b.op("DFT", [operand, size], {**attributes, "axis": axis})
    powers = {"ortho": 0.5 if inverse else -0.5, "forward": 1.0 if inverse else -1.0, "backward": 0.0}
    found = _scaled(b, found, count, powers[norm])
    parts = [b.op("Gather", [found, b.const(place, np.int64)], {"axis": -1}) for place in (0, 1)]
    for part in parts:
        if x.shape is not None:
            kept = count // 2 + 1 if half and isinstance(count, int) else None if half else count
            part.shape = (*x.shape[:axis], kept if isinstance(kept, int) else None, *x.shape[axis + 1 :])
    return made(parts[0], parts[1])


def _real_inverse(b: Builder, x: Value, axis: int, length: Operand, norm: str) -> Value:
    """Real numbers of the first half of their frequencies: the others are those with the other sign."""
    axis = b.axis(axis, x)
    place = b.ints((axis,))
    real, imaginary = parts_of(b, x)
    held = b.dim(real, axis)
    count: int | Value
    if length is not None:
        count = b.integer(length, "the length of the transform")
    else:
        count = 2 * (held - 1) if isinstance(held, int) else b.op("Mul", [b.op("Sub", [held, 1]), 2])
    first = count // 2 + 1 if isinstance(count, int) else held
    if length is not None:  # cut, or filled up with zeros
        assert isinstance(first, int)
        rank = known_rank(real)
        missing = b.op("Max", [b.op("Sub", [b.const(first, np.int64), b.value(held)]), 0])
        none = b.const([0], np.int64)
        before, after = [none] * (rank + axis), [none] * (rank - axis - 1)
        amounts = b.op("Concat", [*before, b.reshape(missing, (1,)), *after], {"axis": 0})
        real, imaginary = (
            b.op("Slice", [b.op("Pad", [part, amounts]), b.ints((0,)), b.ints((first,)), place])
            for part in (real, imaginary)
        )
    # The frequencies from the last but one down to the second; of an odd length, from the last.
    start = b.op("Sub", [b.value(count), b.value(first)])
    whole = []
    for part in (real, imaginary):
        back = b.op("Slice", [part, b.reshape(start, (1,)), b.ints((0,)), place, b.ints((-1,))])
        back = back if part is real else b.op("Neg", [back])
        whole.append(b.op("Concat", [part, back], {"axis": axis}))
    return _dft(b, made(*whole), axis, None, inverse=True, half=False, norm=norm).real


_OTHER_WAY = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def fft(b: Builder, node: Node, x: Value, *, n: Operand = None, dim: int = -1, norm: Operand = None) -> Value:
    """Along one axis: of real or complex numbers; RFFT of real ones, the first half of the frequencies; IRFFT
    real numbers of these; HFFT the real frequencies of numbers of which half are given; IHFFT that half."""
    kind, way = node.op_type, _norm(norm)
    if kind in {"HFFT", "IHFFT"}:
        way = _OTHER_WAY[way]
    if kind in {"IRFFT", "HFFT"}:
        return _real_inverse(b, conjugate(b, x) if kind == "HFFT" else x, dim, n, way)
    found = _dft(b, x, dim, n, inverse=kind == "IFFT", half=kind in {"RFFT", "IHFFT"}, norm=way)
    return conjugate(b, found) if kind == "IHFFT" else found


primitive("FFT", "IFFT", "IRFFT", "HFFT", of_complex=True, declared=False)(fft)
primitive("RFFT", "IHFFT", declared=False)(fft)


def _axes(b: Builder, x: Value, s: Operand, dim: Operand) -> list[tuple[int, Operand]]:
    """The axes of a transform and their lengths, None for their own."""
    rank = known_rank(x)
    lengths: tuple[Operand, ...] = () if s is None else b.integers(s, "s")
    if dim is not None:
        axes = [b.axis(axis, x) for axis in b.integers(dim, "dim")]
    else:
        axes = list(range(rank - len(lengths) if lengths else 0, rank))
    lengths = lengths or (None,) * len(axes)
    if len(lengths) != len(axes):
        raise RefusedError(f"{len(lengths)} lengths for {len(axes)} axes")
    return [(axis, None if length == -1 else length) for axis, length in zip(axes, lengths, strict=True)]


def transformed(
    b: Builder, x: Value, axes: list[tuple[int, Operand]], norm: str, *, inverse: bool, real: bool
) -> Value:
    """Along several axes. ``real``: the numbers are real; of the last axis's frequencies, half are there."""
    first, last = axes[:-1], axes[-1]
    if real and not inverse:
        x = _dft(b, x, *last, inverse=False, half=True, norm=norm)
    for axis, length in first if real else axes:
        x = _dft(b, x, axis, length, inverse=inverse, half=False, norm=norm)
    return _real_inverse(b, x, *last, norm) if real and inverse else x


_NAMES = ("FFT2", "FFTN", "IFFT2", "IFFTN", "RFFT2", "RFFTN", "IRFFT2", "IRFFTN")


@primitive(*_NAMES, declared=False, of_complex=True)
def fft_of_axes(
    b: Builder, node: Node, x: Value, *, s: Operand = None, dim: Operand = None, norm: Operand = None
) -> Value:
    """Along several axes; names with R are of real numbers, names with I of frequencies."""
    kind = node.op_type
    return transformed(
        b, x, _axes(b, x, s, dim), _norm(norm), inverse=kind.startswith("I"), real="RFFT" in kind
    )


@primitive("FFTWithSize", of_complex=True, declared=False)
def fft_with_size(b: Builder, node: Node, x: Value, *settings: Operand) -> Value:
    """The older form of all of these, along the last axes."""
    names = ("signal_ndim", "inverse", "real", "norm", "onesided", "signal_sizes")
    given = {name: node.attributes.get(name) for name in names}
    given.update(zip(names, settings, strict=False))
    count = b.integer(given["signal_ndim"], "signal_ndim")
    sizes = given["signal_sizes"] or None
    inverse, real = bool(given["inverse"]), bool(given["real"])
    norm = "backward" if given["norm"] is None else b.text(given["norm"], "norm", NORMS)
    rank = known_rank(x)
    half = real and given["onesided"] is not False
    lengths: list[Operand] = [None] * count
    if sizes is not None and half and inverse:
        lengths = list(b.integers(sizes, "signal_sizes", count))
    axes = list(zip(range(rank - count, rank), lengths, strict=True))
    found = transformed(b, x, axes, norm, inverse=inverse, real=half)
    return found.real if real and inverse and isinstance(found, ComplexValue) else found


@primitive("FFTShift", "IFFTShift")
def fft_shift(b: Builder, node: Node, x: Value, *, dim: Ints | None = None) -> Value:
    """The frequency 0 in the middle of axes, or from there at the front."""
    rank = known_rank(x)
    axes = range(rank) if dim is None else [b.axis(axis, x) for axis in dim]
    for axis in axes:
        length, place = b.dim(x, axis), b.ints((axis,))
        more = 1 if node.op_type == "FFTShift" else 0
        if isinstance(length, int):
            middle = b.ints(((length + more) // 2,))
        else:
            middle = b.reshape(b.op("Div", [b.op("Add", [length, more]), 2]), (1,))
        tail = b.op("Slice", [x, middle, b.ints((END,)), place])
        x = b.op("Concat", [tail, b.op("Slice", [x, b.ints((0,)), middle, place])], {"axis": axis})
    return x


@primitive("FFTFreq", "RFFTFreq")
def fft_frequencies(b: Builder, node: Node, *, n: int = 1, d: float = 1.0, dtype: Operand = None) -> Value:
    """The frequencies of a transform of a length, for samples at a distance."""
    made_by = np.fft.fftfreq if node.op_type == "FFTFreq" else np.fft.rfftfreq
    return b.const(made_by(n, d).astype(b.element_type(dtype, b.result_type(node, FLOAT32))))
