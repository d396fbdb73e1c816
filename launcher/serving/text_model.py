"""A language model: its engine works on many texts at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from launcher.generation.sample import Done, Token
from launcher.serving.models import Served, is_loss
from launcher.serving.refusals import RefusalError

if TYPE_CHECKING:
    from launcher.generation.engine import Engine
    from launcher.generation.model import LanguageModel
    from launcher.generation.options import GenerateOptions
    from launcher.generation.sample import Event
    from launcher.generation.streams import Stream


@dataclass(frozen=True)
class Speaking:
    """A language model that is ready."""

    model: LanguageModel
    engine: Engine


@dataclass
class TextModel(Served[Speaking]):
    """A language model behind its engine. ``open_model``: starts it; ``ended``: whether ranks of it have died
    since."""

    open_model: Callable[[], LanguageModel] = field(kw_only=True)
    ended: Callable[[], bool] = field(default=lambda: False, kw_only=True)
    created: int = field(default_factory=lambda: int(time.time()), kw_only=True)

    def _start(self) -> Speaking:
        model = self.open_model()
        try:
            if model.tokenizer is not None:
                model.tokenizer.warm()
            engine = model.engine(sequences=self.limits.texts, waiting=self.limits.queue)
        except BaseException:
            model.close()
            raise
        return Speaking(model, engine)

    def _stop(self, ready: Speaking) -> None:
        try:
            ready.engine.close()
        finally:
            ready.model.close()

    def _gone(self, ready: Speaking) -> bool:
        return ready.engine.closed or self.ended()

    async def submit(
        self,
        prompt: str | list[int],
        options: GenerateOptions,
        *,
        special: bool = True,
        client: str = "",
        priority: int = 0,
    ) -> tuple[Stream, Speaking]:
        """Takes a request of a ``client``, who has its turn among those that wait; priority 0 goes before 1.
        Raises `RefusalError`, and `ConfigError` for what does not fit the model."""
        ready = await self.until_ready(time.monotonic() + self.limits.seconds)
        try:
            # A long prompt takes the tokenizer a while.
            stream = await asyncio.to_thread(
                ready.engine.submit, prompt, options, special=special, client=client, priority=priority
            )
        except Exception as error:
            self._note(error, ready)
            raise
        self.metrics.prompt_tokens.labels(self.name).inc(len(stream.prompt))
        return stream, ready

    async def events(self, stream: Stream, ready: Speaking) -> AsyncGenerator[Event, None]:
        """The events of a stream as they come; the request ends where nobody reads on, and with
        `RefusalError` where it is silent for too long."""
        loop, came = asyncio.get_running_loop(), asyncio.Event()

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
                loop.call_soon_threadsafe(came.set)

        stream.follow(told)
        began = last = time.perf_counter()
        try:
            while True:
                came.clear()
                if stream.waits:
                    try:
                        await asyncio.wait_for(came.wait(), self.limits.seconds)
                    except asyncio.TimeoutError:
                        raise RefusalError(
                            HTTPStatus.GATEWAY_TIMEOUT,
                            f"the model {self.name!r} gave no token for {self.limits.seconds:g} s",
                        ) from None
                    continue
                try:
                    event = next(stream, None)
                except Exception as error:
                    self.numbers.failed += 1
                    self._note(error, ready)
                    raise
                if event is None:
                    break
                now = time.perf_counter()
                if isinstance(event, Token):
                    self.metrics.tokens.labels(self.name).inc()
                    (self.metrics.first if last == began else self.metrics.between).labels(self.name).observe(
                        now - last
                    )
                    last = now
                yield event
            self.numbers.succeeded += 1
            self.numbers.runs += 1
            self.numbers.last = time.time()
        finally:
            stream.cancel()

    def _note(self, error: Exception, ready: Speaking) -> None:
        if is_loss(error) or ready.engine.closed:  # it gives no more texts, whatever went wrong
            self.lost(error, ready)


async def finished(model: TextModel, stream: Stream, ready: Speaking) -> list[Done]:
    """All texts of a stream, in the order of its samples."""
    found = [event async for event in model.events(stream, ready) if isinstance(event, Done)]
    return sorted(found, key=lambda event: event.sample)
