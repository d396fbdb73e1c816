"""Steps that ranks make by themselves: of logits that they have in parts, only the best tokens travel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

import sharding
from ranks.collectives.broadcast import Spreader
from ranks.run import executor
from ranks.run.steps.follow import Lead, follow
from ranks.tokens.chooser import Chooser
from ranks.tokens.options import SamplingOptions
from tests.launcher.generation import tiny
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

if TYPE_CHECKING:
    from ranks.talk.control import Control
    from ranks.talk.reports import RunReport

PROMPT, COUNT = [5, 66, 7, 123, 9, 40, 41], 24


class Told:
    """Stands in for the launcher."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def send(self, _kind: object, fields: Mapping[str, Any]) -> None:
        self.tokens += fields["tokens"]

    def limit_of(self, _request: int, ahead: int) -> int:
        return ahead


@pytest.fixture(scope="module", params=[2, 4])
def slices(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    folder = tmp_path_factory.mktemp("parted")
    sharding.slice_model(tiny.save_decoder(folder / "model.onnx"), request.param, folder / "slices")
    return folder, request.param


def expected(path: Path, options: SamplingOptions) -> list[int]:
    """The tokens by the logits of plain ONNX Runtime."""
    plain = tiny.Plain(path)
    chooser = Chooser(options, tiny.VOCABULARY, np.array(PROMPT), [])
    for _ in range(COUNT):
        chooser.read(chooser.choose(plain.logits([*PROMPT, *chooser.ids])[-1]))
    return chooser.ids


@pytest.mark.parametrize(
    ("given", "few"),
    [
        ({}, True),
        ({"repetition_penalty": 1.4, "suppressed": (3, 150, 303)}, True),
        ({"temperature": 1.5, "seed": 7, "top_k": 12, "top_p": 0.95}, True),
        ({"temperature": 1.5, "seed": 7}, True),
        ({"temperature": 1.5, "seed": 7, "top_p": 0.95, "repetition_penalty": 1.2}, True),
        ({"temperature": 1.5, "seed": 7, "min_p": 0.05}, True),
        ({"temperature": 1.5, "seed": 7, "top_k": 90}, False),
    ],
    ids=str,
)
def test_only_the_best_tokens_travel(slices: tuple[Path, int], given: dict[str, Any], few: bool) -> None:
    folder, size = slices
    options = SamplingOptions(**given)
    want = expected(folder / "model.onnx", options)
    chooser = Chooser(options, tiny.VOCABULARY, np.array(PROMPT), [])
    chooser.read(want[0])
    run: RunReport = {
        "tokens": "input_ids",
        "logits": "logits",
        "vocabulary": tiny.VOCABULARY,
        "most": COUNT - 1,
        "ahead": COUNT,
        "text": chooser.told(),
    }

    def work(rank: FakeCommunicator) -> tuple[list[int], list[tuple[str, tuple[int, ...]]], Any]:
        model = executor.load(folder / "slices" / f"rank_{rank.rank}.onnx", communicator=rank, threads=1)
        sequences = model.sequences
        sequences.open(1)
        model.step(1, {"input_ids": np.array([PROMPT])})
        told = Told()
        lead = Lead(run, 1, cast("Control", told)) if rank.rank == 0 else None
        rank.calls.clear()
        first = {"input_ids": np.array([[want[0]]])}
        assert follow(model, 1, first, run, Spreader(rank), lead) is None
        calls = list(rank.calls)
        # A step that wants all logits finds nothing of it.
        return told.tokens, calls, model.step(1, {"input_ids": np.array([[want[-1]]])})["logits"]

    found = on_ranks(size, work)
    assert found[0][0] == want[1:]
    part = tiny.VOCABULARY // size
    for _, calls, _ in found:
        assert ((1, 1, part) in [shape for _, shape in calls]) is not few
    whole = tiny.Plain(folder / "model.onnx").logits([*PROMPT, *want])[-1]
    for _, _, logits in found:
        assert np.abs(logits[0, -1] - whole).max() < 1e-4 * np.abs(whole).max()
