"""Models of a server: what each start of their ranks is given."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("prometheus_client", reason="what serving needs is not installed")

from launcher.errors import ConfigError, LaunchError
from launcher.job.cache import sliced
from launcher.job.job import Job
from launcher.serving import opening
from launcher.serving.access import ACCESS, client_log
from launcher.serving.kserve.routes import is_ready
from launcher.serving.kserve.tensors import described, from_bytes, to_bytes
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.models import State
from launcher.serving.opening import Offer, repository_of
from launcher.serving.options import ModelOptions
from launcher.serving.refusals import RefusalError
from launcher.serving.server import Listening
from launcher.serving.tensor_model import TensorModel
from launcher.serving.text_model import TextModel
from ranks.common.tensors import OBJECT, TensorSpec
from tests.launcher.serving.encoders_made import save_encoder, save_folder


def folders(made: dict[str, Job], monkeypatch: pytest.MonkeyPatch) -> list[Path | None]:
    """The log folders of each model's first starts."""
    begun: list[Job] = []
    monkeypatch.setattr(opening, "group_of", lambda job, *_: begun.append(job))
    offers = [Offer(name, job, ModelOptions()) for name, job in made.items()]
    for model in repository_of(offers, ServeLimits(), Metrics()).models.values():
        for _ in range(3):
            cast(Any, model).open_group()
    return [job.log_dir for job in begun]


