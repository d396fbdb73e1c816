"""Parts that a value is known to have, weights that count, and states that a step takes as they are held."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import onnx_ir as ir
import pytest

from sharding.rules.base import Option
from sharding.search import states
from sharding.search.problem import counted_weights
from sharding.search.randomness import draws
from sharding.search.steps import fits
from sharding.slices.placement import PARTIAL, REPLICATED, Placement, Split


def value(shape: list[Any] | None, *, typed: bool = True) -> ir.Value:
    found = ir.Value(name="v", shape=None if shape is None else ir.Shape(shape))
    found.type = ir.TensorType(ir.DataType.FLOAT) if typed else None
    return found


@pytest.mark.parametrize(
    ("placement", "given", "world", "fit"),
    [
        (Split(0), value([4, 6]), 4, True),
        (Split(1), value([4, 6]), 4, False),
        (Split(1, 3), value([4, 6]), 2, True),
        (Split(0, 4), value([4, 6]), 2, False),
        (Split(1, 1, 2), value([4, 6]), 4, True),
        (Split(1, 1, 2), value([4, 6]), 3, False),
        (Split(2), value([4, 6]), 2, False),
        (Split(0), value(["n", 6]), 2, False),
        (Split(0), value([0, 6]), 2, False),
        (Split(0), value(None), 2, False),
        (PARTIAL, value(["n", 6]), 2, True),
        (PARTIAL, value(None), 2, False),
        (PARTIAL, value([4, 6], typed=False), 2, False),
        (PARTIAL, None, 2, False),
        (REPLICATED, value(["n"]), 2, True),
    ],
)
def test_what_has_such_parts(placement: Placement, given: ir.Value | None, world: int, fit: bool) -> None:
    assert fits(placement, given, world) is fit


@pytest.mark.parametrize(
    ("shapes", "counted"),
    [
        ({"table": (100, 100), "bias": (100,)}, {"table"}),
        ({"bias": (4000,), "gate": (3, 3)}, set()),  # all that is no vector is little
        ({"bias": (4000,), "gate": (3, 3), "table": (100, 100)}, {"table"}),
        ({"bias": (4000,), **{f"gate{i}": (3, 3) for i in range(9)}}, {f"gate{i}" for i in range(9)}),
        ({"bias": (1 << 18,)}, {"bias"}),  # a vector of 1 MiB is no small one
        ({}, set()),
    ],
)
def test_weights_that_count(shapes: dict[str, tuple[int, ...]], counted: set[str]) -> None:
    """All but a hundredth of the bytes, the small ones first; those of one size together."""
    weights = {
        name: SimpleNamespace(name=name, dtype="float32", shape=shape, nbytes=4 * math.prod(shape))
        for name, shape in shapes.items()
    }
    source: Any = SimpleNamespace(weights=weights)
    assert counted_weights(source) == counted


def test_a_step_takes_a_state_as_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing else changes by that."""
    other = value([4])
    state = SimpleNamespace(name="s", is_graph_input=lambda: True)
    same = Option((Split(1), REPLICATED), (REPLICATED,))
    options = [
        Option((REPLICATED, REPLICATED), (REPLICATED,)),
        Option((Split(1), Split(0)), (REPLICATED,)),
        Option((Split(1), REPLICATED), (Split(0),)),
        Option((Split(0), REPLICATED), (REPLICATED,)),
    ]
    source: Any = SimpleNamespace(state=["a pair"])
    monkeypatch.setattr(states, "place", lambda *_: {"s": Split(1)})
    for more, world, found in (([same], 2, [4]), ([], 2, [0]), ([same], 1, [0])):
        step: Any = SimpleNamespace(inputs=(state, other), options=[*options, *more])
        assert states.settle(source, [step], [0], world) == found
    step.options[:] = [same]
    assert states.settle(source, [step], [0], 2) == [0]
    none: Any = SimpleNamespace(state=[])
    assert states.settle(none, [step], [0], 2) == [0]


@pytest.mark.parametrize(
    ("op_type", "training", "seed", "drawn"),
    [
        ("Dropout", None, None, False),
        ("Dropout", [False], None, False),
        ("Dropout", [True], None, True),
        ("Dropout", [], None, True),  # only a run tells
        ("Dropout", [True], 3.0, False),
        ("RandomNormal", None, None, True),
        ("RandomNormal", None, 3.0, False),
        ("Relu", None, None, False),
    ],
)
def test_what_draws_numbers_of_its_own(
    op_type: str, training: list[bool] | None, seed: float | None, drawn: bool
) -> None:
    """Without a seed each rank would draw others."""
    inputs = [ir.Value(name="x"), ir.Value(name="ratio")]
    if training is not None:
        inputs.append(ir.Value(name="training", const_value=ir.tensor(training[0]) if training else None))
    attributes = [] if seed is None else [ir.AttrFloat32("seed", seed)]
    assert draws(ir.Node("", op_type, inputs, attributes), {}) is drawn
