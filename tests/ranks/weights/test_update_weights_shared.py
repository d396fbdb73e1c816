"""Variable weights that several processes share: the owner updates, the others see it at their next run."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ranks
from ranks.errors import WeightsError
from ranks.run import executor
from ranks.weights.shared import client
from ranks.weights.updated.memory import MOST_FILES
from ranks.weights.updated.variable import VariableWeights
from tests.left_behind import left_open, open_descriptors
from tests.ranks.common.test_pool import until
from tests.ranks.threads import works_in_child
from tests.ranks.variable_models import CASES, Array, Case, error, numbers, oracle, others, replaced

pytestmark = [
    pytest.mark.usefixtures("single"),
    pytest.mark.skipif(sys.platform != "linux", reason="sealed memory is Linux's"),
]
ROOT = Path(__file__).parents[3]
CASE = Case(
    "t = Transpose<perm = [1, 0]>(w) h = MatMul(x, t) k = MatMul(h, v) y = Add(k, b)",
    {"w": numbers(6, 4), "v": numbers(6, 3), "b": numbers(3)},
    ("w", "v", "b"),
)
FEEDS = {"x": numbers(2, 4, seed=8)}


def others_of(files: list[int]) -> dict[str, str]:
    """All that is open but ``files``."""
    return {number: what for number, what in open_descriptors().items() if int(number) not in files}


def new(before: dict[str, str]) -> dict[str, str]:
    gc.collect()
    return left_open(before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return CASE.save(tmp_path / "model.onnx")


@pytest.fixture
def pair(path: Path) -> Iterator[tuple[executor.RankModel, executor.RankModel, list[int]]]:
    """Owner, attached model, and how often that has fetched a version."""
    owner, guest = (executor.load(path, variable_weights=CASE.variable) for _ in range(2))
    owned, taken = weights_of(owner), weights_of(guest)
    fetched: list[int] = []

    def fetch() -> tuple[Mapping[str, Any], list[int]]:
        fetched.append(owned.version)
        return through_json(owned)

    taken.attach(*through_json(owned), fetch)
    yield owner, guest, fetched


def weights_of(model: executor.RankModel) -> VariableWeights:
    assert model.weights is not None
    return model.weights


def through_json(weights: VariableWeights) -> tuple[Any, list[int]]:
    description, files = weights.export()
    return json.loads(json.dumps(description)), files


def test_an_attached_model_follows_its_owner(pair: Any, path: Path, tmp_path: Path) -> None:
    owner, guest, fetched = pair
    assert weights_of(guest).version == 0
    assert error(guest.run(FEEDS), oracle(path, FEEDS)) <= 1e-5
    for version in range(1, 4):
        values = others(CASE, version)
        if version == 2:
            values = {"v": values["v"]}
        assert owner.update_weights(values) == version
        now = replaced(path if version == 1 else tmp_path / "now.onnx", values, tmp_path / "now.onnx")
        for model in (owner, guest):
            assert error(model.run(FEEDS), oracle(now, FEEDS)) <= 1e-5
        assert weights_of(guest).version == version
    assert fetched == [1, 2, 3], "once a version"


def test_there_is_one_copy(pair: Any) -> None:
    """Owner and guest read the same pages, and so does what ONNX Runtime is given."""
    owner, guest, _ = pair
    owner.update_weights(others(CASE))
    for model in (owner, guest):
        snapshot = weights_of(model).snapshot()
        for name, array in snapshot.arrays.items():
            address = array.ctypes.data
            assert snapshot.feeds[name].data_ptr() == address
            assert "memfd:shardrun weights" in mapping_of(address)
            assert not array.flags.writeable


def mapping_of(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line
    return ""


def test_nobody_can_write_or_shorten(path: Path) -> None:
    owner = executor.load(path, variable_weights=CASE.variable)
    _, files = weights_of(owner).export()
    for index, file in enumerate(files):
        with pytest.raises(OSError):
            os.ftruncate(file, 0)
        with pytest.raises(OSError):
            os.ftruncate(file, 1 << 20)
        with pytest.raises(OSError):
            os.pwrite(file, b"x", 0)
        with pytest.raises(OSError):
            import mmap

            mmap.mmap(file, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE)
        os.close(file)
        assert index < 2
    owner.update_weights(others(CASE))  # the owner still says what its version is


def test_updates_are_many_and_files_few(pair: Any, path: Path, tmp_path: Path) -> None:
    owner, guest, _ = pair
    now, before = path, open_descriptors()
    for version in range(1, 60):
        values = {name: others(CASE, version)[name] for name in (CASE.variable[version % 3],)}
        owner.update_weights(values)
        if version % 7 == 0:
            guest.run(FEEDS)
        now = replaced(now, values, tmp_path / "now.onnx")
    assert error(guest.run(FEEDS), oracle(now, FEEDS)) <= 1e-5
    assert len(new(before)) <= 2 * MOST_FILES


def test_many_weights_share_few_files(tmp_path: Path) -> None:
    """Each update replaces another one of more weights than a version may have files."""
    count = 3 * MOST_FILES
    names = [f"w{index}" for index in range(count)]
    chain = ["x", *(f"h{index + 1}" for index in range(count))]
    case = Case(
        " ".join(f"{chain[i + 1]} = Add({chain[i]}, {name})" for i, name in enumerate(names)),
        {name: numbers(4, seed=index) for index, name in enumerate(names)},
        tuple(names),
        outputs=(chain[-1],),
    )
    model = executor.load(case.save(tmp_path / "m.onnx"), variable_weights=names)
    weights = weights_of(model)
    total = np.zeros(4, np.float32)
    for index, name in enumerate(names):
        new = numbers(4, seed=100 + index)
        total += new
        description, files = weights.export()
        assert len(files) <= MOST_FILES + 1 and description["names"] == names
        for file in files:
            os.close(file)
        model.update_weights({name: new})
    assert error(model.run(FEEDS), [FEEDS["x"] + total]) <= 1e-5


def test_a_forked_child_has_weights_of_its_own(pair: Any, path: Path, tmp_path: Path) -> None:
    """Also one that is forked while another thread updates or fetches: the locks are the parent's."""
    owner, guest, fetched = pair
    before, values = oracle(path, FEEDS), others(CASE)
    wanted = oracle(replaced(path, values, tmp_path / "now.onnx"), FEEDS)
    attached = weights_of(guest)._attached
    assert attached is not None

    def updates() -> bool:
        first = error(guest.run(FEEDS), before)
        owner.update_weights(values)
        owner.update_weights(values)
        good = first <= 1e-5 and error(owner.run(FEEDS), wanted) <= 1e-5
        return good and error(guest.run(FEEDS), before) <= 1e-5

    assert works_in_child(updates, weights_of(owner)._lock, attached._lock)
    assert error(guest.run(FEEDS), before) <= 1e-5 and error(owner.run(FEEDS), before) <= 1e-5
    assert (weights_of(owner).version, weights_of(guest).version, fetched) == (0, 0, [])


