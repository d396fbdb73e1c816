"""The prompts of ``shardrun generate`` through an engine: several at once, answered in their order."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from launcher.errors import ConfigError, LaunchError, RankFailedError
from launcher.generation.engine import Engine
from launcher.generation.model import LanguageModel
from launcher.generation.options import GenerateOptions
from launcher.generation.resident import ResidentDecoder
from launcher.generation.streams import Stream
from launcher.tasks.prompts import Prompt

BATCH = 8
"""Texts at once where nobody says how many and the model can read them in one batch."""


@dataclass(frozen=True)
class Asked:
    """A prompt that the engine works on; ``number``: which it is, from 0.

    ``fault``: what is wrong with it; ``lost``: why the engine could not take it."""

    number: int
    prompt: Prompt
    stream: Stream | None = None
    fault: ConfigError | None = None
    lost: LaunchError | RankFailedError | None = None


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
        self,
        model: LanguageModel,
        engine: Engine,
        prompts: Iterator[Prompt],
        options: GenerateOptions,
        *,
        keep_going: bool = False,
    ) -> None:
        """``keep_going``: what is wrong with a prompt is given in its place."""
        self._model, self._engine, self._prompts, self._options = model, engine, prompts, options
        self._keep_going = keep_going
        self._ready: deque[Asked | BaseException | None] = deque()
        self._turn = threading.Lock()
        # One more for each text under way is ready when it ends.
        self._room = threading.Semaphore(2 * engine.limits.sequences)
        self._asked: queue.SimpleQueue[Asked | BaseException | None] = queue.SimpleQueue()
        # Standard input may never end: this thread is not waited for.
        threading.Thread(target=self._feed, name="shardrun prompts", daemon=True).start()

    def _feed(self) -> None:
        try:
            for number, prompt in enumerate(self._prompts):
                self._room.acquire()
                with self._turn:
                    self._asked.put(self._submitted(Asked(number, prompt)))
        except BaseException as error:
            self._asked.put(error)
        else:
            self._asked.put(None)

    def _submitted(self, asked: Asked) -> Asked:
        """The same with the engine that there is now; without a stream where its ranks are lost."""
        if asked.fault is not None:
            return asked
        try:
            return replace(asked, stream=self._submit(asked.prompt), lost=None)
        except (LaunchError, RankFailedError) as error:
            return replace(asked, stream=None, lost=error)
        except ConfigError as error:
            if not self._keep_going:
                raise
            return replace(asked, fault=error, lost=None)

    def _submit(self, prompt: Prompt) -> Stream:
        if prompt.fault is not None:
            raise prompt.fault
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
        while True:
            asked = self._ready.popleft() if self._ready else self._asked.get()
            if asked is None:
                return
            if isinstance(asked, BaseException):
                raise asked
            yield asked
            self._room.release()

    def move(self, engine: Engine, asked: Asked) -> Asked:
        """Another engine is there, in place of one whose ranks were lost: all that is not answered goes
        there, ``asked`` first."""
        with self._turn:
            self._engine = engine
            late = [*self._ready, *self._drained()]
            again = self._submitted(asked)
            self._ready = deque(self._submitted(item) if isinstance(item, Asked) else item for item in late)
            return again

    def _drained(self) -> Iterator[Asked | BaseException | None]:
        while not self._asked.empty():
            yield self._asked.get()


def timed(
    feeder: Feeder, show: Callable[[Asked], object], again: Callable[[], Engine | None]
) -> tuple[int, int, int, float]:
    """Shows every answer; prompts, their tokens, tokens generated, and seconds from the first prompt's turn
    to the last token. ``again``: gives another engine where ranks were lost, which are started again."""
    prompts = read = made = 0
    began, last = float("inf"), 0.0
    for first in feeder.each():
        asked, tries = first, 1
        while True:
            try:
                if asked.lost is not None:
                    raise asked.lost
                show(asked)
                break
            except (RankFailedError, LaunchError):
                engine = again() if tries < 2 else None
                if engine is None:
                    raise
                tries += 1
                asked = feeder.move(engine, asked)
        prompts += 1
        if asked.stream is None:
            continue
        pace = asked.stream.pace
        began, last = min(began, pace.began), max(last, pace.last)
        read += len(asked.stream.prompt)
        made += asked.stream.tokens
    return prompts, read, made, max(0.0, last - began) if prompts and last else 0.0
