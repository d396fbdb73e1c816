"""Further operators on sequences, along one axis and with indices; recurrent ones with all their options."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from tests.sharding.proof import MICROSOFT, Case, Const
from tests.sharding.rule_cases.arrays import boolean, f32, i64, positive, runtime, scalar, u8, vector

BLOCKS = {24: (2, 3), 36: (3,)}
PARTIAL = {"partial->partial"}

EXTRA: dict[str, Set[str]] = {
    **dict.fromkeys(("Compress", "DFT", "STFT", "TensorScatter"), PARTIAL),
}


def _recurrent() -> list[Case]:
    cases = []
    hidden = 5
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        for direction, count, opset in (
            ("reverse", 1, 9),
            ("bidirectional", 2, 14),
            ("bidirectional", 2, 22),
        ):
            weights = [f32(count, gates * hidden, 6), f32(count, gates * hidden, hidden)]
            biases = [f32(count, 2 * gates * hidden), np.asarray([3, 4, 2, 4] * 3, dtype=np.int32)]
            states = [f32(count, 12, hidden)] * (2 if op == "LSTM" else 1)
            attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction, "clip": 2.0}
            outputs = 3 if op == "LSTM" else 2
            if op == "GRU":
                attributes["linear_before_reset"] = 1
            computed = dict.fromkeys((5, 6)[: len(states)], (None, None, hidden)) if opset == 22 else {}
            inputs = [f32(4, 12, 6), *weights, *biases, *states]
            cases.append(Case(op, inputs, attributes, opset, outputs, shapes=computed))
        weights = [f32(1, gates * hidden, 6), f32(1, gates * hidden, hidden)]
        cases.append(Case(op, [f32(4, 12, 6), *weights], {"hidden_size": hidden}, 14, 2, unused_outputs=(0,)))
    quantized = [
        *(Const(_integers(2, 6, 20)), Const(_integers(2, 5, 20)), f32(2, 40)),
        *(None, f32(2, 3, 5), f32(2, 3, 5), f32(2, 15)),
    ]
    scales = [Const(positive(2) * 0.01), Const(np.zeros(2, np.int8))] * 2
    return [
        *cases,
        Case(
            "DynamicQuantizeLSTM",
            [f32(4, 3, 6), *quantized, *scales],
            {"hidden_size": 5, "direction": "bidirectional"},
            1,
            3,
            MICROSOFT,
        ),
    ]


def _integers(*shape: int) -> np.ndarray[Any, Any]:
    return i64(*shape, low=-99, high=99).astype(np.int8)


def _along() -> list[Case]:
    return [
        Case(
            "ReverseSequence",
            [f32(5, 12, 24), i64(12, low=1, high=5)],
            {"batch_axis": 1, "time_axis": 0},
            10,
            block_counts=BLOCKS,
        ),
        Case("ReverseSequence", [f32(12, 5), i64(12, low=1, high=5)], {"batch_axis": 0, "time_axis": 1}, 10),
        Case("CumProd", [f32(12, 24), scalar(1, np.int64)], {"exclusive": 1}, 26),
        Case(
            "Compress",
            [f32(12, 5, 24), boolean(5) | np.asarray([True] + [False] * 4)],
            {"axis": 1},
            11,
            block_counts=BLOCKS,
        ),
        Case("Compress", [f32(12, 5), boolean(60)], {}, 9),
        Case("Det", [f32(12, 24, 3, 3)], opset=11),
        Case("Det", [f32(12, 3, 3)], opset=22),
        Case("Inverse", [f32(12, 24, 3, 3)], {}, 1, domain=MICROSOFT),
        Case("DFT", [f32(12, 8, 24, 2)], {"axis": 1}, 17, block_counts=BLOCKS),
        Case("DFT", [f32(12, 24, 8, 1), None, scalar(-2, np.int64)], {}, 20),
        Case("DFT", [f32(12, 24, 8, 2)], {"inverse": 1}, 20),
        Case("DFT", [f32(12, 24, 8, 2), None, np.asarray(1)], {}, 20),
        Case(
            "STFT",
            [f32(12, 32, 1), scalar(4, np.int64), positive(8), scalar(8, np.int64)],
            {"onesided": 1},
            17,
        ),
        Case("Trilu", [f32(12, 5, 24), scalar(1, np.int64)], {"upper": 1}, 1, domain=MICROSOFT),
        Case("TopK", [f32(12, 5, 24), vector(3)], {"axis": 1, "largest": 0}, 24, outputs=2),
        Case("TopK", [f32(12, 24)], {"k": 3, "axis": 0}, 9, outputs=2),
        Case("CumSum", [f32(12, 24), np.asarray(1)], {}, 14),
    ]


def _indices() -> list[Case]:
    tuples = np.stack([i64(12, low=0, high=3), i64(12, low=0, high=5)], axis=-1)
    return [
        *(
            Case("Gather", [f32(36, 24), i64(2, 5, low=-36, high=36)], {"axis": 0}, opset)
            for opset in (9, 11, 13)
        ),
        Case("Gather", [u8(36, 24), i64(3, low=0, high=36)], {"axis": 0}, 13),
        Case("GatherND", [f32(3, 5, 24), tuples], {}, 12),
        Case("GatherND", [f32(3, 5, 24), tuples], {}, 1, domain=MICROSOFT, block_counts=BLOCKS),
        Case("Scatter", [f32(12, 24), i64(12, 5, low=0, high=24), f32(12, 5)], {"axis": 1}, 9),
        *(
            Case(
                op,
                [f32(12, 24), i64(12, 5, low=0, high=24), f32(12, 5)],
                {"axis": 1, "reduction": how},
                opset,
            )
            for op, how, opset in (("ScatterElements", "add", 16), ("ScatterElements", "max", 18))
        ),
        *(
            Case(
                "ScatterND",
                [f32(5, 24, 12), np.asarray([[1], [1]]), f32(2, 24, 12)],
                {"reduction": how},
                opset,
            )
            for how, opset in (("add", 16), ("mul", 18), ("min", 18))
        ),
        Case(
            "TensorScatter",
            [f32(12, 24, 8, 5), f32(12, 24, 2, 5), i64(12, low=0, high=6)],
            {},
            24,
            block_counts=BLOCKS,
            needs="1.25",
        ),
        Case("TensorScatter", [f32(12, 8, 5), f32(12, 2, 5)], {"axis": 1}, 24, needs="1.25"),
        *(Case(op, [i64(12, 5)], {"axis": 1}, 12) for op in ("ArgMax", "ArgMin")),
        Case("ArgMax", [f32(12, 5)], {"axis": 1, "select_last_index": 1}, 13),
        Case("OneHot", [i64(12, low=-5, high=5), runtime([5]), Const(f32(2))], {"axis": 0}, 11),
        Case("Tile", [f32(12, 24), runtime([2, 1])]),
        Case("Expand", [i64(1, 12), vector(24, 12)], opset=8),
    ]


CASES = [*_recurrent(), *_along(), *_indices()]
