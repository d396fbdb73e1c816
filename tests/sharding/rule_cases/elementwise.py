"""Elementwise operators: domains, attributes, broadcasting, summands."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from sharding.rules.elementwise import BROADCASTING
from tests.sharding.proof import MICROSOFT, Case, Const
from tests.sharding.rule_cases.arrays import boolean, f32, i64, positive, scalar, u8, unit

BLOCKS = {24: (2, 3)}

_POSITIVE = ("Log", "Sqrt", "Reciprocal")
_UNIT = ("Acos", "Asin", "Atanh")
_FLOATS = (
    *(
        "Abs",
        "Atan",
        "Ceil",
        "Cos",
        "Cosh",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "HardSigmoid",
        "Identity",
        "LeakyRelu",
    ),
    *("Neg", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign"),
    *("Tan", "Tanh", "ThresholdedRelu", "Asinh", "Celu"),
)
_WITH_ATTRIBUTES: list[tuple[str, int, dict[str, Any]]] = [
    ("LeakyRelu", 6, {"alpha": 0.3}),
    ("Elu", 9, {"alpha": 0.5}),
    ("HardSigmoid", 11, {"alpha": 0.1, "beta": 0.4}),
    ("Selu", 13, {"alpha": 1.2, "gamma": 0.9}),
    ("HardSwish", 14, {}),
    ("Mish", 18, {}),
    ("Gelu", 20, {"approximate": "tanh"}),
    ("Gelu", 20, {}),
    ("Clip", 6, {"min": -0.5, "max": 0.5}),
]


def _unary() -> list[Case]:
    cases = [Case(op, [f32(2, 12, 24)], opset=17, block_counts=BLOCKS) for op in _FLOATS]
    cases += [Case(op, [positive(12, 5)]) for op in _POSITIVE]
    cases += [Case(op, [unit(12, 5)]) for op in _UNIT]
    cases += [Case("Acosh", [positive(12, 5) + 1])]
    cases += [Case(op, [f32(3, 24)], attributes, opset) for op, opset, attributes in _WITH_ATTRIBUTES]
    for opset in (9, 13):
        cases += [Case("Relu", [f32(12)], opset=opset), Case("Identity", [boolean(12, 2)], opset=opset)]
    holes = np.where(boolean(12, 4), np.float32(np.nan), np.float32(np.inf))
    return [
        *cases,
        Case("IsNaN", [holes]),
        Case("IsInf", [holes], {"detect_negative": 0}),
        Case("Not", [boolean(12, 2)]),
        Case("BitwiseNot", [u8(12, 2)], opset=18),
        Case("Abs", [i64(12, 2)]),
        Case("Abs", [f32(12, 2)], shapes={0: None}),
        Case("Neg", [i64(12, 2)]),
        Case("Swish", [f32(12, 2)], {"alpha": 0.7}, opset=24),
        Case("Clip", [f32(2, 12), scalar(-0.5), None], opset=11),
        Case("Clip", [f32(2, 12), scalar(-0.5), np.float32(0.5)], opset=13),
        Case("Dropout", [f32(12, 3)], {"ratio": 0.5}, opset=7),
        Case("Dropout", [f32(12, 3), scalar(0.5)], opset=13, outputs=2),
        Case("Dropout", [f32(12, 3), scalar(0.5), scalar(False, np.bool_)], opset=13),
        Case("Cast", [f32(12, 3) * 10], {"to": TensorProto.INT32}),
        Case("Cast", [f32(12, 3)], {"to": TensorProto.DOUBLE}, opset=9),
        Case("Cast", [f32(12, 3).astype(np.float16)], {"to": TensorProto.FLOAT}, opset=13, rtol=4e-3),
        Case("Cast", [f32(12, 3)], {"to": TensorProto.FLOAT}),
        Case("Cast", [f32(12, 3).astype(np.float16)], {"to": TensorProto.FLOAT16}, opset=13, rtol=4e-3),
        Case("Cast", [i64(12, 3)], {"to": TensorProto.FLOAT}),
        Case("CastLike", [f32(12, 3) * 10, i64(1)], opset=15),
        Case("Gelu", [f32(12, 3)], opset=1, domain=MICROSOFT),
        Case("QuickGelu", [f32(12, 3)], {"alpha": 1.702}, opset=1, domain=MICROSOFT),
        Case("FastGelu", [f32(3, 12), f32(12)], opset=1, domain=MICROSOFT),
        Case("FastGelu", [f32(3, 12)], opset=1, domain=MICROSOFT),
        Case("BiasGelu", [f32(3, 12), f32(12)], opset=1, domain=MICROSOFT),
    ]


def _operands(op: str, *shape: int) -> np.ndarray[Any, Any]:
    if op in ("And", "Or", "Xor"):
        return boolean(*shape)
    if op.startswith("Bit"):
        return u8(*shape) % np.uint8(7)
    if op == "Mod":
        return i64(*shape, low=1, high=9)
    return positive(*shape)


def _broadcast() -> list[Case]:
    cases = []
    for op in (*BROADCASTING, "Add", "Sub", "Mul", "Div", "Sum"):
        attributes = {"direction": "LEFT"} if op == "BitShift" else {}
        opset = 18 if op.startswith("Bitwise") else 17
        pairs = [((2, 12, 24), (2, 12, 24)), ((3, 12), (12,)), ((12, 1), (12, 24))]
        pairs += [((1, 24), (12, 1)), ((4, 12), (1,))]
        if op == "PRelu":  # the slope is broadcast to the input, never the input to the slope
            pairs = [((2, 12, 24), (24,)), ((2, 12, 5), (12, 1)), ((4, 12), (1,))]
        for a, b in pairs:
            inputs = [_operands(op, *a), _operands(op, *b)]
            cases.append(Case(op, inputs, attributes, opset, block_counts=BLOCKS))
    return cases


def _others() -> list[Case]:
    infinite = np.full((1, 12), -np.inf, dtype=np.float32)
    return [
        Case("Mod", [f32(12, 4), positive(12, 4)], {"fmod": 1}),
        Case("Add", [i64(12, 4), i64(4)], opset=7),
        Case("Sub", [f32(4, 12), scalar(1.5)], opset=13),
        Case("Sub", [scalar(1.5), f32(4, 12)], opset=14),
        Case("Div", [i64(12, 4), i64(4, low=1)], opset=14),
        Case("Mul", [scalar(0.125), f32(4, 12)]),
        Case("Add", [f32(4, 12), infinite]),
        Case("Add", [f32(4, 12), f32(4, 12)], shapes={1: None}),
        Case("Equal", [i64(12, 4), Const(i64(4))], opset=11),
        Case("Pow", [positive(12, 4), scalar(2, np.int64)], opset=15),
        Case("Max", [f32(12, 4), f32(4), f32(1)], opset=13),
        Case("Min", [f32(12, 4)], opset=13),
        Case("Mean", [f32(12, 4), f32(4), f32(12, 1)], opset=13),
        Case("Sum", [f32(12, 4), f32(4), f32(12, 1)], opset=8),
        Case("Where", [boolean(2, 12, 24), f32(2, 12, 24), f32(2, 12, 24)]),
        Case("Where", [boolean(1, 1, 12, 24), f32(2, 12, 12, 24), scalar(-np.inf)], opset=9),
        Case("Where", [boolean(24), scalar(0.0), f32(12, 1)], opset=16, block_counts=BLOCKS),
        Case("Where", [boolean(12), i64(3, 12), i64(12)], opset=16),
        Case("PRelu", [f32(2, 12, 5, 5), Const(f32(12, 1, 1))], opset=9),
        Case("Add", [f32(3, 12), f32(3, 12)], shapes={0: ["batch", 12], 1: ["batch", 12]}),
        Case("Add", [f32(3, 12), f32(12)], shapes={0: ["batch", 12]}, output_shapes={0: ["batch", 12]}),
        Case("Add", [f32(3, 12), f32(1, 12)], shapes={0: ["batch", 12]}, output_shapes={0: [None, 12]}),
    ]


CASES = [*_unary(), *_broadcast(), *_others()]