def test_an_owner_that_has_ended_leaves_the_last_version(path: Path, tmp_path: Path) -> None:
    owner, guest = (executor.load(path, variable_weights=CASE.variable) for _ in range(2))
    ended = False

    def fetch() -> tuple[Mapping[str, Any], list[int]]:
        if ended:
            raise ConnectionResetError
        return through_json(owned)

    owned = weights_of(owner)
    weights_of(guest).attach(*through_json(owned), fetch)
    values = others(CASE)
    owner.update_weights(values)
    wanted = oracle(replaced(path, values, tmp_path / "now.onnx"), FEEDS)
    assert error(guest.run(FEEDS), wanted) <= 1e-5
    ended = True
    owner.update_weights(others(CASE, 5))
    owner.close()
    for _ in range(2):
        assert error(guest.run(FEEDS), wanted) <= 1e-5


def test_only_the_owner_updates_and_exports(pair: Any) -> None:
    _, guest, _ = pair
    with pytest.raises(WeightsError, match="only their owner updates"):
        guest.update_weights(others(CASE))
    with pytest.raises(WeightsError, match="another process's"):
        weights_of(guest).export()


def _without(key: str) -> Callable[[Any], None]:
    return lambda d: d.pop(key)


def _value(index: int, new: Any) -> Callable[[Any], None]:
    def change(description: Any) -> None:
        description["values"][0][index] = new

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_without("version"), "in another way"),
        (_without("files"), "in another way"),
        (_without("values"), "in another way"),
        (lambda d: d.update(values=3), "in another way"),
        (lambda d: d.update(values=[["t"]]), "in another way"),
        (lambda d: d.update(values=[]), "do not fit this model"),
        (lambda d: d.update(version=[]), "in another way"),
        (lambda d: d.update(version=1e400), "in another way"),
        (lambda d: d.update(files=[1, 2, 3]), "in 3 files, but 1 came"),
        (lambda d: d.update(files=[7]), "outside the memory"),
        (_value(0, "other"), "do not fit this model"),
        (_value(1, 11), "do not fit this model"),
        (_value(2, [4, 60]), "do not fit this model"),
        (_value(2, [-4, -6]), "do not fit this model"),
        (_value(3, 99), "outside the memory"),
        (_value(4, 1 << 40), "outside the memory"),
        (_value(4, 4096 * 3 - 8), "outside the memory"),
        (_value(4, -8), "outside the memory"),
    ],
)
def test_hostile_descriptions(change: Callable[[Any], None], words: str, path: Path) -> None:
    owner, guest = (executor.load(path, variable_weights=CASE.variable) for _ in range(2))
    weights_of(owner).snapshot()
    description, files = through_json(weights_of(owner))
    before = others_of(files)
    change(description)
    with pytest.raises(WeightsError) as caught:
        weights_of(guest).attach(description, files, lambda: (description, []))
    assert words in str(caught.value)
    del caught  # with what its frames hold
    assert not new(before), "every file that came is closed"
    assert error(guest.run(FEEDS), oracle(path, FEEDS)) <= 1e-5, "and the model goes on with its own"


