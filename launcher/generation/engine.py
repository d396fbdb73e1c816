"""Many texts at once: sequences that join and leave between steps, and beginnings that are computed once.

A thread of the engine owns the decoder. In each round it reads one piece of one prompt, then has every text
that is under way read its newest token, all in one step where the decoder can (`Decoder.step_many`). Each
text is the one that it would be alone.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.generation.decoder import Arrays, Decoder, Ids, Logits, Sequence
from launcher.generation.generate import Manner, Prepared, prepare
from launcher.generation.options import GenerateOptions
from launcher.generation.sample import Completion, Done, Event, Sample, make_samples
from launcher.generation.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from launcher.job.values import Setting


CHUNK = 256
"""Tokens of a prompt that are read between two steps of the texts under way."""
SHORTEST_PREFIX = 16
"""Beginnings of fewer tokens are not worth a copy of their state."""


@dataclass(frozen=True)
class EngineLimits:
    """How much an engine does at once."""

    sequences: int = 8
    """Texts under way; others wait."""
    positions: int | None = None
    """Positions that the texts under way may fill together, their prompts and all that they may still
    generate counted; None: what the context of each allows."""
    waiting: int = 1024
    """Requests that may wait; more are refused."""
    prefixes: int = 4
    """Prompts whose state is kept for others that begin alike; the longest unused goes first."""


class EngineFullError(ShardrunError):
    """More requests wait than may; a later one may succeed."""


class Stream:
    """The texts of one request as they come: an iterator over `Token` and `Done`."""

    def __init__(self, engine: Engine, prepared: Prepared) -> None:
        self._engine = engine
        self.prepared = prepared
        self.completions: list[Completion] = []
        """The texts that have ended."""
        self.events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
        self.cancelled = False
        self._ended = False

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._ended:
            raise StopIteration
        event = self.events.get()
        if event is None or isinstance(event, BaseException):
            self._ended = True
            if event is None:
                raise StopIteration
            raise event
        if isinstance(event, Done):
            self.completions.append(event.completion)
        return event

    def finish(self) -> list[Completion]:
        """Waits for the end; all texts, in order."""
        for _ in self:
            pass
        self.completions.sort(key=lambda item: item.sample)
        return self.completions

    def cancel(self) -> None:
        """Ends the request: no more events come. Safe to call at any time, from any thread."""
        self.cancelled = True
        self._engine.wake()


@dataclass
class _Request:
    """One request under way."""

    stream: Stream
    state: Sequence
    rest: Ids
    """What of the prompt is still to be read."""
    texts: list[tuple[Sample, Sequence]] = field(default_factory=list)

    @property
    def reading(self) -> bool:
        """Whether the prompt is not read yet."""
        return len(self.rest) > 0

    def close(self) -> None:
        self.state.close()
        for _, state in self.texts:
            state.close()
        self.texts = []


class Engine:
    """Generates for many requests at once. Use it in a ``with``, or call `close`."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        tokenizer: Tokenizer | None = None,
        manner: Manner | None = None,
        limits: EngineLimits | None = None,
    ) -> None:
        self._decoder, self._tokenizer, self._manner = decoder, tokenizer, manner
        self.limits = limits or EngineLimits()
        self._changed = threading.Condition()
        self._waiting: deque[Stream] = deque()
        self._requests: list[_Request] = []
        self._prefixes: OrderedDict[bytes, tuple[Ids, Sequence]] = OrderedDict()
        self._closing = False
        self._failure: BaseException | None = None
        self.reused = 0
        """Tokens of prompts that did not have to be read, since another prompt began alike."""
        self.steps = 0
        """Steps of all texts under way so far."""
        self._thread = threading.Thread(target=self._run, name="shardrun engine", daemon=True)
        self._thread.start()

    def submit(
        self,
        prompt: str | Several[int] | Ids | None,
        options: GenerateOptions | None = None,
        *,
        inputs: Arrays | None = None,
        special: bool = True,
        **more: Setting,
    ) -> Stream:
        """Takes a request; its texts come from the stream. The arguments are those of
        `launcher.generation.generate.generate`.

        Raises `ConfigError` for what does not fit the model or the engine's limits, and `EngineFullError`
        where too many wait.
        """
        prepared = prepare(
            self._decoder, prompt, options,
            tokenizer=self._tokenizer, manner=self._manner, inputs=inputs, special=special, **more,
        )  # fmt: skip
        if (prepared.options.beams or 1) > 1 or prepared.options.speculate:
            raise ConfigError(
                "beams and speculate: an engine chooses one token of each text in a step; leave "
                "them out, or generate without an engine"
            )
        needed = self._needed(prepared)
        if self.limits.positions is not None and needed > self.limits.positions:
            raise ConfigError(
                f"the prompt and its texts may need {needed} positions, but the engine has room for "
                f"{self.limits.positions}: ask for fewer or shorter texts"
            )
        if prepared.options.samples > self.limits.sequences:
            raise ConfigError(
                f"{prepared.options.samples} samples are asked for, but the engine works on "
                f"{self.limits.sequences} texts at once"
            )
        stream = Stream(self, prepared)
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise LaunchError("This engine is closed: start another one.")
            if len(self._waiting) >= self.limits.waiting:
                raise EngineFullError(f"{len(self._waiting)} requests wait already: try again later.")
            self._waiting.append(stream)
            self._changed.notify_all()
        return stream

    def close(self) -> None:
        """Ends all requests, and the thread. Safe to call twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def wake(self) -> None:
        """Something was cancelled."""
        with self._changed:
            self._changed.notify_all()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # All below is the thread's.

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while self._wait():
                self._drop_cancelled()
                self._admit()
                self._read_prompts()
                self._step()
        except BaseException as error:
            failure = error
        with self._changed:
            self._failure = failure
            self._closing = True
            waiting, self._waiting = list(self._waiting), deque()
        ended = failure or LaunchError("The engine was closed before the text ended.")
        for stream in waiting:
            stream.events.put(ended)
        for request in self._requests:
            request.stream.events.put(ended)
            if failure is None:
                request.close()
        self._requests = []
        if failure is None:
            for _, state in self._prefixes.values():
                state.close()

    def _wait(self) -> bool:
        """Until there is something to do; false where the engine closes."""
        with self._changed:
            while not (self._closing or self._waiting or self._requests):
                self._changed.wait()
            return not self._closing

    def _drop_cancelled(self) -> None:
        for request in [item for item in self._requests if item.stream.cancelled]:
            self._end(request)
        with self._changed:
            gone = [stream for stream in self._waiting if stream.cancelled]
            for stream in gone:
                self._waiting.remove(stream)
        for stream in gone:
            stream.events.put(None)

    def _end(self, request: _Request, error: BaseException | None = None) -> None:
        self._requests.remove(request)
        request.close()
        request.stream.events.put(error)

    def _needed(self, prepared: Prepared) -> int:
        """Positions that a request may fill."""
        most = prepared.options.max_new_tokens or 0
        return (len(prepared.read) + most) * prepared.options.samples

    def _admit(self) -> None:
        """Lets waiting requests in, in their order, as far as there is room."""
        while True:
            with self._changed:
                if not self._waiting:
                    return
                first = self._waiting[0]
                texts = sum(item.stream.prepared.options.samples for item in self._requests)
                filled = sum(self._needed(item.stream.prepared) for item in self._requests)
                more = first.prepared.options.samples
                fits = (
                    self.limits.positions is None
                    or filled + self._needed(first.prepared) <= self.limits.positions
                )
                if texts + more > self.limits.sequences or not fits:
                    return
                self._waiting.popleft()
            try:
                state, known = self._begin(first.prepared)
            except (ShardrunError, ValueError) as error:
                if isinstance(error, RankFailedError | LaunchError):
                    first.events.put(error)
                    raise
                first.events.put(error)
                continue
            self._requests.append(_Request(first, state, first.prepared.read[known:]))

    def _begin(self, prepared: Prepared) -> tuple[Sequence, int]:
        """A sequence for a request, and how much of its prompt it has read: what another began alike."""
        if prepared.given:
            return self._decoder.sequence(prepared.given), 0
        best, found = 0, b""
        for key, (ids, _) in self._prefixes.items():
            common = _common(ids, prepared.read[:-1])
            if not self._decoder.rewinds and common < len(ids):
                common = 0
            if common > best:
                best, found = common, key
        if best < SHORTEST_PREFIX:
            return self._decoder.sequence(None), 0
        self._prefixes.move_to_end(found)
        state = self._prefixes[found][1].fork()
        state.rewind(best)
        self.reused += best
        return state, best

    def _read_prompts(self) -> None:
        """Reads a piece of the first prompt that is not read yet."""
        for request in self._requests:
            if request.reading:
                break
        else:
            return
        piece = request.stream.prepared.options.chunk or CHUNK
        try:
            logits = request.state.step(request.rest[:piece])
        except (RankFailedError, LaunchError):
            raise
        except ShardrunError as error:
            self._end(request, error)
            return
        request.rest = request.rest[piece:]
        if not request.reading:
            self._keep_prefix(request)
            self._start_texts(request, logits)

    def _keep_prefix(self, request: _Request) -> None:
        read = request.stream.prepared.read
        if request.stream.prepared.given or not self.limits.prefixes or len(read) < SHORTEST_PREFIX:
            return
        key = read.tobytes()
        if key in self._prefixes:
            self._prefixes.move_to_end(key)
            return
        while len(self._prefixes) >= self.limits.prefixes:
            self._prefixes.popitem(last=False)[1][1].close()
        self._prefixes[key] = read, request.state.fork()

    def _start_texts(self, request: _Request, logits: Logits) -> None:
        prepared = request.stream.prepared
        samples = make_samples(
            prepared.options, self._decoder.vocabulary, prepared.read, prepared.limits, self._tokenizer
        )
        states = [request.state, *(request.state.fork() for _ in samples[1:])]
        request.texts = list(zip(samples, states, strict=True))
        self._take(request, [logits] * len(samples))

    def _step(self) -> None:
        """One token more of every text under way."""
        going = [(request, text) for request in self._requests for text in request.texts]
        if not going:
            return
        ids = np.array([sample.ids[-1] for _, (sample, _) in going], np.int64)
        rows = self._decoder.step_many([state for _, (_, state) in going], ids)
        self.steps += 1
        for request in dict.fromkeys(request.stream for request, _ in going):
            mine = [row for (other, _), row in zip(going, rows, strict=True) if other.stream is request]
            self._take(next(item for item in self._requests if item.stream is request), mine)

    def _take(self, request: _Request, rows: Several[Logits]) -> None:
        """Chooses the next token of each text of a request."""
        still = []
        try:
            for (sample, state), row in zip(request.texts, rows, strict=True):
                request.stream.events.put(sample.take(sample.choose(row[0]), row[0]))
                if sample.reason is None:
                    still.append((sample, state))
                    continue
                state.close()
                request.stream.events.put(sample.done())
        except ShardrunError as error:
            self._end(request, error)
            return
        request.texts = still
        if not still:
            self._end(request)


def _common(one: Ids, other: Ids) -> int:
    """How many tokens two prompts begin with alike."""
    shorter = min(len(one), len(other))
    differ = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differ[0]) if len(differ) else shorter
