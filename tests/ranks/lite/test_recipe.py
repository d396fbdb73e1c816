"""Which group a model joins when a script names one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ranks.devices.providers import CANN, CPU, CUDA
from ranks.identity.place import Identity
from ranks.lite import build
from ranks.lite.build import Recipe
from ranks.run import group
from ranks.run.placement import Placement
from tests.ranks import api_models

SECOND = Identity(1, 2, 1, 2)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    monkeypatch.setattr(group, "join", lambda identity, *, device: made.append((identity, device)) or "group")
    return made


@pytest.mark.parametrize(
    ("providers", "device"),
    [((CPU,), "cpu"), ((CUDA, CPU), "cuda"), ((CANN, CPU), "cpu"), (("Other",), "cpu")],
)
def test_the_group_is_for_buffers_where_values_lie(
    providers: tuple[str, ...], device: str, joined: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "is_cut", lambda _: True)
    recipe = Recipe(Path("m.onnx"), Placement(providers, ({},) * len(providers)), None, (), SECOND)
    assert recipe._group() == "group"
    assert joined == [(SECOND, device)]


@pytest.mark.parametrize("identity", [None, Identity(0, 1, 0, 1), SECOND])
@pytest.mark.parametrize("cut", [True, False])
def test_who_needs_no_other_joins_none(
    identity: Identity | None, cut: bool, joined: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "is_cut", lambda _: cut)
    found = Recipe(Path("m.onnx"), Placement(), None, (), identity)._group()
    assert found == ("group" if cut and identity is SECOND else None)
    assert len(joined) == (1 if found else 0)


def test_a_plain_model_is_no_part(tmp_path: Path) -> None:
    assert not build.is_cut(api_models.add_one(tmp_path / "one.onnx"))
    assert build.is_cut(tmp_path / "model_{rank}.onnx")