def test_memory_that_is_not_sealed(path: Path, tmp_path: Path) -> None:
    """A file that its owner can shorten would end the process that reads it."""
    owner, guest = (executor.load(path, variable_weights=CASE.variable) for _ in range(2))
    for place in (0, 1):
        description, files = through_json(weights_of(owner))
        (tmp_path / "plain").write_bytes(bytes(1 << 16))
        with (tmp_path / "plain").open("rb") as plain:
            os.dup2(plain.fileno(), files[place])
        before = others_of(files)
        with pytest.raises(WeightsError, match="sealed") as caught:
            weights_of(guest).attach(description, files, lambda: ({}, []))
        del caught
        assert not new(before)
    with pytest.raises(WeightsError, match="no files"):
        weights_of(guest).attach({}, [], lambda: ({}, []))


GUEST = """
    import json, socket, sys
    import numpy as np
    from ranks.run import executor

    path, variable, end = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
    peer = socket.socket(fileno=end)
    feeds = {"x": np.array(json.loads(sys.argv[4]), np.float32)}

    def fetch():
        peer.sendall(b"?")
        data, files, _, _ = socket.recv_fds(peer, 1 << 20, 64)
        return json.loads(data), files

    model = executor.load(path, variable_weights=variable)
    model.weights.attach(*fetch(), fetch)
    for line in sys.stdin:
        answer = model.run(feeds)[0].tolist()
        print(json.dumps([model.weights.version, answer]), flush=True)
"""


