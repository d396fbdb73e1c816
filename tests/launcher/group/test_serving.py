"""A group that many ask at once: threads, futures, series and coroutines; ranks that die and come again."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from launcher import Group, start
from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.group.requests import PredictError
from tests.launcher import slices
from tests.launcher.processes import Runner, wait_until

pytestmark = pytest.mark.timeout(180)
SECONDS = 60.0
Feeds = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module", params=["local", "mpirun"])
def group(request: pytest.FixtureRequest, two_slices: Path) -> Iterator[Group]:
    """A group that the tests share: each must leave it usable."""
    with start(two_slices, ranks=2, launcher=request.param, threads=1) as group:
        yield group


@pytest.fixture(scope="module")
def whole(two_slices: Path) -> onnxruntime.InferenceSession:
    """The unsliced model in plain ONNX Runtime."""
    return onnxruntime.InferenceSession(two_slices / "whole.onnx", providers=["CPUExecutionProvider"])


def feeds(seed: int, rows: int = 3) -> Feeds:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((rows, 4)).astype(np.float32),
        "index": rng.integers(0, slices.ROWS, rows),
    }


def right(whole: onnxruntime.InferenceSession, asked: Feeds, outputs: Any) -> bool:
    return bool(np.allclose(outputs["y"], whole.run(None, asked)[0], atol=1e-5))


def bad() -> Feeds:
    return {**feeds(0), "index": np.full(3, slices.ROWS + 7)}


def test_answers_of_many_threads_are_not_mixed_up(group: Group, whole: onnxruntime.InferenceSession) -> None:
    """Small ones through the socket, large ones through shared memory, bad ones among them."""
    wrong: list[object] = []

    def work(seed: int) -> None:
        for turn in range(12):
            asked = feeds(seed * 100 + turn, (3, 3000, 40_000)[(seed + turn) % 3])
            try:
                if not right(whole, asked, group.predict(asked)):
                    wrong.append(seed)
                if turn % 4 == seed % 4:
                    with pytest.raises(PredictError, match="out of"):
                        group.predict(bad())
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_futures(group: Group, whole: onnxruntime.InferenceSession) -> None:
    asked = [feeds(seed, 1 + seed * 700) for seed in range(12)]
    before = threading.active_count()
    futures = [group.submit(item) for item in asked]
    assert threading.active_count() <= before + 1  # no thread for each
    failing = group.submit(bad())
    assert not wait([*futures, failing], SECONDS).not_done
    assert all(right(whole, item, future.result()) for item, future in zip(asked, futures, strict=True))
    assert isinstance(failing.exception(), PredictError)
    with pytest.raises(ShardrunError, match="Input 'index' is missing"):
        group.submit({"x": asked[0]["x"]})


def test_a_series_is_in_order_and_reads_little_ahead(
    group: Group, whole: onnxruntime.InferenceSession
) -> None:
    read = 0

    def endless() -> Iterator[Feeds]:
        nonlocal read
        for seed in itertools.count():
            read += 1
            yield feeds(seed)

    series = group.map(endless(), ahead=3)
    assert read == 0
    for seed, outputs in enumerate(itertools.islice(series, 10)):
        assert right(whole, feeds(seed), outputs) and read <= seed + 1 + 3
    series.close()  # type: ignore[attr-defined]  # a generator
    assert right(whole, feeds(1), group.predict(feeds(1)))


def test_what_is_wrong_in_a_series_is_said_in_its_place(
    group: Group, whole: onnxruntime.InferenceSession
) -> None:
    source = [feeds(0), bad(), {"x": np.zeros((1, 4), np.float32)}, feeds(3)]
    found = list(group.map(source, return_errors=True))
    assert right(whole, source[0], found[0]) and right(whole, source[3], found[3])
    assert isinstance(found[1], PredictError) and "is missing" in str(found[2])
    taken = []
    with pytest.raises(PredictError, match="out of"):
        taken.extend(group.map(source))
    assert len(taken) <= 1

    def breaks() -> Iterator[Feeds]:
        yield feeds(0)
        yield feeds(1)
        raise OSError("no more files")

    found = []
    with pytest.raises(OSError, match="no more files"):
        for outputs in group.map(breaks()):
            found.append(outputs)
    assert len(found) == 2
    for ahead in (0, -1, True, "2", 5000):
        with pytest.raises(ConfigError, match="ahead: expected a whole number from 1 to 4096"):
            group.map([], ahead=ahead)  # type: ignore[arg-type]  # on purpose


def test_in_an_event_loop(group: Group, whole: onnxruntime.InferenceSession) -> None:
    async def source() -> AsyncIterator[Feeds]:
        for seed in range(7):
            await asyncio.sleep(0)
            yield feeds(seed)

    async def work() -> None:
        asked = [feeds(seed) for seed in range(40)]
        before = threading.active_count()
        several = asyncio.gather(*(group.predict_async(item) for item in asked), return_exceptions=True)
        failing = asyncio.gather(group.predict_async(bad()), return_exceptions=True)
        assert threading.active_count() <= before + 1
        assert all(right(whole, item, outputs) for item, outputs in zip(asked, await several, strict=True))
        assert isinstance((await failing)[0], PredictError)
        place = 0
        async for outputs in group.map_async(source(), ahead=2):
            assert right(whole, feeds(place), outputs)
            place += 1
        assert place == 7
        found = [item async for item in group.map_async([feeds(0), bad()], return_errors=True)]
        assert right(whole, feeds(0), found[0]) and isinstance(found[1], PredictError)
        tasks = [asyncio.create_task(group.predict_async(feeds(seed, 20_000))) for seed in range(12)]
        await asyncio.sleep(0)
        for task in tasks[1::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(item, asyncio.CancelledError) for item in done[1::2])
        assert all(right(whole, feeds(2 * at, 20_000), item) for at, item in enumerate(done[::2]))

    asyncio.run(asyncio.wait_for(work(), SECONDS))
    assert right(whole, feeds(1), group.predict(feeds(1)))


def test_a_group_that_is_closed_or_forgotten_keeps_nobody_waiting(two_slices: Path) -> None:
    group = start(two_slices, launcher="local", threads=1)
    os.kill(group.stats[0].pid, signal.SIGSTOP)
    futures = [group.submit(feeds(seed)) for seed in range(8)]
    assert group.state == "ready"
    group.close()
    assert group.state == "closed"
    assert {str(future.exception(SECONDS)) for future in futures} == {
        "This group was closed: start another one."
    }
    with pytest.raises(LaunchError, match="closed"):
        group.submit(feeds(0))
    group = start(two_slices, launcher="local", threads=1)
    pids = [stats.pid for stats in group.stats]
    os.kill(pids[0], signal.SIGSTOP)
    future = group.submit(feeds(0))
    del group
    gc.collect()
    assert isinstance(future.exception(SECONDS), LaunchError)
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)


@pytest.fixture
def lasting(two_slices: Path) -> Iterator[Group]:
    with start(two_slices, launcher="local", threads=1, restart="on-failure:3") as group:
        yield group


def test_without_restart_all_hear_the_first_cause(two_slices: Path) -> None:
    with start(two_slices, launcher="local", threads=1) as group:
        futures = [group.submit(feeds(seed, 2000)) for seed in range(20)]
        os.kill(group.stats[1].pid, signal.SIGKILL)
        errors = [future.exception(SECONDS) for future in futures]
        found = [error for error in errors if error is not None]
        assert found and all("rank 1 on host" in str(e) and "SIGKILL" in str(e) for e in found)
        assert len({id(error) for error in found}) == len(found) and group.state == "failed"


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_die_come_again(
    lasting: Group, whole: onnxruntime.InferenceSession, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is asked meanwhile is answered, and rightly; idle ranks that die are noticed, too."""
    before = {stats.pid for stats in lasting.stats}
    asked = [feeds(seed, 1500) for seed in range(60)]
    futures: list[Future[Any]] = []
    for place, item in enumerate(asked):
        futures.append(lasting.submit(item))
        if place == 20:
            os.kill(lasting.stats[rank].pid, signal.SIGKILL)
    for item, future in zip(asked, futures, strict=True):
        assert right(whole, item, future.result(SECONDS))
    assert lasting.restarts == 1 and lasting.age == 1 and lasting.state == "ready"
    assert not before & {stats.pid for stats in lasting.stats}
    assert (
        f"rank {rank} on host" in caplog.text and "the ranks are started again (1 of at most 3" in caplog.text
    )
    os.kill(lasting.stats[rank].pid, signal.SIGKILL)
    assert wait_until(lambda: lasting.age == 2, SECONDS)
    assert right(whole, feeds(5), lasting.predict(feeds(5)))


