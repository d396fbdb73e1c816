"""The prompts of ``shardrun generate`` through an engine: several at once, answered in their order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from launcher.errors import ConfigError
from launcher.generation.engine import Engine
from launcher.generation.model import LanguageModel
from launcher.generation.options import GenerateOptions
from launcher.generation.resident import ResidentDecoder
from launcher.generation.streams import Stream
from launcher.tasks.prompts import Prompt, Prompts

BATCH = 8
"""Texts at once where nobody says how many and the model can read them in one batch."""


@dataclass(frozen=True)
class Asked:
    """A prompt that the engine works on; ``number``: which it is, from 0."""

    number: int
    prompt: Prompt
    stream: Stream


def batch_of(model: LanguageModel, options: GenerateOptions, asked: int | None) -> int:
    """How many texts to generate at once; 1: one after another, without an engine."""
    settled = options.filled(model.manner.defaults or {})
    if (settled.beams or 1) > 1 or settled.speculate or model.decoder.encoder_inputs:
        return 1
    if asked is None:
        batches = isinstance(model.decoder, ResidentDecoder) and model.decoder.batches
        asked = BATCH if batches else 1
    return asked if asked == 1 else max(asked, settled.samples)


class Feeder:
    """Gives prompts to an engine while answers are read: a prompt is read as soon as there is room for it,
    and no answer waits for the next prompt."""

    def __init__(
        self, model: LanguageModel, engine: Engine, prompts: Prompts, options: GenerateOptions
    ) -> None:
        self._model, self._engine, self._prompts, self._options = model, engine, prompts, options
        # One more for each text under way is ready when it ends.
        self._room = threading.Semaphore(2 * engine.limits.sequences)
        self._asked: queue.SimpleQueue[Asked | BaseException | None] = queue.SimpleQueue()
        # Standard input may never end: this thread is not waited for.
        threading.Thread(target=self._feed, name="shardrun prompts", daemon=True).start()

    def _feed(self) -> None:
        try:
            for number, prompt in enumerate(self._prompts):
                self._room.acquire()
                self._asked.put(Asked(number, prompt, self._submit(prompt)))
        except BaseException as error:
            self._asked.put(error)
        else:
            self._asked.put(None)

    def _submit(self, prompt: Prompt) -> Stream:
        try:
            if prompt.messages is not None:
                text = self._model.text_of(prompt.messages)
                return self._engine.submit(text, self._options, special=False)
            return self._engine.submit(prompt.ids if prompt.ids is not None else prompt.text, self._options)
        except ConfigError as error:
            raise prompt.wrong(error) from None

    def each(self) -> Iterator[Asked]:
        """What was asked, in order, each when the one before it is answered. Raises what a prompt
        raised, once all before it are answered."""
        while (asked := self._asked.get()) is not None:
            if isinstance(asked, BaseException):
                raise asked
            yield asked
            self._room.release()


def timed(feeder: Feeder, show: Callable[[Asked], object]) -> tuple[int, int, int, float]:
    """Shows every answer; prompts, their tokens, tokens generated, and seconds from the first prompt's turn
    to the last token."""
    prompts = read = made = 0
    began, last = float("inf"), 0.0
    for asked in feeder.each():
        show(asked)
        pace = asked.stream.pace
        began, last = min(began, pace.began), max(last, pace.last)
        prompts += 1
        read += len(asked.stream.prompt)
        made += asked.stream.tokens
    return prompts, read, made, max(0.0, last - began) if prompts else 0.0