def test_two_processes_over_a_socket(path: Path, tmp_path: Path) -> None:
    """The owner passes its files over a socket; the guest goes on when the owner's end is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", textwrap.dedent(GUEST), str(path), ",".join(CASE.variable)]
    command += [str(theirs.fileno()), json.dumps(FEEDS["x"].tolist())]
    owner = executor.load(path, variable_weights=CASE.variable)
    with subprocess.Popen(
        command,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as guest:
        try:
            theirs.close()
            ours.settimeout(60)

            def serve() -> None:
                assert ours.recv(1) == b"?"
                description, files = weights_of(owner).export()
                socket.send_fds(ours, [json.dumps(description).encode()], files)
                for file in files:
                    os.close(file)

            def ask(*, fetches: bool) -> tuple[int, list[Array]]:
                assert guest.stdin is not None and guest.stdout is not None
                guest.stdin.write("\n")
                guest.stdin.flush()
                if fetches:
                    serve()
                version, answer = json.loads(guest.stdout.readline())
                return version, [np.array(answer, np.float32)]

            serve()
            version, answer = ask(fetches=False)
            assert version == 0 and error(answer, oracle(path, FEEDS)) <= 1e-5
            wanted = []
            for seed in (1, 2):
                owner.update_weights(others(CASE, seed))
                wanted = oracle(replaced(path, others(CASE, seed), tmp_path / "now.onnx"), FEEDS)
                for fetches in (True, False):
                    version, answer = ask(fetches=fetches)
                    assert version == seed and error(answer, wanted) <= 1e-5
            ours.close()
            owner.update_weights(others(CASE, 3))
            version, answer = ask(fetches=False)
            assert version == 2 and error(answer, wanted) <= 1e-5
            guest.stdin.close()  # type: ignore[union-attr]
            assert guest.wait(60) == 0
        finally:
            guest.kill()


WORKER = """
    import json, sys
    import numpy as np
    import ranks

    handle, path, feeds = sys.argv[1], sys.argv[2], np.array(json.loads(sys.argv[3]), np.float32)
    names = {"cpu_context": {"variable_weights_list": sys.argv[4]}}
    with ranks.attach(handle, path, config_dict=names) as model:
        for line in sys.stdin:
            answer = model.predict([feeds])[0].get_data_to_numpy().tolist()
            print(json.dumps([model.get_model_info("weights_version"), answer]), flush=True)
"""

OWNER = """
    import json, sys
    import numpy as np
    import ranks

    path, new = sys.argv[1], np.load(sys.argv[2])
    names = {"cpu_context": {"variable_weights_list": sys.argv[3]}}
    with ranks.share_weights(path, config_dict=names, family=int(sys.argv[4])) as model:
        print(model.handle, flush=True)
        for line in sys.stdin:
            tensors = []
            for name in sys.argv[3].split(","):
                tensors.append(ranks.Tensor(new[f"{line.strip()}/{name}"]))
                tensors[-1].name = name
            model.update_weights([tensors])
            print("updated", flush=True)
"""


class Process:
    """A program that does something for each line it is given, and says so."""

    def __init__(self, program: str, *arguments: object, cache: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SHARDRUN_CACHE": str(cache)},
        )

    def line(self) -> str:
        assert self.process.stdout is not None and self.process.stderr is not None
        found = self.process.stdout.readline()
        assert found, self.process.stderr.read()
        return found.strip()

    def ask(self, text: str = "") -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        return self.line()

    def end(self, how: int = signal.SIGKILL) -> None:
        self.process.send_signal(how)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        self.process.wait(60)


def saved_sets(folder: Path) -> tuple[list[dict[str, Array]], str, Path]:
    """Two sets of values, saved as ``new.npz``; the names of the weights; a cache folder."""
    sets = [others(CASE, seed) for seed in (1, 2)]
    arrays = {f"{index}/{name}": array for index, values in enumerate(sets) for name, array in values.items()}
    np.savez(folder / "new.npz", **arrays)  # type: ignore[arg-type]  # numpy takes any names
    return sets, ",".join(CASE.variable), folder / "cache"


def test_owner_and_workers_of_the_api(path: Path, tmp_path: Path) -> None:
    """`share_weights` and `attach`; the owner is killed, and the workers go on with its last version."""
    sets, names, cache = saved_sets(tmp_path)
    owner = Process(OWNER, path, tmp_path / "new.npz", names, os.getpid(), cache=cache)
    processes = [owner]
    try:
        handle = owner.line()
        arguments = handle, path, json.dumps(FEEDS["x"].tolist()), names
        processes += [Process(WORKER, *arguments, cache=cache) for _ in range(2)]

        def check(version: int, wanted: list[Array]) -> None:
            for worker in processes[1:]:
                found, answer = json.loads(worker.ask())
                assert found == str(version)
                assert error([np.array(answer, np.float32)], wanted) <= 1e-5

        check(0, oracle(path, FEEDS))
        wanted: list[Array] = []
        for index, values in enumerate(sets):
            assert owner.ask(str(index)) == "updated"
            wanted = oracle(replaced(path, values, tmp_path / "now.onnx"), FEEDS)
            check(index + 1, wanted)
            check(index + 1, wanted)
        late = Process(WORKER, *arguments, cache=cache)
        processes.append(late)
        check(2, wanted)  # who attaches later has the newest version too
        owner.end()
        check(2, wanted)
    finally:
        for process in processes:
            process.process.kill()
            process.process.wait(60)


def test_an_owner_that_is_stopped(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last version serves meanwhile, with one wait; when it goes on, its newest comes."""
    sets, names, cache = saved_sets(tmp_path)
    monkeypatch.setenv("SHARDRUN_CACHE", str(cache))
    waits: list[float] = []
    settimeout = socket.socket.settimeout
    monkeypatch.setattr(
        socket.socket, "settimeout", lambda peer, value: (waits.append(value), settimeout(peer, value))
    )
    owner = Process(OWNER, path, tmp_path / "new.npz", names, os.getpid(), cache=cache)
    try:
        marks = {"cpu_context": {"variable_weights_list": names}}
        with ranks.attach(owner.line(), str(path), config_dict=marks) as model:

            def check(version: int, wanted: list[Array]) -> None:
                (answer,) = model.predict([FEEDS["x"]])
                assert model.get_model_info("weights_version") == str(version)
                assert error([answer.get_data_to_numpy()], wanted) <= 1e-5

            first = oracle(path, FEEDS)
            check(0, first)
            waits.clear()
            assert owner.ask("0") == "updated"
            owner.process.send_signal(signal.SIGSTOP)
            until(lambda: "T" in Path(f"/proc/{owner.process.pid}/stat").read_text().split(") ")[1][:1])
            for _ in range(3):
                check(0, first)
            assert waits[0] == client.ANSWER_SECONDS and set(waits[1:]) == {0.0}
            owner.process.send_signal(signal.SIGCONT)
            until(lambda: model.predict([FEEDS["x"]]) and model.get_model_info("weights_version") == "1")
            check(1, oracle(replaced(path, sets[0], tmp_path / "one.onnx"), FEEDS))
            assert owner.ask("1") == "updated"
            check(2, oracle(replaced(path, sets[1], tmp_path / "two.onnx"), FEEDS))
    finally:
        owner.end()


