"""Many texts at once: sequences that join and leave between steps, and beginnings that are computed once.

A thread of the engine owns the decoder. In each round it reads one piece of one prompt, then has every text
that is under way read its newest token, all in one step where the decoder can (`Decoder.step_many`). Each
text is the one that it would be alone.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field

import numpy as np

from launcher.common.turns import Turns
from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.generation.decoder import Arrays, Decoder, Ids, Sequence, expect
from launcher.generation.generate import Manner, Prepared, prepare, run_ahead
from launcher.generation.options import GenerateOptions, options_of
from launcher.generation.sample import Sample, make_samples, want_of_all
from launcher.generation.scoring import NOTHING, one_by_one, scores_of, scores_of_each
from launcher.generation.streams import EngineFullError, EngineLimits, Stream
from launcher.generation.text.tokenizer import Tokenizer
from ranks.tokens.scores import Scores
from sharding.common.text import counted

CHUNK = 256
"""Tokens of a prompt that are read between two steps of the texts under way."""
SHORTEST_PREFIX = 16
"""Beginnings of fewer tokens are not worth a copy of their state."""


@dataclass(eq=False)
class _Request:
    """One request."""

    stream: Stream
    prepared: Prepared
    state: Sequence | None = None
    """What reads the prompt, once the request's turn has come."""
    read: int = 0
    """How much of the prompt is read."""
    texts: list[tuple[Sample, Sequence]] = field(default_factory=list)

    @property
    def reading(self) -> bool:
        """Whether the prompt is not read yet."""
        return self.read < len(self.prepared.read)

    @property
    def needed(self) -> int:
        """Positions that it may fill."""
        most = self.prepared.options.max_new_tokens or 0
        return (len(self.prepared.read) + most) * self.prepared.options.samples

    def close(self) -> None:
        """Frees all state."""
        for state in (self.state, *(state for _, state in self.texts)):
            if state is not None:
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
        self._waiting: Turns[_Request] = Turns()
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
        client: str = "",
        priority: int = 0,
        **more: object,
    ) -> Stream:
        """Takes a request; its texts come from the stream. The arguments are those of
        `launcher.generation.generate.generate`; of those that wait each ``client`` has its turn, and priority
        0 goes before 1.

        Raises `ConfigError` for what does not fit the model or the engine's limits, and `EngineFullError`
        where too many wait.
        """
        prepared = prepare(
            self._decoder, prompt, options_of(options, more),
            tokenizer=self._tokenizer, manner=self._manner, inputs=inputs, special=special,
        )  # fmt: skip
        if (prepared.options.beams or 1) > 1 or prepared.options.speculate:
            raise ConfigError(
                "beams and speculate: an engine chooses one token of each text in a step; leave "
                "them out, or generate without an engine"
            )
        has_text = self._tokenizer is not None
        stream = Stream(prepared, self._wake, has_text=has_text, client=client, priority=priority)
        request = _Request(stream, prepared)
        if self.limits.positions is not None and request.needed > self.limits.positions:
            raise ConfigError(
                f"the prompt and its texts may need {request.needed} positions, but the engine has room for "
                f"{self.limits.positions}: ask for fewer or shorter texts"
            )
        if prepared.options.samples > self.limits.sequences:
            raise ConfigError(
                f"{prepared.options.samples} samples are asked for, but the engine works on "
                f"{self.limits.sequences} texts at once"
            )
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise LaunchError("This engine is closed: start another one.")
            if len(self._waiting) >= self.limits.waiting:
                many = counted(len(self._waiting), "request")
                raise EngineFullError(f"{many} waiting already: try again later.")
            self._waiting.put(request, client, priority)
            self._changed.notify_all()
        return stream

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests: it was closed, or has failed."""
        return self._closing

    @property
    def waiting(self) -> int:
        """Requests whose turn has not come."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether any request is not answered."""
        return bool(self._waiting or self._requests)

    def close(self) -> None:
        """Ends all requests, and the thread. Safe to call twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _wake(self) -> None:
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
            requests = [*self._requests, *self._waiting]
            self._waiting = Turns()
        ended = failure or LaunchError("The engine was closed before the text ended.")
        for request in requests:
            request.stream.end(ended)
        states = [request.close for request in requests]
        for close in (*states, *(state.close for _, state in self._prefixes.values())):
            with contextlib.suppress(ShardrunError):  # of ranks that are lost
                close()
        self._requests, self._prefixes = [], OrderedDict()

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
            for request in [item for item in self._waiting if item.stream.cancelled]:
                self._waiting.remove(request, request.stream.client, request.stream.priority)
                request.stream.end()

    def _end(self, request: _Request, error: BaseException | None = None) -> None:
        self._requests.remove(request)
        request.close()
        request.stream.end(error)

    @contextlib.contextmanager
    def _alone(self, request: _Request) -> Iterator[None]:
        """What fails here ends this request, and no other; but the loss of a rank ends all."""
        try:
            yield
        except (RankFailedError, LaunchError):
            raise
        except Exception as error:
            self._end(request, error)

    def _admit(self) -> None:
        """Lets waiting requests in, whose turn it is, as far as there is room."""
        with self._changed:
            while (request := self._waiting.take_if(self._fits)) is not None:
                self._requests.append(request)

    def _fits(self, request: _Request) -> bool:
        """Whether there is room for one more."""
        texts = sum(item.prepared.options.samples for item in (request, *self._requests))
        filled = sum(item.needed for item in (request, *self._requests))
        return texts <= self.limits.sequences and filled <= (self.limits.positions or filled)

    def _begin(self, request: _Request) -> Sequence:
        """A sequence for a request, which has read what another prompt began alike."""
        request.stream.pace.began = time.perf_counter()
        if request.prepared.given is not None:
            return self._decoder.sequence(request.prepared.given)
        best, found = 0, b""
        for key, (ids, _) in self._prefixes.items():
            # The last token is read anew, for its logits.
            common = _common(ids, request.prepared.read[:-1])
            if not self._decoder.rewinds and common < len(ids):
                common = 0
            if common > best:
                best, found = common, key
        if best < SHORTEST_PREFIX:
            return self._decoder.sequence(None)
        self._prefixes.move_to_end(found)
        state = self._prefixes[found][1].fork()
        state.rewind(best)
        self.reused += best
        request.read = best
        return state

    def _read_prompts(self) -> None:
        """Reads a piece of the first prompt that is not read yet."""
        request = next((item for item in self._requests if item.reading), None)
        if request is None:
            return
        with self._alone(request):
            # Not before its turn: by then the state of all earlier prompts is there.
            if request.state is None:
                request.state = self._begin(request)
                most = request.prepared.options.max_new_tokens or 0
                expect(request.state, len(request.prepared.read), most)
            piece = request.prepared.options.chunk or CHUNK
            ids = request.prepared.read[request.read : request.read + piece]
            samples: list[Sample] = []
            if request.read + len(ids) == len(request.prepared.read):
                samples = self._samples(request.prepared)
            want = want_of_all(samples) if samples else NOTHING
            [scores] = scores_of(request.state, ids, [want])
            request.read += len(ids)
            if samples:
                self._keep_prefix(request, request.state)
                self._start_texts(request, samples, request.state, scores)

    def _keep_prefix(self, request: _Request, state: Sequence) -> None:
        read = request.prepared.read
        if request.prepared.given is not None or not self.limits.prefixes or len(read) < SHORTEST_PREFIX:
            return
        key = read.tobytes()
        if key in self._prefixes:
            self._prefixes.move_to_end(key)
            return
        while len(self._prefixes) >= self.limits.prefixes:
            self._prefixes.popitem(last=False)[1][1].close()
        self._prefixes[key] = read, state.fork()

    def _samples(self, prepared: Prepared) -> list[Sample]:
        return make_samples(
            prepared.options, self._decoder.vocabulary, prepared.read, prepared.limits, self._tokenizer,
            grammar=prepared.grammar,
        )  # fmt: skip

    def _start_texts(self, request: _Request, samples: list[Sample], state: Sequence, scores: Scores) -> None:
        request.texts = [(samples[0], state)]
        for sample in samples[1:]:
            request.texts.append((sample, state.fork()))
        self._take(request, [scores] * len(samples))

    def _step(self) -> None:
        """One token more of every text under way."""
        going = [request for request in self._requests if request.texts]
        if not going:
            return
        texts = [text for request in going for text in request.texts]
        if len(texts) == len(self._requests) == 1 and self._run_ahead(going[0]):
            return
        ids = np.array([sample.ids[-1] for sample, _ in texts], np.int64)
        lengths, wants = [state.length for _, state in texts], [sample.want() for sample, _ in texts]
        rows: list[Scores] | None
        try:
            rows = scores_of_each(self._decoder, [state for _, state in texts], ids, wants)
        except (RankFailedError, LaunchError):
            raise
        except Exception:
            # Together it does not go: each alone shows whose fault it is, if it is anybody's.
            rows = None
        self.steps += 1
        first = 0
        for request in going:
            mine = slice(first, first + len(request.texts))
            first = mine.stop
            with self._alone(request):
                if rows is not None:
                    self._take(request, rows[mine])
                    continue
                states = [state for _, state in request.texts]
                for state, length in zip(states, lengths[mine], strict=True):
                    state.rewind(length)  # of those that went before the one that failed
                self._take(request, one_by_one(states, ids[mine], wants[mine]))

    def _run_ahead(self, request: _Request) -> bool:
        """Whether the ranks can choose the tokens of the only text by themselves: then some have come. It
        ends as soon as there is anything else to do."""
        sample, state = request.texts[0]

        def wanted() -> bool:
            return not (request.stream.cancelled or self._waiting or self._closing)

        ahead = run_ahead(sample, state, wanted)
        if ahead is None:
            return False
        with self._alone(request):
            with contextlib.closing(ahead) as tokens:
                for token in tokens:
                    self.steps += 1
                    request.stream.put(sample.take(token, None))
                    if sample.reason is not None:
                        break
            if sample.reason is not None:
                request.stream.put(sample.done())
                self._end(request)
        return True

    def _take(self, request: _Request, rows: Several[Scores]) -> None:
        """Chooses the next token of each text of a request."""
        still = []
        for (sample, state), row in zip(request.texts, rows, strict=True):
            request.stream.put(sample.take(sample.choose(row), row))
            if sample.reason is None:
                still.append((sample, state))
                continue
            state.close()
            request.stream.put(sample.done())
        request.texts = still
        if not still:
            self._end(request)


def _common(one: Ids, other: Ids) -> int:
    """How many tokens two prompts begin with alike."""
    shorter = min(len(one), len(other))
    differ = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differ[0]) if len(differ) else shorter
