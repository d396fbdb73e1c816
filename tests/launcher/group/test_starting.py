"""From what a start is asked for to its ranks: what whatever starts them is told, and what each rank is."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.common.logs import Logs
from launcher.errors import ConfigError, LaunchError
from launcher.group import language, starting
from launcher.group.starting import StartedJob, _names, _on_hosts, _staged, _told, prepared
from launcher.job.places.placement import Placement
from launcher.job.rank_table import RankTable, make_rank_table, with_places
from launcher.job.start_arguments import Start
from launcher.starters.staging.copies import Copy
from ranks.common import settings
from ranks.talk.frame import Kind
from ranks.talk.wire import Message
from sharding.demands.options import SliceOptions

FAR = (("192.0.2.1", 2), ("192.0.2.2", 1))


class Fake:
    """What is chosen to start ranks."""

    name = "fake"

    def __init__(self) -> None:
        self.cores = self.gpus = -1
        self.released = 0

    def place(self, size: int, table: Any) -> Any:
        return table

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(starting.base, "choose", lambda *_: made)
    return made


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    found: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(starting, "StartedJob", lambda told, *_, **how: found.append((told, how)) or "job")
    return found


@pytest.mark.parametrize(
    ("how", "cores", "gpus"),
    [
        (Start(), 1, 0),
        (Start(threads=3), 3, 0),
        (Start(target="gpu"), 1, 1),
        (Start(target="gpu", placement=Placement(gpus=0)), 1, 0),
        (Start(placement=Placement(gpus=2)), 1, 2),
    ],
)
def test_what_each_rank_needs(launcher: Fake, how: Start, cores: int, gpus: int) -> None:
    prepared(how, 2)
    assert (launcher.cores, launcher.gpus) == (cores, gpus)


def test_what_a_job_is_begun_with(launcher: Fake, jobs: Any, tmp_path: Path) -> None:
    how = Start(timeout=7, hang_timeout=9, logs=Logs(log_dir=tmp_path), environment={"A": "b"})
    begin: Any = prepared(how, 3)
    assert begin(["exec", "x"]) == "job"
    [(told, given)] = jobs
    assert told == [] and settings.TOLD.name not in given["environment"]
    assert (given["world_size"], given["patience"], given["hang"]) == (3, 7, 9)
    assert given["logs"] == how.logs and given["environment"]["A"] == "b" and launcher.released == 0


def test_what_was_taken_is_given_back_where_the_start_fails(
    launcher: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise LaunchError("no ranks")

    monkeypatch.setattr(starting, "StartedJob", fails)
    begin = prepared(Start(), 2)
    assert launcher.released == 0
    for _ in range(2):
        with pytest.raises(LaunchError, match="no ranks"):
            begin(["exec", "x"])
    assert launcher.released == 2


def test_what_cannot_be_is_told_before_anything_begins(launcher: Fake, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--tee 2: expected ranks from 0 to 1"):
        prepared(Start(logs=Logs(tee=(2,))), 2)


def table(*hosts: tuple[str, int], cores: tuple[str, ...] = (), interface: str = "") -> RankTable:
    return with_places(make_rank_table(list(hosts)), cores, interface)


def copy(host: str, ranks: list[int], file: str = "") -> Copy:
    return Copy(host, ranks, Path(), "m", (), file)


def test_ranks_are_told_their_places() -> None:
    assert _told(None, {}) == [] and _told(table(("h", 2)), {}) == []  # there is nothing to tell
    found = _told(table(("h", 2), cores=("0-1", "2-3"), interface="eth0"), {})
    assert [(told.cores, told.interface) for told in found] == [("0-1", "eth0"), ("2-3", "eth0")]
    one, other = copy("h", [1]), copy("h", [1], "r1.onnx")
    assert (
        _names(None) == ("", "") and _names(one) == (one.key, "") and _names(other) == (other.key, "r1.onnx")
    )
    first, second = _told(table(("h", 2)), {1: other})
    assert other.key in repr(second) and other.key not in repr(first)


@pytest.mark.parametrize(
    ("stage", "program", "sent"),
    [(True, ["serve", "m"], True), (False, ["serve", "m"], False), (True, ["exec", "m"], False)],
)
def test_copies_are_made_where_ranks_load_a_model_without_common_files(
    monkeypatch: pytest.MonkeyPatch, stage: bool, program: list[str], sent: bool
) -> None:
    copies = [copy("a", [0, 2]), copy("b", [1])]
    sends: list[Any] = []
    monkeypatch.setattr("launcher.starters.staging.copies.needed", lambda path, table: copies)
    monkeypatch.setattr("launcher.starters.staging.sender.send", lambda *words: sends.append(words))
    unused: Any = None
    how = Start(rank_table=table(*FAR), placement=Placement(stage=stage), timeout=3)
    found = _staged(how, unused, program, {})
    assert found == ({0: copies[0], 2: copies[0], 1: copies[1]} if sent else {})
    assert [(words[1], words[3]) for words in sends] == ([(copies, 3)] if sent else [])
    assert _staged(replace(how, rank_table=None), unused, program, {}) == {}


def test_hosts_become_a_table() -> None:
    found = _on_hosts(Start(placement=Placement(hosts=FAR)), 3)
    assert found.rank_table is not None
    assert [device.host for device in found.rank_table.devices] == ["192.0.2.1", "192.0.2.1", "192.0.2.2"]
    here = _on_hosts(Start(placement=Placement(hosts=(("localhost", 2),))), 2)
    assert here.rank_table is None  # no other host is needed
    own = table(("192.0.2.9", 1))
    given = Start(rank_table=own, placement=Placement(hosts=FAR))
    assert _on_hosts(given, 1).rank_table is own
    with pytest.raises(ConfigError, match=r"--hosts: the host 'no\.such\.host\.invalid' cannot be found"):
        _on_hosts(Start(placement=Placement(hosts=(("no.such.host.invalid", 1),))), 1)
    with pytest.raises(ConfigError, match=r"--hosts: expected places for 4 ranks, found 3"):
        _on_hosts(Start(placement=Placement(hosts=FAR)), 4)


def loading(size: int) -> tuple[StartedJob, list[tuple[float, int]]]:
    """A job of ranks that say how far they have come."""
    shown: list[tuple[float, int]] = []
    job = object.__new__(StartedJob)
    job.changed = threading.Condition()
    job._told, job._loaded, job._sum = [], {}, 0
    job._showing = threading.Lock()
    job._progress = lambda done, size: shown.append((done, size))
    return job, shown


def test_how_far_ranks_have_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[Kind] = []
    monkeypatch.setattr(starting.Job, "_message", lambda self, peer, message: passed.append(message.kind))
    job, shown = loading(2)
    peers: Any = [SimpleNamespace(rank=rank) for rank in range(2)]

    def says(rank: int, kind: Kind = Kind.LOADING, **fields: object) -> None:
        job._message(peers[rank], Message(kind, fields, {}))

    says(0, done=1, total=4)
    says(1, done=0, total=4)
    says(0, done=2, total=4)
    assert shown == [(0.25, 1), (0.25, 2), (0.5, 2)] and job.loaded() == 0.5
    for wrong in (
        {"done": 5, "total": 4},
        {"done": -1, "total": 4},
        {"done": 0, "total": 0},
        {"done": "1", "total": 4},
        {},
    ):
        says(1, **wrong)
    assert len(shown) == 3 and passed == []  # what is no news of loading is dropped
    says(1, done=4, total=4)
    says(0, Kind.READY)
    assert shown[3:] == [(1.5, 2), (2.0, 2)] and passed == [Kind.READY]


def test_a_terminal_that_is_gone_is_told_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = loading(1)
    tried: list[object] = []

    def fails(*words: object) -> None:
        tried.append(words)
        raise OSError

    job._progress = fails
    for _ in range(2):
        job._has_loaded(0, 1000)
    assert len(tried) == 1 and job.loaded() == 1.0


class Loaded(SimpleNamespace):
    """What `assemble` gives."""


@pytest.mark.parametrize(
    ("parts", "draft", "logs"),
    [
        (["m"], False, [("m", Path("l"), (0, 1), 2)]),  # a single group has the folder itself
        (["e", "m"], False, [("e", Path("l/e"), (0, 1), 2), ("m", Path("l/m"), (0, 1), 2)]),
        (["m"], True, [("m", Path("l/m"), (0, 1), 2), ("d", Path("l/draft-d"), (0,), 1)]),
    ],
)
def test_each_graph_of_a_language_model_has_its_logs_and_a_draft_one_rank(
    monkeypatch: pytest.MonkeyPatch, parts: list[str], draft: bool, logs: list[Any]
) -> None:
    started: list[Any] = []

    def start(path: Path, *, options: SliceOptions, **how: Any) -> Any:
        started.append((path.name, how["logs"].log_dir, how["logs"].tee, how["ranks"], options.sums))
        return contextlib.nullcontext(SimpleNamespace())

    def assemble(folder: Any, start: Any) -> Any:
        @contextlib.contextmanager
        def loaded() -> Any:
            with contextlib.ExitStack() as stack:
                for part in folder.parts:
                    stack.enter_context(start(part))
                yield Loaded(decoder="d", manner="m", tokenizer=None, template=None, draft=None)

        return loaded()

    def read(path: Path, texts: Any = None) -> Any:
        own = parts if path.name == "m" else ["d"]
        return SimpleNamespace(parts=[Path(part) for part in own], name_of=lambda part: part.name)

    monkeypatch.setattr(language, "start_group", start)
    monkeypatch.setattr(language, "program_of", lambda group: group)
    monkeypatch.setattr(language, "assemble", assemble)
    monkeypatch.setattr(language, "read_folder", read)
    more: Any = {"draft": "d"} if draft else {}
    shown = Logs(log_dir=Path("l"), tee=(0, 1))
    for asked, sums in ((None, "auto"), (SliceOptions(sums="whole"), "whole"), (SliceOptions(), "auto")):
        started.clear()
        with language.load_language_model("m", options=asked, ranks=2, logs=shown, **more) as made:
            assert made.draft == ("d" if draft else None)
        assert [one[:4] for one in started] == logs and {one[4] for one in started} == {sums}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (Start(), 1),
        (Start(launcher="mpirun"), 1),
        (Start(launcher="local"), 0),  # which is asked for this pod alone
        (Start(placement=Placement(nodes=2)), 0),
    ],
)
def test_a_pod_that_knows_no_others_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: Start, said: int
) -> None:
    monkeypatch.setattr("launcher.job.places.allocation.lone_pod", lambda: "3")
    monkeypatch.setattr("launcher.job.places.allocation.find", lambda environ: None)
    assert _on_hosts(how, 2) is how
    assert [record.getMessage()[:13] for record in caplog.records] == ["this is pod 3"] * said
