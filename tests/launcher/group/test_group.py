"""A group of ranks from Python: answers, refusals, and how it ends."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from launcher import Group, start
from launcher.errors import ConfigError, LaunchError, RankFailedError, RankTableError, ShardrunError
from launcher.group.requests import PredictError
from launcher.job.places.placement import Placement
from launcher.job.rank_table import make_rank_table
from sharding.common import limits
from sharding.common.ranges import parse_ranges
from tests.launcher import slices
from tests.launcher.processes import ROOT, Runner, wait_until
from tests.left_behind import left_open, open_descriptors


@pytest.fixture(scope="module", params=["local", "mpirun"])
def group(request: pytest.FixtureRequest, two_slices: Path) -> Iterator[Group]:
    """A group that the tests of this module share: each must leave it usable."""
    with start(two_slices, ranks=2, launcher=request.param, threads=1) as group:
        yield group


def expected(folder: Path, feeds: dict[str, Any]) -> np.ndarray[Any, Any]:
    """What plain ONNX Runtime answers for the whole model."""
    session = onnxruntime.InferenceSession(folder / "whole.onnx", providers=["CPUExecutionProvider"])
    result: np.ndarray[Any, Any] = session.run(None, feeds)[0]
    return result


def test_a_target_that_is_not_there_is_the_cause(two_slices: Path) -> None:
    if "CANNExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has the Ascend provider, so the target may be there")
    with pytest.raises(RankFailedError, match=r"(?s)^rank \d on host .*'ascend' cannot be served here.*CANN"):
        start(two_slices, launcher="local", target="ascend")
    with pytest.raises(ConfigError, match="no target 'tpu': expected one of cpu, gpu, ascend"):
        start(two_slices, launcher="local", target="tpu")


@pytest.mark.parametrize("batch", [1, 5, 0, 3000, 200_000])
def test_equals_the_whole_model(group: Group, two_slices: Path, batch: int) -> None:
    # 3000 rows fill more than the first broadcast, 200000 more than any socket buffer.
    feeds = slices.feeds(batch)
    outputs = group.predict(feeds)
    assert list(outputs) == ["y"]
    want = expected(two_slices, feeds)
    assert outputs["y"].dtype == want.dtype and outputs["y"].shape == want.shape
    assert np.abs(outputs["y"] - want).max(initial=0) <= 1e-5 * np.abs(want).max(initial=1)


def test_outputs_belong_to_the_caller(group: Group, two_slices: Path) -> None:
    feeds = [slices.feeds(300), {name: array[::-1] for name, array in slices.feeds(300).items()}]
    first, second = (group.predict(item)["y"] for item in feeds)
    assert np.allclose(first, expected(two_slices, feeds[0]), atol=1e-4)
    assert np.allclose(second, first[::-1], atol=1e-5)
    first[...] = 0


def interrupt_soon() -> None:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_the_group_usable(group: Group, two_slices: Path, times: int) -> None:
    """As in a notebook. The answer that nobody waits for any more is not taken for the next one."""
    before, after = slices.feeds(3000), slices.feeds(7)
    stopped = group.stats[1].pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        for _ in range(times):  # the second is interrupted while it waits for the first one's answer
            interrupt_soon()
            with pytest.raises(KeyboardInterrupt):
                group.predict(before)
    finally:
        os.kill(stopped, signal.SIGCONT)
    for feeds in (after, before):
        assert np.allclose(group.predict(feeds)["y"], expected(two_slices, feeds), atol=1e-4)


def test_ctrl_c_while_a_request_is_sent(
    group: Group, two_slices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks get it or none, so that they stay in step."""
    send, sent = group._job.send, []

    def interrupted(rank: int, *arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        sent.append(rank)
        send(rank, *arguments)

    monkeypatch.setattr(group._job, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        group.predict(slices.feeds(3000))
    assert sent == [0, 1]
    monkeypatch.undo()
    feeds = slices.feeds(5)
    assert np.allclose(group.predict(feeds)["y"], expected(two_slices, feeds), atol=1e-4)


def test_ctrl_c_before_inputs_that_cannot_be_computed(group: Group, two_slices: Path) -> None:
    """The interrupted request fails on all ranks, which is nobody's error any more."""
    bad = slices.feeds(4)
    bad["index"] = bad["index"] + 1000
    stopped = group.stats[0].pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            group.predict(bad)
    finally:
        os.kill(stopped, signal.SIGCONT)
    feeds = slices.feeds(4)
    assert np.allclose(group.predict(feeds)["y"], expected(two_slices, feeds), atol=1e-4)


def test_what_it_says_of_itself(group: Group) -> None:
    assert [(s.name, str(s.dtype), s.shape) for s in group.inputs] == [
        ("x", "float32", ("batch", 4)),
        ("index", "int64", ("batch",)),
    ]
    assert [spec.name for spec in group.outputs] == ["y"]
    assert [stats.rank for stats in group.stats] == [0, 1]
    assert {stats.collectives for stats in group.stats} == {1}
    assert all(stats.weight_bytes > 0 and stats.host == os.uname().nodename for stats in group.stats)
    assert len({stats.pid for stats in group.stats}) == 2
    assert group.communication_seconds >= 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, "Input 'x' is missing"),
        ({"z": np.zeros(1)}, "no input 'z'"),
        ({"x": np.zeros((5, 4))}, "float32"),
        ({"x": np.zeros((5, 3), np.float32)}, "Axis 1 of input 'x' must have length 4"),
        ({"x": np.zeros(5, np.float32)}, "Input 'x' must have 2 axes"),
        ({"x": [[1.0]]}, "must be a numpy array"),
    ],
)
def test_refused_inputs_do_no_harm(
    group: Group, two_slices: Path, change: dict[str, Any], message: str
) -> None:
    feeds = {name: value for name, value in {**slices.feeds(), **change}.items() if value is not None}
    with pytest.raises(ShardrunError, match=message):
        group.predict(feeds)
    assert np.allclose(group.predict(slices.feeds())["y"], expected(two_slices, slices.feeds()), atol=1e-5)


