"""Quantized tensors: scales and zero points per tensor, per axis and per block."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import ml_dtypes
import numpy as np

from tests.sharding.proof import MICROSOFT, Case, Const
from tests.sharding.rule_cases.arrays import boolean, f32, positive, scalar, u8

BLOCKS = {24: (2, 3), 36: (3,), 48: (2,)}

_random = np.random.default_rng(42)
Array = np.ndarray[Any, Any]

EXTRA: dict[str, Set[str]] = {
    "MatMulInteger": {"split->partial", "blocks->partial", "blocks->blocks"},
    "MatMulInteger16": {"split->partial"},
    "ConvInteger": {"split->partial", "blocks->partial", "blocks->blocks"},
    "GatherBlockQuantized": {"split->partial"},
    "QGemm": {"split->partial"},
    "QLinearConcat": {"split->blocks"},
}


def i8(*shape: int) -> Array:
    return _random.integers(-127, 128, shape).astype(np.int8)


def _point(kind: type[np.integer[Any]] = np.uint8, *shape: int) -> Const:
    return Const(np.asarray(_random.integers(100, 120, shape), dtype=kind))


def _per(*shape: int) -> Const:
    return Const(positive(*shape) * 0.01)


S, Z = scalar(0.02), scalar(128, np.uint8)
Y = scalar(1.5)


def _linear() -> list[Case]:
    cases = []
    for op, opset, domain in (
        ("QuantizeLinear", 10, ""),
        ("QuantizeLinear", 13, ""),
        ("QuantizeLinear", 19, ""),
        ("QuantizeLinear", 21, ""),
        ("QuantizeLinear", 1, MICROSOFT),
        ("DequantizeLinear", 10, ""),
        ("DequantizeLinear", 13, ""),
        ("DequantizeLinear", 19, ""),
        ("DequantizeLinear", 21, ""),
        ("DequantizeLinear", 1, MICROSOFT),
    ):
        x = f32(24, 12) if op == "QuantizeLinear" else u8(24, 12)
        cases.append(Case(op, [x, S, Z], {}, opset, domain=domain, block_counts=BLOCKS))
        if opset != 10:
            for axis, count in ((0, 24), (-1, 12)) if not domain else ((0, 24), (1, 12)):
                per_axis = [_per(count), _point(np.uint8, count)]
                cases.append(Case(op, [x, *per_axis], {"axis": axis}, opset, domain=domain))
    for bits in ("int4", "uint4"):
        kind = np.dtype(getattr(ml_dtypes, bits))
        low = -8 if bits == "int4" else 0
        weight = Const(_random.integers(low, low + 16, (24, 96)).astype(kind))
        zero = Const(np.full((24, 6), low + 7).astype(kind))
        cases.append(Case("DequantizeLinear", [weight, _per(24, 6), zero], {"axis": 1, "block_size": 16}, 21))
    return [
        *cases,
        Case("DequantizeLinear", [u8(24, 12), Const(positive(1))], opset=13),
        Case("DequantizeLinear", [i8(96, 12), _per(24, 12)], {"axis": 0, "block_size": 4}, 21),
        Case(
            "DequantizeLinear",
            [i8(12, 96), _per(12, 24)],
            {"axis": -1, "block_size": 4},
            21,
            block_counts={96: (2,)},
        ),
        Case("DequantizeLinear", [i8(12, 94), _per(12, 24)], {"axis": 1, "block_size": 4}, 21),
        Case(
            "QuantizeLinear",
            [f32(12, 96), _per(12, 24), _point(np.int8, 12, 24)],
            {"axis": 1, "block_size": 4},
            21,
        ),
        Case(
            "DequantizeLinear",
            [_random.integers(-9, 9, (12, 24)).astype(np.int32), _per(12)],
            {"axis": 0},
            13,
        ),
    ]


def _products() -> list[Case]:
    a, b = u8(2, 12, 24), i8(24, 36)
    columns = [_per(36), Const(np.zeros(36, np.int8))]
    return [
        Case("MatMulInteger", [a, u8(24, 36)], opset=10, block_counts=BLOCKS),
        Case("MatMulInteger", [a, b, Z, Const(i8(36))], opset=10),
        Case("MatMulInteger", [a, b, np.asarray(3, np.uint8), np.asarray(7, np.int8)], opset=13),
        Case("MatMulInteger", [u8(12, 24), u8(24, 36), scalar(3, np.uint8), Const(u8(1))]),
        Case("MatMulInteger", [u8(2, 12, 5, 24), u8(2, 12, 24, 7), Z, Z]),
        Case("MatMulInteger", [u8(12, 5, 24), u8(12, 24, 36), Z, Const(u8(12, 1, 36))]),
        Case("MatMulInteger", [a, b, Z, i8(36)], shapes={3: None}),
        Case("MatMulInteger16", [_i16(12, 24), _i16(24, 36)], {}, 1, domain=MICROSOFT),
        Case("QLinearMatMul", [a, S, Z, u8(24, 36), S, Z, Y, Z], opset=10, block_counts=BLOCKS),
        Case("QLinearMatMul", [a, S, Z, b, *columns, Y, Z], opset=10),
        Case("QLinearMatMul", [a, S, Z, b, _per(1), Const(i8(1)), Y, Z], opset=21),
        Case("QLinearMatMul", [u8(2, 12, 5, 24), S, Z, u8(2, 12, 24, 7), S, Z, Y, Z], opset=13),
        Case(
            "QLinearMatMul",
            [u8(12, 5, 24), S, Z, u8(12, 24, 36), Const(positive(12, 1, 36)), Const(u8(12, 1, 36)), Y, Z],
        ),
        Case("QLinearMatMul", [u8(12, 24), S, Z, u8(24, 12), S, Z, Y, Z]),
        *_qgemm(),
    ]


def _i16(*shape: int) -> Array:
    return _random.integers(-99, 99, shape).astype(np.int16)


def _qgemm() -> list[Case]:
    bias = Const(_random.integers(-999, 999, 36).astype(np.int32))
    flat = {"transB": 1}
    b_columns = [_per(36), Const(np.zeros(36, np.int8))]
    return [
        Case("QGemm", [u8(12, 24), S, Z, i8(24, 36), *b_columns, bias, Y, Z], {}, 1, domain=MICROSOFT),
        Case(
            "QGemm",
            [u8(24, 12), S, Z, u8(36, 24), S, Z, bias, Y, Z],
            {"transA": 1, **flat},
            1,
            domain=MICROSOFT,
        ),
        Case("QGemm", [u8(12, 24), S, Z, i8(36, 24), S, scalar(0, np.int8), bias], flat, 1, domain=MICROSOFT),
        Case("QGemm", [u8(12, 24), S, Z, i8(36, 24), *b_columns], flat, 1, domain=MICROSOFT),
    ]


def _convolutions() -> list[Case]:
    x = u8(12, 24, 7, 7)
    same: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    bias = Const(_random.integers(-999, 999, 36).astype(np.int32))
    channels = [_per(36), Const(np.zeros(36, np.int8))]
    cases = []
    for domain, opset in (("", 10), (MICROSOFT, 1)):
        more: dict[str, Any] = {"domain": domain}
        w = i8(36, 24, 3, 3)
        cases += [
            Case(
                "QLinearConv", [x, S, Z, w, *channels, Y, Z, bias], same, opset, block_counts=BLOCKS, **more
            ),
            Case("QLinearConv", [x, S, Z, u8(36, 24, 1, 1), S, Z, Y, Z], {"strides": [2, 2]}, opset, **more),
            Case(
                "QLinearConv",
                [x, S, Z, i8(24, 1, 3, 3), _per(24), Const(np.zeros(24, np.int8)), Y, Z],
                {**same, "group": 24},
                opset,
                **more,
            ),
            Case(
                "QLinearConv",
                [x, S, Z, i8(36, 2, 3, 3), *channels, Y, Z, bias],
                {**same, "group": 12},
                opset,
                **more,
            ),
            Case(
                "QLinearConv",
                [u8(2, 120, 5, 5), S, Z, i8(60, 24, 3, 3), _per(60), Const(np.zeros(60, np.int8)), Y, Z],
                {"group": 5},
                opset,
                **more,
            ),
        ]
    nhwc = {**same, "channels_last": 1}
    return [
        *cases,
        Case(
            "QLinearConv",
            [u8(12, 7, 7, 24), S, Z, i8(36, 24, 3, 3), *channels, Y, Z, bias],
            nhwc,
            1,
            domain=MICROSOFT,
        ),
        Case(
            "QLinearConv",
            [u8(12, 7, 7, 24), S, Z, i8(24, 1, 3, 3), S, scalar(0, np.int8), Y, Z],
            {**nhwc, "group": 24},
            1,
            domain=MICROSOFT,
        ),
        Case("ConvInteger", [x, u8(36, 24, 3, 3), Z, scalar(7, np.uint8)], same, 10, block_counts=BLOCKS),
        Case("ConvInteger", [x, u8(36, 24, 1, 1)], {}, 13),
        Case("ConvInteger", [x, u8(24, 1, 3, 3), Z, Z], {**same, "group": 24}, 10),
        Case("ConvInteger", [u8(2, 120, 5, 5), u8(60, 24, 3, 3), Z], {"group": 5}, 10),
    ]


def _contrib(op: str, inputs: list[Any], attributes: dict[str, Any] | None = None, **more: Any) -> Case:
    return Case(op, inputs, attributes or {}, 1, domain=MICROSOFT, **more)


def _contributed() -> list[Case]:
    x, other = u8(2, 12, 24), u8(2, 12, 24)
    image, last = u8(12, 24, 6, 6), u8(12, 6, 6, 24)
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    cases = []
    for op in ("QLinearAdd", "QLinearMul"):
        cases += [
            _contrib(op, [x, S, Z, other, S, Z, Y, Z], block_counts=BLOCKS),
            _contrib(op, [x, S, Z, u8(24), scalar(0.5), Z, Y, Z]),
            _contrib(
                op,
                [i8(12, 24), S, scalar(1, np.int8), i8(12, 1), S, scalar(0, np.int8), Y, scalar(3, np.int8)],
            ),
        ]
    for opset, axis in ((11, 1), (13, 1), (13, -1)):
        attributes = {"axis": axis, "opset": opset}
        cases.append(
            _contrib(
                "QLinearSoftmax", [u8(12, 24, 12), S, Z, scalar(1 / 256), scalar(0, np.uint8)], attributes
            )
        )
    return [
        *cases,
        _contrib("QLinearSigmoid", [x, S, Z, scalar(1 / 256), scalar(0, np.uint8)], block_counts=BLOCKS),
        _contrib("QLinearLeakyRelu", [x, S, Z, S, Z], {"alpha": 0.1}),
        _contrib("QLinearGlobalAveragePool", [image, S, Z, S, Z], {"channels_last": 0}, block_counts=BLOCKS),
        _contrib("QLinearGlobalAveragePool", [last, S, Z, S, Z], {"channels_last": 1}),
        _contrib("QLinearAveragePool", [image, S, Z, S, Z], window),
        _contrib("QLinearAveragePool", [last, S, Z, S, Z], {**window, "channels_last": 1}),
        _contrib("QLinearConcat", [S, Z, x, scalar(0.03), Z, other, S, Z], {"axis": -1}, block_counts=BLOCKS),
        _contrib("QLinearConcat", [S, Z, u8(2, 48), S, Z, u8(2, 24), S, Z], {"axis": 1}),
        _contrib("QLinearConcat", [S, Z, u8(12, 5), S, Z, u8(12, 3), S, Z], {"axis": 1}),
        _contrib(
            "QLinearWhere", [boolean(12, 24), u8(12, 24), S, Z, u8(24), scalar(0.05), Z, scalar(0.04), Z]
        ),
        _contrib("NhwcMaxPool", [last], window, block_counts=BLOCKS),
    ]


def _tables() -> list[Case]:
    ids = _random.integers(0, 36, (2, 12))
    four = np.dtype(ml_dtypes.uint4)
    table = Const(_random.integers(0, 16, (36, 192)).astype(four))
    points = Const(_random.integers(0, 16, (36, 12)).astype(four))
    scales, packed = _per(36, 12), Const(u8(36, 96))
    last: dict[str, Any] = {"gather_axis": 0, "quantize_axis": 1, "block_size": 16}
    return [
        _contrib("GatherBlockQuantized", [table, ids, scales, points], last, block_counts={192: (2,)}),
        _contrib("GatherBlockQuantized", [table, ids.astype(np.int32), scales], last),
        _contrib("GatherBlockQuantized", [packed, ids, scales, Const(u8(36, 6))], {**last, "bits": 4}),
        _contrib("GatherBlockQuantized", [packed, ids - 36, scales], {**last, "bits": 4}),
        _contrib("GatherBlockQuantized", [Const(u8(36, 192)), ids, scales], {**last, "bits": 8}),
    ]


CASES = [*_tables(), *_linear(), *_products(), *_convolutions(), *_contributed()]
