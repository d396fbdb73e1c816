"""A language model: its engine works on many texts at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from launcher.generation.sample import Done, Token
from launcher.serving.models import Served, State
from launcher.serving.openai.calls import form_of
from launcher.serving.refusals import RefusalError, is_loss
from launcher.serving.seeing.traces import CURRENT
from launcher.serving.seeing.usage import USAGE

if TYPE_CHECKING:
    from launcher.generation.engine import Engine
    from launcher.generation.model import LanguageModel
    from launcher.generation.options import GenerateOptions
    from launcher.generation.sample import Event
    from launcher.generation.streams import Stream
    from launcher.generation.text.chat import ChatTemplate
    from launcher.group.group import Group
    from launcher.serving.openai.calls import CallForm
    from launcher.serving.seeing.traces import Trace

log = logging.getLogger(__name__)

_TRIES = 2
"""How often a text is begun of which no token was told: again where ranks were lost beside it."""
_END_SECONDS = 5.0
"""For the step under way, when the ranks are to end."""


@dataclass(frozen=True)
class Speaking:
    """A language model that is ready. Its engine ends with ranks that are lost; the next has those that come
    after them."""

    model: LanguageModel
    engine: Engine


@dataclass
class TextModel(Served[Speaking]):
    """A language model behind its engine. ``open_model``: starts it."""

    open_model: Callable[[], LanguageModel] = field(kw_only=True)
    created: int = field(default_factory=lambda: int(time.time()), kw_only=True)
    _form: tuple[ChatTemplate, CallForm | None] | None = None
    _forming: asyncio.Lock = field(default_factory=asyncio.Lock)

    def _start(self) -> Speaking:
        model = self.open_model()
        try:
            if model.tokenizer is not None:
                model.tokenizer.warm()
            return Speaking(model, self._engine(model))
        except BaseException:
            model.close()
            raise

    def _engine(self, model: LanguageModel) -> Engine:
        return model.engine(sequences=self.limits.texts, waiting=self.limits.queue)

    def _stop(self, ready: Speaking) -> None:
        # It may wait for ranks that are being started again: only their end ends that.
        closing = threading.Thread(target=ready.engine.close, name="shardrun end")
        closing.start()
        closing.join(_END_SECONDS)
        ready.model.close()
        closing.join()

    def _groups(self, ready: Speaking) -> Sequence[Group]:
        return cast("Sequence[Group]", ready.model.groups)

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return 0 if self._ready is None else self._ready.engine.waiting

    @property
    def busy(self) -> bool:
        """Whether anything is to be answered."""
        return bool(self.under_way or (self._ready is not None and self._ready.engine.busy))

    def look(self) -> None:
        """Notes ranks that have died; an engine that has ended with its ranks gives way to another one."""
        super().look()
        ready = self._ready
        if ready is None or not ready.engine.closed or self._stage is not State.READY:
            return
        try:
            self._ready = Speaking(ready.model, self._engine(ready.model))
        except Exception:  # such as no room for a thread: the next look tries again
            log.exception("model %s: it could not go on after its ranks were lost", self.name)

    async def call_form(self, ready: Speaking) -> CallForm | None:
        """How the model writes calls of functions; None where that cannot be known."""
        template = ready.model.template
        if template is None:
            return None
        async with self._forming:  # several processes find it out, and many may ask at once
            if self._form is None or self._form[0] is not template:
                self._form = template, await asyncio.to_thread(form_of, template.text)
            return self._form[1]

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
        stream, ready = await self._submit(prompt, options, special=special, client=client, priority=priority)
        self.metrics.prompt_tokens.labels(self.name).inc(len(stream.prompt))
        if (usage := USAGE.get()) is not None:
            usage.prompt_tokens += len(stream.prompt)
        return stream, ready

    async def _submit(
        self, prompt: str | list[int], options: GenerateOptions, *, special: bool, client: str, priority: int
    ) -> tuple[Stream, Speaking]:
        end = time.monotonic() + self.limits.seconds
        for last in range(_TRIES):
            ready = await self.until_ready(end)
            if ready.engine.closed:
                self.look()
                ready = await self.until_ready(end)
            try:
                # A long prompt takes the tokenizer a while.
                submit = functools.partial(ready.engine.submit, prompt, options, special=special)
                stream = await _submitted(functools.partial(submit, client=client, priority=priority))
            except Exception as error:
                self._note(error, ready)
                if not is_loss(error) or last == _TRIES - 1:
                    raise
            else:
                return stream, ready
        raise AssertionError

    async def events(self, stream: Stream, ready: Speaking) -> AsyncGenerator[Event, None]:
        """The events of a stream as they come; the request ends where nobody reads on, and with
        `RefusalError` where it is silent for too long. Where ranks are lost before the first of them, it is
        begun again, once."""
        loop, came, trace = asyncio.get_running_loop(), asyncio.Event(), CURRENT.get()

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
                loop.call_soon_threadsafe(came.set)

        stream.follow(told)
        asked, tries, usage = time.perf_counter(), 1, USAGE.get()
        last = asked
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
                    self._note(error, ready)
                    if not is_loss(error) or last != asked or tries == _TRIES:
                        self.numbers.failed += 1
                        raise
                    tries += 1
                    stream, ready = await self._submit(
                        stream.prompt, stream.options, special=stream.goes_on,
                        client=stream.client, priority=stream.priority,
                    )  # fmt: skip
                    stream.follow(told)
                    continue
                if event is None:
                    break
                now = time.perf_counter()
                if isinstance(event, Token):
                    self.metrics.token(self.name)
                    if usage is not None:
                        usage.generated_tokens += 1
                    (self.metrics.first if last == asked else self.metrics.between).labels(self.name).observe(
                        now - last
                    )
                    last = now
                yield event
            if not stream.cancelled:
                self.numbers.succeeded += 1
                self.numbers.runs += 1
                self.numbers.last = time.time()
        finally:
            stream.cancel()
            if trace is not None:
                _note_pace(trace, stream)

    def _note(self, error: Exception, ready: Speaking) -> None:
        if is_loss(error) or ready.engine.closed:  # it gives no more texts, whatever went wrong
            self.look()


async def _submitted(submit: Callable[[], Stream]) -> Stream:
    """The stream that ``submit`` gives in a thread; one that comes when nobody waits for it any more ends."""
    submitting = asyncio.ensure_future(asyncio.to_thread(submit))
    try:
        return await asyncio.shield(submitting)
    except asyncio.CancelledError:
        submitting.add_done_callback(_end_unwanted)
        raise


def _end_unwanted(submitting: asyncio.Future[Stream]) -> None:
    if not submitting.cancelled() and submitting.exception() is None:
        submitting.result().cancel()


def _note_pace(trace: Trace, stream: Stream) -> None:
    """Spans of what the engine has noted of a text."""
    pace = stream.pace
    if not pace.began:
        return
    shift = time.monotonic_ns() - time.perf_counter_ns()

    def at(seconds: float) -> int:
        return int(seconds * 1e9) + shift

    trace.passed("queue", at(pace.submitted), at(pace.began))
    if pace.first:
        trace.passed("prompt", at(pace.began), at(pace.first), tokens=len(stream.prompt))
        trace.passed("generate", at(pace.first), at(pace.last))


async def finished(model: TextModel, stream: Stream, ready: Speaking) -> list[Done]:
    """All texts of a stream, in the order of its samples."""
    found = [event async for event in model.events(stream, ready) if isinstance(event, Done)]
    return sorted(found, key=lambda event: event.sample)