def test_a_late_answer_is_followed_by_the_newest(path: Path) -> None:
    """An owner that was stopped answers with its version of then, and may have updated since."""
    owner, guest = (executor.load(path, variable_weights=CASE.variable) for _ in range(2))
    owned, taken = weights_of(owner), weights_of(guest)
    answers: list[Callable[[], tuple[Any, list[int]]]] = []

    def fetch() -> tuple[Any, list[int]]:
        if not answers:
            raise TimeoutError
        return answers.pop(0)()

    taken.attach(*through_json(owned), fetch)
    owner.update_weights(others(CASE, 1))
    late = through_json(owned)
    assert [taken.version for _ in range(2)] == [0, 0]
    owner.update_weights(others(CASE, 2))
    answers += [lambda: late, lambda: through_json(owned)]
    assert taken.version == 2 and answers == []


FORKED = """
    import json, os, sys
    import numpy as np
    import ranks

    handle, path, feeds, names = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
    feeds = np.array(feeds, np.float32)
    model = ranks.attach(handle, path, config_dict={"cpu_context": {"variable_weights_list": names}})
    first, second = os.pipe(), os.pipe()
    child = os.fork()

    def answer():
        found = model.predict([feeds])[0].get_data_to_numpy().tolist()
        return json.dumps([os.getpid(), model.get_model_info("weights_version"), found]) + "\\n"

    if child == 0:
        os.close(first[1])
        while os.read(first[0], 1):
            os.write(second[1], answer().encode())
        os._exit(0)
    os.close(second[1])
    replies = os.fdopen(second[0])
    for line in sys.stdin:
        os.write(first[1], b"?")
        print(json.dumps([json.loads(answer()), json.loads(replies.readline())]), flush=True)
"""


