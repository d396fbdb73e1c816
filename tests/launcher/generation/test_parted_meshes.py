"""Texts of ranks that have other layers than others, or another copy of the model: of the logits of those who
have them only the best travel. The texts are those of plain ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sharding
from launcher.generation.model import of_ranks
from launcher.group.led import LedModel, lead_models
from ranks.run import executor
from ranks.run.schedule import Schedule
from sharding.demands.options import SliceOptions
from sharding.slices.mesh import parse_mesh
from tests.launcher.generation import tiny
from tests.launcher.generation.test_parted_scores import COUNT, PROMPT, Work, finished, of_plain
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

MESHES = ("pipeline=2", "pipeline=2,tensor=2", "data=2", "data=2,tensor=2", "data=2,pipeline=2")
ALIKE = 240
"""Words that always have one and the same logit."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_decoder(tmp_path_factory.mktemp("meshes") / "model.onnx")


@pytest.fixture(scope="module")
def alike(path: Path) -> Path:
    """A decoder of which often more words are the likeliest than have room."""
    model = onnx.load(path)
    head = next(item for item in model.graph.initializer if item.name == "head")
    values = numpy_helper.to_array(head).copy()
    values[:, :ALIKE] = values[:, :1]
    head.CopyFrom(numpy_helper.from_array(values, head.name))
    onnx.save(model, path.with_name("alike.onnx"))
    return path.with_name("alike.onnx")


@pytest.fixture
def travelled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Rows of whole logits that ranks told each other."""
    rows: list[int] = []
    real = Schedule.gathered

    def gathered(self: Schedule, outputs: dict[str, Any], *others: Any) -> Any:
        if "logits" in outputs:
            rows.append(len(outputs["logits"]))
        return real(self, outputs, *others)

    monkeypatch.setattr(Schedule, "gathered", gathered)
    yield rows


def led(model: Path, mesh: str, work: Work) -> tuple[Any, int]:
    """What a work gave on the ranks of a mesh, and how often a rank gathered logits."""
    slices, asked = model.with_name(f"{model.stem}-{mesh}"), parse_mesh(mesh)
    if not slices.exists():
        sharding.slice_model(model, asked.size, slices, options=SliceOptions(mesh=asked))
    part = tiny.VOCABULARY // asked.length("tensor")

    def run(rank: FakeCommunicator) -> tuple[Any, int]:
        loaded = executor.load(slices, communicator=rank, threads=1)
        rank.calls.clear()
        found = lead_models(rank, [loaded], lambda models: work(models[0]))
        return found, sum(call == "all_gather" and shape[-1] == part for call, shape in rank.calls)

    found = on_ranks(asked.size, run)
    return found[0][0], sum(count for _, count in found)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"repetition_penalty": 1.4, "suppressed": [3, 150, 303]},
        {"temperature": 1.2, "top_k": 9, "samples": 3, "presence_penalty": 0.5},
        {"temperature": 1.3, "top_p": 0.9, "repetition_penalty": 1.3},
        {"temperature": 1.1, "min_p": 0.01, "samples": 3, "logprobs": 2},
        {"logprobs": 3},
        {"beams": 3},
        {"speculate": 3},
    ],
    ids=str,
)
def test_no_logits_travel(path: Path, mesh: str, given: dict[str, Any], travelled: list[int]) -> None:
    options = {"max_new_tokens": COUNT, "ignore_eos": True, "seed": 5, **given}
    want = of_plain(path).generate(PROMPT, **options).finish()
    found, gathered = led(path, mesh, lambda model: model.generate(PROMPT, **options).finish())
    assert finished(found) == finished(want)
    assert not travelled and not gathered
    for one, other in zip(found, want, strict=True):
        if "logprobs" in given:
            assert np.allclose(one.logprobs, other.logprobs, atol=1e-4)
            assert [[k for k, _ in row] for row in one.top] == [[k for k, _ in row] for row in other.top]


@pytest.mark.parametrize("mesh", MESHES)
def test_where_all_logits_are_needed_they_come(path: Path, mesh: str, travelled: list[int]) -> None:
    options: dict[str, Any] = {"max_new_tokens": 5, "ignore_eos": True, "seed": 2}
    options |= {"temperature": 1.3, "top_k": 100}
    want = of_plain(path).generate(PROMPT, **options).finish()
    found, _ = led(path, mesh, lambda model: model.generate(PROMPT, **options).finish())
    assert finished(found) == finished(want) and len(travelled) >= 5


@pytest.mark.parametrize("mesh", MESHES)
def test_rows_of_copies_that_have_enough_and_others(alike: Path, mesh: str, travelled: list[int]) -> None:
    """In one batch: the rows of a copy travel whole where too many words are alike."""
    asked = [
        (PROMPT[k:], {"max_new_tokens": 8, "ignore_eos": True, "seed": k, "temperature": 2.0, "top_k": 5 + k})
        for k in range(5)
    ]

    def work(model: LedModel) -> Any:
        with of_ranks(model).engine(sequences=8) as engine:
            streams = [engine.submit(prompt, **options) for prompt, options in asked]
            return [stream.finish() for stream in streams]

    found, _ = led(alike, mesh, work)
    plain = of_plain(alike)
    for (prompt, options), completions in zip(asked, found, strict=True):
        assert finished(completions) == finished(plain.generate(prompt, **options).finish())
    assert sum(travelled) > 0
    if mesh == "data=2":
        assert any(0 < rows < 5 for rows in travelled)


def test_rows_of_copies_that_find_enough_in_parts_and_in_the_whole(path: Path) -> None:
    """Most words of one rank's part are alike, so that it shows the likeliest alone: rows of another copy are
    looked through whole, beside those."""
    model = onnx.load(path)
    head = next(item for item in model.graph.initializer if item.name == "head")
    values = numpy_helper.to_array(head).copy()
    values[:, tiny.VOCABULARY // 2 :] = 0
    head.CopyFrom(numpy_helper.from_array(values, head.name))
    padded = path.with_name("padded.onnx")
    onnx.save(model, padded)
    sampled = {"temperature": 2.0, "top_k": 5, "logprobs": 2}
    asked: list[tuple[Any, dict[str, Any]]] = [
        (PROMPT[k:], {"max_new_tokens": 8, "ignore_eos": True, "seed": k, **(sampled if k % 2 else {})})
        for k in range(4)
    ]

    def work(model: LedModel) -> Any:
        with of_ranks(model).engine(sequences=8) as engine:
            streams = [engine.submit(prompt, **options) for prompt, options in asked]
            return [stream.finish() for stream in streams]

    found, _ = led(padded, "data=2,tensor=2", work)
    plain = of_plain(padded)
    for (prompt, options), completions in zip(asked, found, strict=True):
        expected = plain.generate(prompt, **options).finish()
        assert finished(completions) == finished(expected)
        for one, other in zip(completions, expected, strict=True):
            # Logits are tens here: this is their rounding. A token counted twice would be 0.69 off.
            assert "logprobs" not in options or np.allclose(one.logprobs, other.logprobs, atol=1e-3)
