"""ONNX's own operator tests (`onnx.backend.test`), sliced: what ONNX Runtime passes, every rank must pass.

Each runs as it is and with its inputs turned into weights, for 2 and 3 ranks in turn, by the plan that
slicing picks; besides, of every third test with few nodes each option of each node is forced once
(``scripts/sweep.py`` runs all for both, and forces all of them). Tests are dealt out over several of pytest
so that one can be run alone.
"""

import json
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


pytestmark = pytest.mark.usefixtures("quiet")
"""Many tests have nodes whose shapes nobody can know: each would be a warning."""


def _part(number: int) -> Iterator[tuple[str, OperatorTest]]:
    every = [(kind, test) for kind in KINDS for test in operator_tests.load(kind)]
    yield from every[number::PARTS]


@pytest.fixture(scope="session")
def shared(shared_folder: Path) -> Path:
    """A folder for what the parts counted: they may run in different workers of one session of pytest."""
    folder = shared_folder / "operator_tests"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("part", range(PARTS))
def test_operators(tmp_path: Path, part: int, shared: Path) -> None:
    own, counted = Tally(), {kind: Tally() for kind in KINDS}
    for number, (kind, test) in enumerate(_part(part)):
        forced = (2 + number // FORCED_EVERY % 2,) if number % FORCED_EVERY == 0 else ()
        tally = operator_tests.run(test, tmp_path, forced=forced, turn=number)
        own.add(tally)
        counted[kind].add(tally)
    print(own)
    assert not own.failures, "\n".join(own.failures)
    assert own.slicings == own.variants > 2 * own.usable
    whole = tmp_path / "counted.json"
    whole.write_text(json.dumps({kind: [tally.usable, tally.slicings] for kind, tally in counted.items()}))
    whole.rename(shared / f"{part}.json")
    done = [json.loads(path.read_text()) for path in shared.iterdir()]
    if len(done) == PARTS:  # the last one
        check_floors(done)


def check_floors(done: list[dict[str, list[int]]]) -> None:
    """That as many as ever are usable; of each part, how many tests of each kind were, and the slicings."""
    for kind, floor in USABLE.items():
        usable = sum(part[kind][0] for part in done)
        assert usable >= floor, f"{kind}: ONNX Runtime passes {usable}, at least {floor} were expected"
    assert sum(slicings for part in done for _, slicings in part.values()) >= 2 * sum(USABLE.values())


def test_the_floors_can_fail() -> None:
    enough = {kind: [floor, 2 * floor] for kind, floor in USABLE.items()}
    check_floors([enough])
    for kind, (usable, slicings) in enough.items():
        for fewer in ([usable - 1, slicings], [usable, slicings - 1]):
            with pytest.raises(AssertionError):
                check_floors([enough | {kind: fewer}])