def test_a_child_that_an_attached_process_forks(path: Path, tmp_path: Path) -> None:
    """Parent and child both have the owner's newest values at their next prediction."""
    sets, names, cache = saved_sets(tmp_path)
    owner = Process(OWNER, path, tmp_path / "new.npz", names, os.getpid(), cache=cache)
    arguments = owner.line(), path, json.dumps(FEEDS["x"].tolist()), names
    pair = Process(FORKED, *arguments, cache=cache)
    try:
        pids = set()
        for version in range(3):
            if version:
                assert owner.ask(str(version - 1)) == "updated"
                wanted = oracle(replaced(path, sets[version - 1], tmp_path / "now.onnx"), FEEDS)
            else:
                wanted = oracle(path, FEEDS)
            for _ in range(2):
                for pid, found, answer in json.loads(pair.ask()):
                    pids.add(pid)
                    assert found == str(version)
                    assert error([np.array(answer, np.float32)], wanted) <= 1e-5
        assert len(pids) == 2
        owner.end()
        assert [found for _, found, _ in json.loads(pair.ask())] == ["2", "2"]
    finally:
        owner.process.kill()
        owner.process.wait(60)
        pair.end()


def test_a_forked_child_waits_for_a_stopped_owner_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[float] = []

    def again() -> client.Connection:
        tries.append(now[0])
        raise client._LateError("no answer.")

    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection = client.Connection(ours, 1, {}, -1, {})
    connection.again = again
    connection._hang_up()  # as in a child that was just forked
    for seconds in (0.0, 1.0, client.AGAIN_SECONDS, 1.0):
        now[0] += seconds
        with pytest.raises(TimeoutError):
            connection.fetch()
    assert tries == [1000.0, 1001.0 + client.AGAIN_SECONDS]
    connection.close()
    with pytest.raises(WeightsError, match="is closed"):
        connection.fetch()
    theirs.close()


def test_a_child_that_may_not_attach_keeps_its_values(path: Path, tmp_path: Path) -> None:
    """The owner's list has the process that forks, but not the child; the child says so, once."""
    program = """
        import os, sys
        import numpy as np
        import ranks
        import ranks.errors
        from ranks.weights.shared import client, handle

        with ranks.share_weights(sys.argv[1], pids=[os.getpid()], family=0) as owner:
            held = client.connect(handle.address(owner.handle), 5.0)
            child = os.fork()
            if child == 0:
                for _ in range(2):
                    try:
                        held.fetch()
                    except ranks.errors.WeightsError as error:
                        print(error, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            assert held.fetch() == {}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SHARDRUN_CACHE": str(tmp_path / "cache")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    refused, closed = done.stdout.splitlines()
    assert "is not among those that may attach" in refused and "connection to the owner" in closed
    assert done.stderr.count("was forked from one that is attached to the weights of process") == 1


def test_attaching_with_other_names_is_refused(path: Path, tmp_path: Path) -> None:
    names, names_w = ",".join(CASE.variable), {"cpu_context": {"variable_weights_list": "w"}}
    np.savez(tmp_path / "new.npz")
    owner = Process(OWNER, path, tmp_path / "new.npz", names, os.getpid(), cache=tmp_path / "cache")
    try:
        with pytest.raises(
            WeightsError,
            match=r"has other variable weights: it was built with .*, but this process with 'w'\. Give",
        ):
            ranks.attach(owner.line(), str(path), config_dict=names_w)
    finally:
        owner.end()


def test_cases_are_prepared_alike_in_shared_memory(tmp_path: Path) -> None:
    """Also values that are prepared, empty, or of bfloat16 lie where others can map them."""
    for name, case in CASES.items():
        path = case.save(tmp_path / f"{name}.onnx")
        dtype = np.float16 if name == "float16" else np.float32
        feeds = {
            key: numbers(*(2 if isinstance(dim, str) else dim for dim in shape), seed=3, dtype=dtype)
            for key, shape in case.inputs.items()
        }
        owner, guest = (executor.load(path, variable_weights=case.variable) for _ in range(2))
        owned = weights_of(owner)
        weights_of(guest).attach(*through_json(owned), partial(through_json, owned))
        assert error(guest.run(feeds), owner.run(feeds)) == 0
        owner.update_weights(others(case))
        after = replaced(path, others(case), tmp_path / "after.onnx")
        tolerance = 2e-3 if name == "float16" else 1e-4
        wanted = oracle(after, feeds, optimized=case.optimized)
        assert error(guest.run(feeds), wanted) <= tolerance, name
        assert error(owner.run(feeds), wanted) <= tolerance, name