def test_an_index_out_of_range_does_no_harm(group: Group, two_slices: Path) -> None:
    bad = slices.feeds()
    bad["index"] = np.full(5, slices.ROWS + 7)
    with pytest.raises(PredictError, match="out of"):
        group.predict(bad)
    assert np.allclose(group.predict(slices.feeds())["y"], expected(two_slices, slices.feeds()), atol=1e-5)


def test_threads_take_turns(group: Group, two_slices: Path) -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            feeds = {**slices.feeds(), "x": rng.standard_normal((5, 4)).astype(np.float32)}
            try:
                if not np.allclose(group.predict(feeds)["y"], expected(two_slices, feeds), atol=1e-5):
                    wrong.append(seed)
            except ShardrunError as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_ranks_use_every_core_and_share_none(group: Group) -> None:
    # Open MPI by itself binds each of two ranks to one core, and Intel MPI too.
    held = [os.sched_getaffinity(stats.pid) for stats in group.stats]
    assert set.union(*held) == os.sched_getaffinity(0)
    if limits.processors() > 1:
        assert not set.intersection(*held)
    assert [parse_ranges(stats.cpus) for stats in group.stats] == [sorted(cpus) for cpus in held]


def test_unbound_ranks_may_use_every_core(two_slices: Path, launcher: str) -> None:
    with start(two_slices, launcher=launcher, placement=Placement(bind="none")) as group:
        for stats in group.stats:
            assert os.sched_getaffinity(stats.pid) == os.sched_getaffinity(0)


def test_secret_is_on_no_command_line_and_inherited_by_nobody_else(group: Group) -> None:
    secret = group._job._listener.secret
    assert secret not in os.environ.values()
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # a process may end meanwhile
            lines.append(path.read_bytes())
    assert not any(secret.encode() in line for line in lines)


