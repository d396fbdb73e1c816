"""Prompts that ranks are lost over: once they are started again, they are answered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.errors import LaunchError, RankFailedError, ShardrunError
from launcher.tasks import answering


@pytest.mark.parametrize("kind", [RankFailedError, LaunchError])
def test_a_prompt_is_asked_again_once(monkeypatch: pytest.MonkeyPatch, kind: type[ShardrunError]) -> None:
    """Whether a rank was lost, or what had started it."""
    shown: list[object] = []

    @contextlib.contextmanager
    def begin(model: Any, *given: object) -> Iterator[Any]:
        if model == "lost":
            raise kind("mpirun ended by SIGKILL.")
        yield model

    def show(generation: object, prompt: object) -> answering.Timing:
        shown.append(generation)
        return answering.Timing()

    monkeypatch.setattr(answering, "_begin", begin)
    task = SimpleNamespace(prompts=SimpleNamespace(single=True), options=None, batch=None)
    to = SimpleNamespace(show=show, say=lambda *given: None)
    given: Any = cast(Any, "lost"), cast(Any, task)
    answering._answer_each(*given, iter([None, None]), None, cast(Any, to), lambda: cast(Any, "there"))
    assert shown == ["there", "there"]
    with pytest.raises(kind, match="SIGKILL"):
        answering._answer_each(*given, iter([None]), None, cast(Any, to), lambda: cast(Any, "lost"))
