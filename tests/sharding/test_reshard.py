"""Every way from one placement to another, run on real data: the whole value must come back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharding
from sharding.placement import PARTIAL, REPLICATED, Placement, Split
from sharding.reshard import reshard
from sharding.rules.base import Option
from sharding.values import shape_of
from sharding.write import write_slices
from tests.sharding import graphs, lockstep

PLACES: list[Placement] = [REPLICATED, Split(1), Split(2), Split(1, 2), Split(2, 3), Split(1, 3)]
COLLECTIVE = {
    ("whole", "whole"): [],
    ("whole", "split"): [],
    ("sum", "whole"): ["AllReduce"],
    ("sum", "split"): ["AllReduce"],
    ("split", "whole"): ["AllGather"],
}


def _kind(placement: Placement) -> str:
    return "split" if isinstance(placement, Split) else "sum" if placement == PARTIAL else "whole"


@pytest.mark.parametrize("opset", [9, 18])
@pytest.mark.parametrize("target", PLACES, ids=str)
@pytest.mark.parametrize("source", [*PLACES, PARTIAL], ids=str)
@pytest.mark.parametrize("ranks", [2, 3])
def test_reshard(tmp_path: Path, source: Placement, target: Placement, ranks: int, opset: int) -> None:
    text = (
        "g (float[n, 36, 36] x) => (float[n, 36, 36] y) { a = Identity(x) b = Identity(a) y = Identity(b) }"
    )
    path = graphs.save(tmp_path / "model.onnx", text, {}, opset=opset)
    plan = sharding.plan_model(path, ranks, allow_replicated=True)
    first, second, _ = plan.steps

    def place(e: Any, values: Any) -> list[Any]:
        if source == PARTIAL:
            share = np.asarray(1 / 2 if e.rank == 0 else 1 / (2 * (ranks - 1)), np.float32)
            return e.op("Mul", [values[0], e.constant(share)])
        copy = e.copy(values)[0]
        return [reshard(e, copy, REPLICATED, source, shape_of(first.node.outputs[0]) or ())]

    first.options = [Option((REPLICATED,), (source,), place)]
    second.options = [Option((target,), (target,))]
    write_slices(replace(plan, choices=[0, 0, 0]), tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 36, 36)}, 1e-6)

    kept = target if isinstance(target, Split) else REPLICATED
    expected = list(COLLECTIVE.get((_kind(source), _kind(target)), []))
    if isinstance(source, Split) and isinstance(target, Split) and source != target:
        expected = ["AllToAll" if source.axis != target.axis else "AllGather"]
    if isinstance(kept, Split):
        expected.append("AllGather")
    assert lockstep.collectives(tmp_path / "slices") == expected
