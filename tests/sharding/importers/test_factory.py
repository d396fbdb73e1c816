"""Networks that a user's module builds, or has built."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharding.errors import ModelError, OptionError
from sharding.importers.networks.factory import build

pytest.importorskip("torch", reason="torch is not installed")
MODULE = """
import torch
made = torch.nn.Linear(2, 3)
class Net(torch.nn.Linear):
    def __init__(self, inputs=4): super().__init__(inputs, 5)
def function(): return torch.nn.Linear(6, 7)
def fails(): raise SystemExit("on purpose")
def wants(more): return torch.nn.Linear(6, more)
number = 3
class Inside: net = Net
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_users_networks.py").write_text(MODULE)
    return "a_users_networks"


@pytest.mark.parametrize(("name", "inputs"), [("made", 2), ("Net", 4), ("function", 6), ("Inside.net", 4)])
def test_what_is_named_is_built_or_taken(name: str, inputs: int, module: str) -> None:
    network = build(f"{module}:{name}")
    assert (network.kind, network.what, network.module.in_features) == ("torch", f"{module}:{name}", inputs)


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("fails", ModelError, "it could not be built without arguments"),
        ("wants", ModelError, "it could not be built without arguments"),
        ("number", ModelError, "gives int; expected a torch.nn.Module"),
        ("nothing", OptionError, "has no 'nothing'"),
    ],
)
def test_what_gives_no_network(name: str, kind: type[Exception], why: str, module: str) -> None:
    with pytest.raises(kind, match=why):
        build(f"{module}:{name}")