def test_each_start_writes_into_a_folder_of_its_own(
    two_slices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that others have written into is refused: ranks that were lost would not come again."""
    logs, job = Path("logs"), Job(model=two_slices, log_dir=Path("logs"), restart="on-failure")
    assert folders({"one": job}, monkeypatch) == [logs, logs / "load-2", logs / "load-3"]
    found = folders({"a": job, "b": job, "c": Job(model=two_slices)}, monkeypatch)
    assert found[:2] == [logs / "a", logs / "a/load-2"] and found[3] == logs / "b"
    assert len(set(found[:6])) == 6 and found[6:] == [None] * 3


def test_folders_of_encoders_are_known_by_their_graphs(tmp_path: Path, texts: Path) -> None:
    """Those of language models are none, and a file with texts elsewhere may be either."""
    folder = save_folder(tmp_path / "encoder")
    decoder = texts / "model.onnx"

    def made(model: Path, elsewhere: Path | None = None) -> Any:
        return Offer("x", Job(model=model), ModelOptions(texts=elsewhere)).made(ServeLimits(), Metrics())

    for model in (folder, folder / "model.onnx"):
        found = made(model)
        assert isinstance(found, TensorModel) and found.encoder is not None
    alone = save_encoder(tmp_path / "alone.onnx")
    assert isinstance(made(alone), TensorModel) and made(alone).encoder is None
    assert made(alone, folder).encoder is not None
    assert isinstance(made(texts), TextModel) and isinstance(made(decoder, texts), TextModel)
    plain = made(decoder)
    assert isinstance(plain, TensorModel) and plain.encoder is None
    with pytest.raises(ConfigError, match="max-batch-size"):
        Offer("x", Job(model=texts), ModelOptions(max_batch_size=2)).made(ServeLimits(), Metrics())
    assert Offer("x", Job(model=folder), ModelOptions(max_batch_size=2)).made(ServeLimits(), Metrics())


def test_slices_of_an_encoder(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "encoder")
    slices = sliced(folder / "model.onnx", 2)
    found = Offer("x", Job(model=slices), ModelOptions(texts=folder)).made(ServeLimits(), Metrics())
    assert isinstance(found, TensorModel) and found.encoder is not None


def test_each_graph_of_a_language_model_too(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, begun = {"encoder": Path("e.onnx"), "decoder": Path("d.onnx")}, list[Path | None]()
    folder = SimpleNamespace(parts=parts, name_of=lambda path: {"e": "encoder", "d": "decoder"}[path.stem])

    @contextlib.contextmanager
    def opened(job: Job, ranks: int) -> Any:
        begun.append(job.log_dir)
        yield None

    def assemble(folder: Any, started: Any) -> SimpleNamespace:
        for path in folder.parts.values():
            with started(path):
                pass
        return SimpleNamespace()

    monkeypatch.setattr(opening, "read_folder", lambda *given: folder)
    monkeypatch.setattr(opening, "opened", opened)
    monkeypatch.setattr(opening, "start_group", lambda *given: contextlib.nullcontext("group"))
    monkeypatch.setattr(opening, "program_of", lambda group: None)
    monkeypatch.setattr(opening, "assemble", assemble)
    made = opening.language_model(Job(model=Path("m"), log_dir=Path("logs")), None)
    assert made.groups == ["group", "group"]
    assert begun == [Path("logs/encoder"), Path("logs/decoder")]


def test_a_port_is_one_servers_before_it_answers() -> None:
    """Models take a while to load: two servers of one port must not both begin to."""
    with Listening(port=0).socket() as first:
        port = first.getsockname()[1]
        with pytest.raises(LaunchError, match=f"--port {port}: this address cannot be used"):
            Listening(port=port).socket()


def test_it_is_ready_where_all_models_may_be_asked() -> None:
    def ready(*states: State, **more: bool) -> bool:
        models = {str(number): SimpleNamespace(state=state) for number, state in enumerate(states)}
        told = {"starting": False, "draining": False, **more}
        return is_ready(cast("Any", SimpleNamespace(repository=SimpleNamespace(models=models), **told)))

    assert ready() and ready(State.READY, State.UNLOADED)
    assert not ready(State.READY, State.LOADING) and not ready(State.FAILED, State.READY)
    assert not ready(State.READY, starting=True) and not ready(State.READY, draining=True)


def test_how_inputs_are_described_to_clients() -> None:
    dtype = np.dtype(np.float32)
    found = [
        described(spec) for spec in (TensorSpec("x", dtype, ("n", 3, None)), TensorSpec("y", OBJECT, ()))
    ]
    assert found == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 3, -1]},
        {"name": "y", "datatype": "BYTES", "shape": []},
    ]
    assert described(TensorSpec("z", dtype, (), open_rank=True))["shape"] == [-1]


def test_texts_as_bytes() -> None:
    texts = np.array([["", "\u00e4\n"], ["x" * 300, "a"]], OBJECT)
    raw = to_bytes(texts)
    assert from_bytes(raw, OBJECT, (2, 2)).tolist() == texts.tolist()
    short, long = (1).to_bytes(4, "little"), (9).to_bytes(4, "little")
    for data, shape in (
        (raw, (3,)), (raw, (5,)), (raw[:-1], (2, 2)), (raw + b"x", (2, 2)), (long + b"x", (1,)),
        (short, (1,)),
    ):  # fmt: skip
        with pytest.raises(RefusalError, match=r"expected \d texts"):
            from_bytes(data, OBJECT, shape)
    with pytest.raises(RefusalError, match="expected texts in UTF-8"):
        from_bytes(short + b"\xff", OBJECT, (1,))


def test_a_log_of_requests_is_written_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger(ACCESS)
    before = log.handlers[:], log.level, log.propagate
    try:
        client_log()
        log.info('{"status": 200}')
        log.debug("nothing")
    finally:
        log.handlers[:], log.level, log.propagate = before
        log.setLevel(log.level)  # what is known of levels is forgotten
    assert capsys.readouterr() == ("", '{"status": 200}\n')


@pytest.mark.parametrize("name", ["bert", "a b", "ä", "...", "v1.2"])
def test_names_of_models(name: str) -> None:
    assert opening._is_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\nb", 3, None])
def test_what_is_no_name_of_a_model(name: object) -> None:
    """It is a part of paths."""
    assert not opening._is_name(name)


def test_a_model_has_the_name_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert opening.name_of(Path("a/bert.v2.onnx")) == "bert.v2"
    assert (
        opening.name_of(Path()) == tmp_path.name.partition(".")[0] and opening.name_of(Path("/")) == "model"
    )
