"""ONNX's own operator tests (`onnx.backend.test`), sliced: what ONNX Runtime passes, every rank must pass.

Each runs for 2 and 3 ranks as it is and with its inputs turned into weights, by the plan that slicing picks;
besides, of every third test with few nodes each option of each node is forced once (``scripts/sweep.py``
forces all of them). Tests are dealt out over several pytest tests so that one can be run alone.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.releases import INSTALLED
from tests.sharding import operator_tests
from tests.sharding.operator_tests import KINDS, OperatorTest, Tally

PARTS = 6
FORCED_EVERY = 3
NODES = {(1, 23): 1220, (1, 24): 1250}
"""The floor for tests of single nodes, from each of these releases of ONNX Runtime on."""

USABLE = {
    "node": max(floor for first, floor in NODES.items() if first <= INSTALLED),
    "simple": 15,
    "pytorch-converted": 55,
    "pytorch-operator": 22,
}
"""At least so many of a kind must be passed by plain ONNX Runtime, lest this test shrinks unseen: releases of
onnx add tests and releases of ONNX Runtime operators (onnx 1.23 and ONNX Runtime 1.31: 1429, 17, 59, 24; with
ONNX Runtime 1.23: 1233 of the first)."""

counted: dict[str, Tally] = {kind: Tally() for kind in KINDS}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Many tests have nodes whose shapes nobody can know: each would be a warning."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def _part(number: int) -> Iterator[tuple[str, OperatorTest]]:
    every = [(kind, test) for kind in KINDS for test in operator_tests.load(kind)]
    yield from every[number::PARTS]


@pytest.mark.parametrize("part", range(PARTS))
def test_operators(tmp_path: Path, part: int) -> None:
    own = Tally()
    for number, (kind, test) in enumerate(_part(part)):
        forced = (2 + number // FORCED_EVERY % 2,) if number % FORCED_EVERY == 0 else ()
        tally = operator_tests.run(test, tmp_path, forced=forced)
        own.add(tally)
        counted[kind].add(tally)
    print(own)
    assert not own.failures, "\n".join(own.failures)
    assert own.slicings >= 2 * own.variants > 2 * own.usable


def test_as_many_as_ever_are_usable() -> None:
    """Counts what the tests before have run."""
    known = sum(len(operator_tests.load(kind)) for kind in KINDS)
    done = sum(tally.known for tally in counted.values())
    if done < known:
        pytest.skip(f"only {done} of {known} operator tests were run before this one")
    for kind, tally in counted.items():
        print(f"{kind}: {tally}")
        assert tally.usable >= USABLE[kind], f"{kind}: ONNX Runtime passes {tally.usable} of {tally.known}"
    total = sum(tally.slicings for tally in counted.values())
    assert total >= 4 * sum(USABLE.values())