def test_a_request_that_ranks_die_over_twice_fails(
    lasting: Group, whole: onnxruntime.InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the cause; what was asked beside it is answered."""
    second: list[int] = []
    attach = lasting._requests.attach

    def stopped(job: Any) -> None:
        if not second:
            os.kill(job.pid(1), signal.SIGSTOP)  # the request reaches it, and it dies over it
            second.append(job.pid(1))
        attach(job)

    monkeypatch.setattr(lasting._requests, "attach", stopped)
    os.kill(lasting.stats[1].pid, signal.SIGSTOP)
    poison, other = lasting.submit(feeds(0)), lasting.submit(feeds(1))
    os.kill(lasting.stats[1].pid, signal.SIGKILL)
    assert wait_until(lambda: lasting.age == 1, SECONDS)
    os.kill(second[0], signal.SIGKILL)
    error = poison.exception(SECONDS)
    assert isinstance(error, RankFailedError) and error.rank == 1 and "SIGKILL" in str(error)
    assert right(whole, feeds(1), other.result(SECONDS)) and lasting.restarts == 2


def test_ranks_that_cannot_come_again_end_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.group.serving.crew.pause", lambda number: 0.01)
    folder = slices.make_slices(tmp_path / "slices")
    with start(folder, launcher="local", threads=1, restart="on-failure:2") as group:
        (folder / "rank_1.onnx").write_bytes(b"")
        os.kill(group.stats[1].pid, signal.SIGSTOP)
        future = group.submit(feeds(0))
        os.kill(group.stats[0].pid, signal.SIGKILL)
        error = future.exception(SECONDS)
        assert error is not None and "rank_1.onnx" in str(error)
        assert group.state == "failed"
        with pytest.raises(ShardrunError, match=r"rank_1\.onnx"):
            group.predict(feeds(1))


def test_closed_in_the_middle_of_a_restart(two_slices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in (30.0, 0.0):  # while it pauses, and while ranks start
        monkeypatch.setattr("launcher.group.serving.crew.pause", lambda number, seconds=seconds: seconds)
        group = start(two_slices, launcher="local", threads=1, restart="on-failure")
        os.kill(group.stats[0].pid, signal.SIGKILL)
        assert wait_until(lambda group=group: group.state == "restarting", 10)
        future = group.submit(feeds(0))
        group.close()
        assert isinstance(future.exception(10), ShardrunError) and group.state == "closed"
        assert not any(
            thread.name == "shardrun restart" and thread.is_alive() for thread in threading.enumerate()
        )


def test_sessions_end_with_their_ranks(tmp_path: Path) -> None:
    from tests.launcher.generation import tiny

    tiny.save_folder(tmp_path / "llama")
    model = tmp_path / "llama" / "model.onnx"
    with start(model, ranks=1, launcher="local", threads=1, restart="on-failure") as group:
        session = group.session()
        first = session.predict({"input_ids": np.array([[5, 6, 7]])})["logits"]
        os.kill(group.stats[0].pid, signal.SIGKILL)
        with pytest.raises(RankFailedError, match="killed by SIGKILL"):
            session.predict({"input_ids": np.array([[8]])})
        group.session().close()  # waits for other ranks
        assert group.age == 1
        with pytest.raises(RankFailedError, match="killed by SIGKILL"):
            session.predict({"input_ids": np.array([[8]])})
        session.close()
        with group.session() as other:
            again = other.predict({"input_ids": np.array([[5, 6, 7]])})["logits"]
        assert np.array_equal(first, again)


def test_a_language_model_goes_on(tmp_path: Path) -> None:
    from launcher import load_language_model
    from tests.launcher.generation import tiny

    tiny.save_folder(tmp_path / "llama")
    plain = tiny.Plain(tmp_path / "llama" / "model.onnx")
    with load_language_model(
        tmp_path / "llama", ranks=1, launcher="local", threads=1, restart="on-failure"
    ) as model:
        want = {first: plain.greedy([first, 6], 6) for first in (5, 9, 11)}
        assert model.generate([5, 6], max_new_tokens=6, ignore_eos=True).ids == want[5]
        old = model.decoder.sequence()
        old.step(np.array([5, 6]))
        group = model.decoder._group  # type: ignore[attr-defined]  # to find its ranks
        os.kill(group.stats[0].pid, signal.SIGKILL)
        with pytest.raises(RankFailedError, match="killed by SIGKILL"):
            old.step(np.array([7]))
        with model.engine(sequences=2) as engine:
            streams = [engine.submit([first, 6], max_new_tokens=6, ignore_eos=True) for first in want]
            assert [stream.finish()[0].ids for stream in streams] == list(want.values())
        with pytest.raises(ShardrunError, match="lost with its ranks"):
            model.decoder.step_many([old, old], np.array([1, 2]))
        old.close()
        assert group.age == 1


def test_a_given_model_is_there_for_ranks_that_come_later(two_slices: Path) -> None:
    model = (two_slices / "whole.onnx").read_bytes()
    with start(model, ranks=1, launcher="local", threads=1, restart="on-failure") as group:
        os.kill(group.stats[0].pid, signal.SIGKILL)
        assert wait_until(lambda: group.age == 1, SECONDS)
        assert group.predict(feeds(0))["y"].shape == (3, 3)


def test_wrong_restart(two_slices: Path) -> None:
    with pytest.raises(ConfigError, match="restart: expected never, on-failure or on-failure:N"):
        start(two_slices, launcher="local", restart="always")


def test_nothing_is_started_again_at_the_end_of_a_program(run_script: Runner, two_slices: Path) -> None:
    script = run_script(
        """
        import sys
        from launcher import start
        from tests.launcher import slices
        group = start(sys.argv[1], launcher="local", restart="on-failure")
        future = group.submit(slices.feeds())
        print(list(future.result(60)["y"].shape), flush=True)
        """,
        str(two_slices),
    )
    assert script.message() == [5, 3]
    assert script.end(within=30)[:1] == (0,)


def test_pauses_grow_also_where_ranks_answer_in_between(
    lasting: Group, whole: onnxruntime.InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks what kills ranks, and now and then something else, does not have them started without end."""
    asked: list[int] = []
    monkeypatch.setattr("launcher.group.serving.crew.pause", lambda number: asked.append(number) or 0.01)
    for turn in range(4):  # more than may be in a row
        os.kill(lasting.stats[turn % 2].pid, signal.SIGKILL)
        assert wait_until(lambda turn=turn: lasting.age == turn + 1, SECONDS)
        assert right(whole, feeds(turn), lasting.predict(feeds(turn)))
    assert asked == [1, 2, 3, 4]
    monkeypatch.setattr("launcher.group.serving.crew.CALM_SECONDS", 0.0)
    os.kill(lasting.stats[0].pid, signal.SIGKILL)
    assert wait_until(lambda: lasting.age == 5, SECONDS)
    assert asked[-1] == 1