def held(pid: int) -> set[Path]:
    """What the descriptors of a process are."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is closing what it has
            found.add(link.readlink())
    return found


def test_a_forked_child_does_not_hold_the_ranks(two_slices: Path, launcher: str) -> None:
    with start(two_slices, launcher=launcher) as group:
        pid = os.fork()
        if pid == 0:
            try:
                signal.pause()
            finally:
                os._exit(0)
        try:
            assert group.predict(slices.feeds())["y"].shape == (5, 3)
            descriptors = [peer.stream.socket.fileno() for peer in group._job._peers.values()]
            ours = {Path(f"/proc/self/fd/{number}").readlink() for number in descriptors}
            assert len(ours) == 2
            # A child that has not had the processor yet has closed nothing.
            assert wait_until(lambda: not ours & held(pid), 30)
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def test_started_from_a_thread_that_ends(two_slices: Path, launcher: str) -> None:
    made: list[Group] = []
    thread = threading.Thread(target=lambda: made.append(start(two_slices, launcher=launcher)))
    thread.start()
    thread.join(120)
    with made[0] as group:
        assert group.predict(slices.feeds())["y"].shape == (5, 3)


def test_closed(two_slices: Path) -> None:
    group = start(two_slices, launcher="local")
    pids = [stats.pid for stats in group.stats]
    group.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    group.close()
    with pytest.raises(LaunchError, match="closed"):
        group.predict(slices.feeds())
    # As of a thread that had looked before it was closed.
    with pytest.raises(LaunchError, match="This group was closed"):
        group._requests.predict(slices.feeds(), {})


def test_forgotten(two_slices: Path) -> None:
    group = start(two_slices, launcher="local")
    pids = [stats.pid for stats in group.stats]
    del group
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 5)


@pytest.mark.parametrize(("launcher", "ranks"), [("local", 4), ("mpirun", 3)])
def test_more_ranks_than_cores(tmp_path: Path, launcher: str, ranks: int) -> None:
    folder = slices.make_slices(tmp_path / "slices", ranks)
    with start(folder, launcher=launcher, threads=1) as group:
        assert np.allclose(group.predict(slices.feeds())["y"], expected(folder, slices.feeds()), atol=1e-5)


def test_one_rank_runs_a_plain_model(two_slices: Path, launcher: str) -> None:
    with start(two_slices / "whole.onnx", ranks=1, launcher=launcher) as group:
        want = expected(two_slices, slices.feeds())
        assert np.allclose(group.predict(slices.feeds())["y"], want, atol=1e-6)


def test_rank_table_of_one_host(two_slices: Path, launcher: str) -> None:
    table = make_rank_table([("localhost", 2)])
    with start(two_slices, rank_table=table, launcher=launcher) as group:
        assert len(group.stats) == 2


@pytest.mark.new_ranks
def test_the_environments_time_out_counts(two_slices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_TIMEOUT", "0.001")
    with pytest.raises(LaunchError, match=r"not ready within 0.001 s; nothing was heard of ranks 0, 1"):
        start(two_slices)
    monkeypatch.setenv("SHARDRUN_TIMEOUT", "soon")
    with pytest.raises(ShardrunError, match=r"SHARDRUN_TIMEOUT must be .*'soon'"):
        start(two_slices)


def test_a_launcher_around_us_has_its_own_port(two_slices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(LaunchError, match="is taken by another program"):
            start(two_slices, ranks=2)
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        with start(two_slices, ranks=2, launcher="local", collectives="gloo") as group:
            assert group.predict(slices.feeds())["y"].shape == (5, 3)


DAEMON = """
    import multiprocessing, sys
    from launcher import start
    from launcher.errors import ShardrunError
    from tests.launcher import slices

    def work():
        try:
            with start(sys.argv[1], launcher=sys.argv[2]) as group:
                print(group.predict(slices.feeds())["y"].shape, flush=True)
        except ShardrunError as error:
            print(error, flush=True)

    if __name__ == "__main__":
        process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
        process.start()
        process.join()
        sys.exit(process.exitcode)
