"""Prompts on their way to an engine, and to another one where its ranks were lost."""

from __future__ import annotations

import codecs
import queue
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import ConfigError, RankFailedError
from launcher.tasks.batched_prompts import Feeder
from launcher.tasks.prompts import Prompt, Prompts
from tests.ranks.threads import until


class Engine:
    """Takes what it is given, unless its ranks are lost."""

    limits = SimpleNamespace(sequences=8)

    def __init__(self, *, lost: bool = False) -> None:
        self.lost = lost
        self.given: list[tuple[object, bool]] = []

    def submit(self, prompt: object, options: object, *, special: bool = True) -> Any:
        if self.lost:
            raise RankFailedError("rank 0 was killed")
        if prompt == "wrong":
            raise ConfigError("too long")
        self.given.append((prompt, special))
        return SimpleNamespace(prompt=prompt)


MODEL: Any = SimpleNamespace(text_of=lambda messages: f"<s>{messages[0]}")


def feeder(engine: Any, prompts: Iterator[Prompt], **more: bool) -> Feeder:
    options: Any = None
    return Feeder(MODEL, engine, prompts, options, **more)


def test_what_a_prompt_is_submitted_as() -> None:
    """A chat template writes special tokens itself."""
    engine = Engine()
    prompts = [Prompt("a", text="x"), Prompt("b", ids=[1]), Prompt("c", messages=["hi"])]  # type: ignore[list-item]
    assert [one.number for one in feeder(engine, iter(prompts)).each()] == [0, 1, 2]
    assert engine.given == [("x", True), ([1], True), ("<s>hi", False)]


def test_all_that_waits_moves_to_another_engine_in_its_order() -> None:
    come: queue.SimpleQueue[Prompt | None] = queue.SimpleQueue()
    first, second, third = Engine(lost=True), Engine(lost=True), Engine()
    one = feeder(first, iter(come.get, None))

    def bring(*texts: str) -> None:
        before = one._asked.qsize()
        for text in texts:
            come.put(Prompt(text, text=text))
        until(lambda: one._asked.qsize() == before + len(texts))

    bring("a", "b", "c")
    given = one.each()
    asked = next(given)
    assert asked.prompt.text == "a" and asked.stream is None and asked.lost is not None
    asked = one.move(second, asked)  # type: ignore[arg-type]
    bring("d", "e")
    asked = one.move(third, asked)  # type: ignore[arg-type]
    assert asked.lost is None and asked.stream is not None
    assert [prompt for prompt, _ in third.given] == ["a", "b", "c", "d", "e"]
    come.put(None)  # type: ignore[arg-type]
    assert [item.prompt.text for item in given] == ["b", "c", "d", "e"]


def test_what_is_wrong_with_a_prompt() -> None:
    prompts = [Prompt("line 1", text="x"), Prompt("line 2", text="wrong"), Prompt("line 3", text="y")]
    given = feeder(Engine(), iter(prompts)).each()
    assert next(given).prompt.text == "x"
    with pytest.raises(ConfigError, match=r"^line 2: too long$"):
        next(given)
    found = list(feeder(Engine(), iter(prompts), keep_going=True).each())
    assert [str(item.fault) for item in found] == ["None", "line 2: too long", "None"]


def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    """As editors of Windows write it. Anywhere else it is text."""
    path = tmp_path / "prompts.txt"
    path.write_bytes(codecs.BOM_UTF8 + b"first\n\n" + codecs.BOM_UTF8 + b"second\n")
    assert [prompt.text for prompt in Prompts(file=str(path))] == ["first", "\ufeffsecond"]
    path.write_bytes(codecs.BOM_UTF8 + b'{"ids": [1, 2]}\n')
    assert [prompt.ids for prompt in Prompts(file=str(path))] == [[1, 2]]
