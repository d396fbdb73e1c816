"""Stacks of recurrent nodes with their states: what is exchanged, and that the answers are right."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sharding.demands.options import SliceOptions
from sharding.planning.plan import Plan, plan_model
from sharding.writing.write import write_slices
from tests.sharding import graphs, lockstep

HIDDEN, INPUT = 24, 16
LARGE = 256


def stack(path: Path, op: str, layers: int, directions: int, *, states: bool, hidden: int = HIDDEN) -> Path:
    """As torch exports one: each layer takes its states out of one value, and all layers' end in one."""
    gates, cells = {"LSTM": (4, "hc"), "GRU": (3, "h")}[op]
    weights = {"axis": np.array([0], np.int64), "shape": np.array([0, 0, -1], np.int64)}
    lines, value = [], "x"
    way = "bidirectional" if directions > 1 else "forward"
    for layer in range(layers):
        width = INPUT if value == "x" else directions * hidden
        for name, shape in {"w": (gates * hidden, width), "r": (gates * hidden, hidden)}.items():
            weights[f"{name}{layer}"] = graphs.array(directions, *shape, seed=layer)
        weights[f"b{layer}"] = graphs.array(directions, 2 * gates * hidden, seed=layer)
        weights[f"from{layer}"] = np.array([layer * directions], np.int64)
        weights[f"to{layer}"] = np.array([(layer + 1) * directions], np.int64)
        taken = [f"{cell}{layer}" for cell in cells] if states else []
        lines += [f"{name} = Slice({name[0]}_0, from{layer}, to{layer}, axis)" for name in taken]
        ends = ", ".join([f"y{layer}", *(f"{cell}n{layer}" for cell in cells)])
        reads = ", ".join([value, *(f"{name}{layer}" for name in "wrb"), *(['""', *taken] if states else [])])
        lines.append(f'{ends} = {op} <hidden_size = {hidden}, direction = "{way}"> ({reads})')
        lines.append(f"t{layer} = Transpose <perm = [0, 2, 1, 3]> (y{layer})")
        lines.append(f"o{layer} = Reshape(t{layer}, shape)")
        value = f"o{layer}"
    lines.append(f"y = Identity({value})")
    for cell in cells:
        parts = ", ".join(f"{cell}n{layer}" for layer in range(layers))
        lines.append(f"{cell}_n = Concat <axis = 0> ({parts})")
    state = f"float[{layers * directions}, b, {hidden}]"
    fed = [f"float[t, b, {INPUT}] x", *(f"{state} {cell}_0" for cell in cells if states)]
    given = [f"float[t, b, {directions * hidden}] y", *(f"{state} {cell}_n" for cell in cells)]
    text = f"g ({', '.join(fed)}) => ({', '.join(given)}) {{ {' '.join(lines)} }}"
    return graphs.save(path, text, weights)


def checked(path: Path, ranks: int, feeds: dict[str, np.ndarray]) -> Plan:
    """A plan whose slices answer as plain ONNX Runtime does."""
    plan = plan_model(path, ranks, options=SliceOptions(allow_replicated=True))
    folder = path.with_name(f"{path.stem}-{ranks}")
    write_slices(plan, folder)
    session = graphs.session(path)
    expected = dict(zip([item.name for item in session.get_outputs()], session.run(None, feeds), strict=True))
    for found in lockstep.run_slices(folder, feeds):
        for name, right in expected.items():
            np.testing.assert_allclose(found[name], right, rtol=0, atol=1e-5)
    return plan


def inputs(layers: int, directions: int, cells: str, hidden: int = HIDDEN) -> dict[str, np.ndarray]:
    states = {f"{cell}_0": graphs.array(layers * directions, 3, hidden, seed=9) for cell in cells}
    return {"x": graphs.array(5, 3, INPUT, seed=8), **states}


@pytest.mark.parametrize(("op", "cells"), [("LSTM", "hc"), ("GRU", "h")])
@pytest.mark.parametrize("ranks", [2, 4, 6])
@pytest.mark.parametrize("states", [True, False])
def test_directions_of_a_stack(tmp_path: Path, op: str, cells: str, ranks: int, states: bool) -> None:
    """Each layer's result is put together once; states stay on the ranks of their direction, whichever number
    of ranks has one, and where they are no state of the model each is put together once, after all layers."""
    path = stack(tmp_path / "model.onnx", op, layers=3, directions=2, states=states)
    plan = checked(path, ranks, inputs(3, 2, cells if states else ""))
    expected = 3 if states else 3 + len(cells)
    assert Counter(item.op for item in plan.collectives) == {"AllGather": expected}
    assert {item.tensor for item in plan.collectives} >= {"o0", "o1"}


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_stays_whole_is_not_exchanged(tmp_path: Path, ranks: int) -> None:
    """The states of a stack that reads forward could end in parts, but the next step wants them whole."""
    path = stack(tmp_path / "model.onnx", "LSTM", layers=2, directions=1, states=True, hidden=LARGE)
    plan = checked(path, ranks, inputs(2, 1, "hc", LARGE))
    assert plan.collectives == ()
    assert plan.whole == {"LSTM": 2}
