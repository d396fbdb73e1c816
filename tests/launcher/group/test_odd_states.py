"""State of every type, shape and course, step by step against plain ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher import Group, start
from launcher.errors import ShardrunError
from ranks.state.session import Session
from sharding.demands.options import SliceOptions
from sharding.slices.mesh import parse_mesh
from tests.ranks import odd_states

STEPS = 9
WAYS: dict[str, tuple[dict[str, str], int, str | None]] = {
    "one": (odd_states.ODD, 1, None),
    "two": (odd_states.ODD, 2, None),
    "three": (odd_states.ODD, 3, None),
    "stages": (odd_states.ODD, 2, "pipeline=2"),
    "control": (odd_states.CONTROL, 1, None),
    "control-two": (odd_states.CONTROL, 2, None),
}
"""The models, how many ranks, and the mesh."""


@pytest.fixture(scope="module", params=list(WAYS))
def way(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Group, Path]]:
    texts, ranks, mesh = WAYS[request.param]
    path = tmp_path_factory.mktemp("odd") / "model.onnx"
    odd_states.save(path, texts)
    said = odd_states.SAID if texts is odd_states.ODD else {}
    options = SliceOptions(state=said, mesh=parse_mesh(mesh) if mesh else None)
    with start(
        path, ranks=ranks, launcher="local", threads=1, options=options, allow_replicated=True
    ) as group:
        yield group, path


def check(session: Session, feeds: dict[str, Any], want: dict[str, Any]) -> None:
    found = session.predict(feeds)
    assert found.keys() == want.keys()
    for name, array in want.items():
        assert found[name].shape == array.shape and found[name].dtype == array.dtype, name
        assert np.abs(found[name] - array).max(initial=0) <= 1e-4 * max(1, np.abs(array).max(initial=0)), name


@pytest.mark.timeout(120)
def test_steps_forks_and_beginnings(way: tuple[Group, Path]) -> None:
    group, path = way
    plain = odd_states.Plain(path)
    feeds = [plain.feeds(step) for step in range(STEPS)]
    feeds[0] |= plain.brought
    want = [plain.step({k: v for k, v in fed.items() if k not in plain.pairs}) for fed in feeds]
    assert set(group.session_host.known.states) == set(plain.pairs)
    with group.session() as session:
        for step in range(4):
            check(session, feeds[step], want[step])
        fork = session.fork()
        for one in (session, fork):
            for step in range(4, STEPS):
                check(one, feeds[step], want[step])
        with pytest.raises(ShardrunError, match="is kept by the session"):
            session.predict({**feeds[1], next(iter(plain.pairs)): np.zeros(1, np.float32)})
        session.rewind(0)
        for step in range(STEPS):
            check(session, feeds[step], want[step])