"""


@pytest.mark.parametrize(("launcher", "said"), [("mpirun", "(5, 3)"), ("local", "A daemonic process of")])
def test_in_a_worker_of_multiprocessing(
    run_script: Runner, two_slices: Path, launcher: str, said: str
) -> None:
    code, output, errors = run_script(DAEMON, str(two_slices), launcher).end(60)
    assert (code, errors) == (0, "") and output.startswith(said)


def test_mpi_collectives_are_started_by_mpirun(two_slices: Path) -> None:
    with start(two_slices, collectives="mpi") as group:
        assert {stats.backend for stats in group.stats} == {"mpi"}


def test_bytes_in_the_other_order(group: Group) -> None:
    feeds = slices.feeds()
    swapped = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in feeds.items()}
    assert np.array_equal(group.predict(swapped)["y"], group.predict(feeds)["y"])


def test_what_is_no_mapping(group: Group) -> None:
    with pytest.raises(
        ShardrunError, match=r"a mapping of names to arrays, such as {'x': array}, but are list"
    ):
        group.predict([slices.feeds()["x"]])  # type: ignore[arg-type]  # on purpose


def test_two_groups_at_once(two_slices: Path, launcher: str) -> None:
    with start(two_slices, launcher=launcher) as one, start(two_slices, launcher=launcher) as two:
        first, second = one.predict(slices.feeds())["y"], two.predict(slices.feeds())["y"]
        assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ranks": 3}, ConfigError, "ranks=3 contradicts the slice folder .* \\(2 ranks\\)"),
        ({"ranks": 0}, ConfigError, "ranks=0 contradicts"),
        (
            {"launcher": "rsh"},
            ConfigError,
            "no launcher 'rsh': choose one of auto, kubernetes, local, mpirun, ray, slurm, ssh",
        ),
        ({"timeout": 0}, ConfigError, "time-out must be"),
        ({"threads": 0}, ConfigError, "number of threads must be"),
        ({"threads": True}, ConfigError, "number of threads must be"),
        ({"collectives": "carrier-pigeon"}, ConfigError, "no collectives 'carrier-pigeon': choose one of"),
        ({"collectives": "nccl"}, ConfigError, "give --target gpu"),
        ({"collectives": "hccl"}, ConfigError, "give --target ascend"),
        ({"threads": 1025}, ConfigError, "from 1 to 1024"),
        (
            {"collectives": "mpi", "launcher": "local"},
            ConfigError,
            "mpi collectives need the launcher mpirun",
        ),
        (
            {"rank_table": make_rank_table([("a", 1), ("b", 1)]), "launcher": "local"},
            LaunchError,
            "this host only",
        ),
        ({"rank_table": make_rank_table([("a", 3)])}, ConfigError, ".*rank table.* \\(3 ranks\\)"),
        ({"rank_table": "nothing.json"}, RankTableError, "nothing.json"),
    ],
)
def test_arguments_that_do_not_fit(
    two_slices: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        start(two_slices, **{"launcher": "local", **arguments})


def test_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.onnx: no such file or folder"):
        start(tmp_path / "nothing.onnx", ranks=2)


def test_number_of_ranks_unknown(two_slices: Path) -> None:
    with pytest.raises(ConfigError, match="How many ranks"):
        start(two_slices / "whole.onnx")


@pytest.mark.new_ranks
def test_ranks_that_are_not_ready_in_time(two_slices: Path) -> None:
    with pytest.raises(LaunchError, match=r"not ready within 0\.001 s"):
        start(two_slices, launcher="local", timeout=0.001)


def test_from_standard_input(two_slices: Path) -> None:
    """As typed into an interactive interpreter: there is no file that a child could import."""
    code = f"""
from launcher import start
from tests.launcher import slices
with start({str(two_slices)!r}, launcher="local") as group:
    print(group.predict(slices.feeds())["y"].shape)
"""
    done = subprocess.run(
        [sys.executable, "-"], input=code, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "(5, 3)\n"), done.stderr


def test_a_folder_full_of_traps(run_script: Runner, two_slices: Path, launcher: str, tmp_path: Path) -> None:
    """The user's own folder has modules with the names of ours and of numpy."""
    trap = tmp_path / "trap"
    (trap / "ranks").mkdir(parents=True)
    for name in ("ranks/__init__.py", "numpy.py", "launcher.py"):
        (trap / name).write_text("raise SystemExit('trapped')")
    script = run_script(
        """
        import os, sys
        from launcher import start
        from tests.launcher import slices
        os.chdir(sys.argv[3])
        with start(sys.argv[1], launcher=sys.argv[2]) as group:
            print(list(group.predict(slices.feeds())["y"].shape), flush=True)
        """,
        str(two_slices),
        launcher,
        str(trap),
    )
    assert script.message() == [5, 3]
    assert script.end(within=30)[0] == 0


def test_the_package_has_what_a_program_needs(two_slices: Path) -> None:
    import launcher as package
    from launcher import PredictError, RankFailedError, ShardrunError
    from sharding.common import version as version_module

    assert {"Group", "PredictError", "RankFailedError", "ShardrunError", "start"} <= set(dir(package))
    assert issubclass(PredictError, ShardrunError) and issubclass(RankFailedError, ShardrunError)
    assert package.__version__ == version_module.version()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
    with start(two_slices, launcher="local") as group:
        assert repr(group) == f"<Group of 2 ranks by local: {two_slices}>"
    assert repr(group).endswith(", closed>")


@pytest.mark.parametrize("launcher", ["local", "mpirun"])
def test_a_closed_group_leaves_no_descriptor_open(two_slices: Path, launcher: str) -> None:
    """By itself, and not when the collector of cycles happens to run."""
    with start(two_slices, launcher=launcher):  # what a process opens once
        pass
    gc.collect()
    gc.disable()
    try:
        before = open_descriptors()
        with start(two_slices, launcher=launcher) as group:
            assert left_open(before)
        assert wait_until(lambda: not left_open(before), 20)  # a thread's own come a little later
        del group
    finally:
        gc.enable()
