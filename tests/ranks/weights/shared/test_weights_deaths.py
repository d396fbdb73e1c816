"""kill -9 of whoever shares weights, at every step: survivors predict right, and nothing is left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ranks.weights.shared import handle
from tests.left_behind import in_shared_memory, left_in_shared_memory
from tests.ranks.threads import until
from tests.ranks.weights_worker import Refused, Worker, Workers, oracle

pytestmark = pytest.mark.timeout(120)

OWNER_ALONE = ["listening", "built", "serving"]
OWNER_WITH_OTHERS = ["challenged", "admitted"]
OTHER = ["connected", "challenged", "proved", "attached", "loaded"]


@pytest.fixture(autouse=True)
def nothing_left(workers: Workers, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Ends all workers and fails if they left a temporary file or shared memory; so does every test's end.

    Names of sockets need no look: they are gone with the last process that has them.
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    workers.environment = {"TMPDIR": str(temporary)}
    before = in_shared_memory()

    def check() -> None:
        workers.end()
        deadline = time.monotonic() + 30  # the kernel may take a moment to end what a killed process had
        while left := [*left_in_shared_memory(before), *temporary.iterdir()]:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)

    yield check
    check()


def killed_at(step: str, worker: Worker) -> None:
    assert worker.reply() == f"at {step}"
    worker.kill()


@pytest.mark.parametrize("step", OWNER_ALONE)
def test_owner_dies_while_it_builds(step: str, workers: Workers, shared_model: Path) -> None:
    """Whoever waits for the name waits on, and gets the next owner's weights."""
    name = f"{step} {os.getpid()}"
    owner, other, second = (workers.new() for _ in range(3))
    owner.do("stop_at", step=step)
    owner.start("share", path=str(shared_model), name=name, pids=[other.pid])
    if step == "serving":  # it serves already, so nobody must be attached yet
        killed_at(step, owner)
        other.start("attach", given=name, path=str(shared_model), timeout=60)
    else:
        other.start("attach", given=name, path=str(shared_model), timeout=60)
        killed_at(step, owner)
    assert second.do("share", path=str(shared_model), name=name, pids=[other.pid]) == name
    assert other.reply() == "attached"
    assert other.predicts(oracle(shared_model))


@pytest.mark.parametrize("step", OWNER_WITH_OTHERS)
def test_owner_dies_while_another_attaches(step: str, workers: Workers, shared_model: Path) -> None:
    owner, first, second = (workers.new() for _ in range(3))
    number = owner.do("share", path=str(shared_model), pids=[first.pid, second.pid])
    assert first.do("attach", given=number, path=str(shared_model)) == "attached"
    owner.do("stop_at", step=step)
    second.start("attach", given=number, path=str(shared_model))
    killed_at(step, owner)
    found = second.reply()
    if step == "admitted":  # all that it needs was on its way already
        assert found == "attached"
        assert second.predicts(oracle(shared_model))
    else:
        assert isinstance(found, Refused) and found.kind == "WeightsError"
        assert (
            f"process {owner.pid}, the owner of the weights, ended or closed its model meanwhile"
            in found.text
        )
    assert first.predicts(oracle(shared_model))


@pytest.mark.parametrize("step", OTHER)
def test_other_dies_while_it_attaches(step: str, workers: Workers, shared_model: Path) -> None:
    owner, first, second, third = (workers.new() for _ in range(4))
    number = owner.do("share", path=str(shared_model), pids=[first.pid, second.pid, third.pid])
    assert first.do("attach", given=number, path=str(shared_model)) == "attached"
    descriptors = owner.do("descriptors")
    second.do("stop_at", step=step)
    second.start("attach", given=number, path=str(shared_model))
    killed_at(step, second)
    expected = oracle(shared_model)
    assert owner.predicts(expected)
    assert first.predicts(expected)
    assert third.do("attach", given=number, path=str(shared_model)) == "attached"
    assert third.predicts(expected)
    third.kill()
    until(lambda: owner.do("descriptors") <= descriptors)  # the owner has let go of both


def test_survivors_of_the_owner_and_of_one_another(workers: Workers, shared_model: Path) -> None:
    owner, *others = (workers.new() for _ in range(5))
    number = owner.do("share", path=str(shared_model), pids=[worker.pid for worker in others])
    for worker in others:
        assert worker.do("attach", given=number, path=str(shared_model)) == "attached"
    expected = oracle(shared_model)
    others[0].kill()
    assert all(worker.predicts(expected) for worker in (owner, *others[1:]))
    owner.kill()
    while others := others[1:]:
        assert all(worker.predicts(expected) for worker in others)
        # A prepared entry that nobody owns any more is still the same file.
        assert others[0].do("resize", shape=[3, 8]).shape == (3, 4)
        others[0].kill()
    assert handle.address(number).socket_name[1:].decode() not in Path("/proc/net/unix").read_text()


def test_all_die_at_once_in_the_middle(
    workers: Workers, shared_model: Path, nothing_left: Callable[[], None]
) -> None:
    owner, *others = (workers.new() for _ in range(1 + len(OTHER)))
    number = owner.do("share", path=str(shared_model), pids=[worker.pid for worker in others])
    for worker, step in zip(others, OTHER, strict=True):
        worker.do("stop_at", step=step)
        worker.start("attach", given=number, path=str(shared_model))
    for worker, step in zip(others, OTHER, strict=True):
        assert worker.reply() == f"at {step}"
    for worker in (owner, *others):
        worker.process.kill()
    nothing_left()
    again, other = workers.new(), workers.new()  # what they left on the disk is whole
    number = again.do("share", path=str(shared_model), pids=[other.pid])
    assert other.do("attach", given=number, path=str(shared_model)) == "attached"
    assert other.predicts(oracle(shared_model))


def test_prepared_weights_that_are_gone(workers: Workers, shared_model: Path, tmp_path: Path) -> None:
    """Somebody empties the cache folder: those attached go on, the next one is told."""
    import shutil

    cache = tmp_path / "cache"
    owner, first, second = (workers.new(SHARDRUN_CACHE=str(cache)) for _ in range(3))
    number = owner.do("share", path=str(shared_model), pids=[first.pid, second.pid])
    assert first.do("attach", given=number, path=str(shared_model)) == "attached"
    shutil.rmtree(cache)
    assert first.predicts(oracle(shared_model))
    assert owner.predicts(oracle(shared_model))
    found = second.do("attach", given=number, path=str(shared_model))
    assert isinstance(found, Refused)
    assert f"process {owner.pid}, which shares the weights, no longer has those of" in found.text
