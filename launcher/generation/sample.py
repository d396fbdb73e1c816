"""One text as it grows: tokens chosen, text shown, and whether it has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from launcher.errors import ShardrunError
from launcher.generation.decoder import Ids
from launcher.generation.options import GenerateOptions
from launcher.generation.text.detokenizer import Detokenizer
from launcher.generation.text.grammar import Grammar
from launcher.generation.text.stops import Stops
from launcher.generation.text.tokenizer import Tokenizer
from ranks.tokens import sampling
from ranks.tokens.chooser import Chooser
from ranks.tokens.penalties import Penalties
from ranks.tokens.scores import Scores
from ranks.tokens.wanted import Want

Reason = Literal["end", "stop", "length"]
"""Why a text ended: the model's own end or an id to stop at, a stop text, or as many tokens as may be."""


@dataclass(frozen=True)
class Token:
    """A token has been generated."""

    sample: int
    """Of which text, from 0."""
    id: int
    text: str
    """What may be shown now: often nothing, while half a character or a possible stop text is held back."""
    logprob: float | None = None
    """By the model's own logits, if log-probabilities were asked for."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens and their log-probabilities, best first."""


@dataclass(frozen=True)
class Completion:
    """One whole text."""

    sample: int
    ids: list[int]
    """What was generated, with the token that ended it."""
    text: str | None
    """None without a tokenizer."""
    reason: Reason
    logprobs: list[float] | None = None
    top: list[tuple[tuple[int, float], ...]] | None = None
    score: float | None = None
    """Of a beam search."""


@dataclass(frozen=True)
class Done:
    """A text has ended; ``text`` is what was still held back of it."""

    sample: int
    text: str
    completion: Completion


Event = Token | Done


class Texts:
    """The texts of one prompt as they come: an iterator over `Token` and `Done`, once."""

    def __init__(self, *, has_text: bool) -> None:
        self.has_text = has_text
        self.completions: list[Completion] = []
        """The texts that have ended."""
        self.tokens = 0
        """Generated and read so far, of all texts."""

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        event = self._next()
        if isinstance(event, Done):
            self.completions.append(event.completion)
            if event.completion.score is not None:  # of a search, whose tokens do not come one by one
                self.tokens += len(event.completion.ids)
        else:
            self.tokens += 1
        return event

    def _next(self) -> Event:
        """The next event. Raises `StopIteration` at the end."""
        raise NotImplementedError

    def finish(self) -> list[Completion]:
        """Goes on to the end; all texts that have ended, in order."""
        for _ in self:
            pass
        self.completions.sort(key=lambda item: item.sample)
        return self.completions


@dataclass
class Limits:
    """Where texts begin and end. ``ends``: the tokens that end them; ``most``: how many tokens they may have;
    ``before``: the tokens whose text they go on, if they do."""

    ends: frozenset[int]
    most: int
    before: Sequence[int] = ()


@dataclass
class Shown:
    """Ids as the text that may be shown of them."""

    tokenizer: Tokenizer | None
    stops: Sequence[str] = ()
    before: Sequence[int] = ()
    pieces: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._detokenizer = None if self.tokenizer is None else Detokenizer(self.tokenizer, self.before)
        self._stops = Stops(self.stops)
        # Special tokens are not in the text, where a stop text is looked for.
        self._marks = frozenset(() if self.tokenizer is None else self.tokenizer.unwritten(self.stops))
        self._marked = False

    @property
    def stopped(self) -> bool:
        """Whether a stop text has come."""
        return self._marked or self._stops.found is not None

    def add(self, token: int) -> str:
        """What may be shown with this token."""
        if self._detokenizer is None:
            return ""
        self._marked = self._marked or token in self._marks
        piece = self._stops.add(self._detokenizer.add(token))
        self.pieces.append(piece)
        return piece

    def end(self) -> str:
        """What was held back."""
        if self._detokenizer is None:
            return ""
        piece = self._stops.add(self._detokenizer.end()) + self._stops.end()
        self.pieces.append(piece)
        return piece

    @property
    def text(self) -> str | None:
        """All that was shown."""
        return None if self._detokenizer is None else "".join(self.pieces)


class Sample:
    """One text: chooses its tokens, and notes them."""

    def __init__(
        self,
        options: GenerateOptions,
        chooser: Chooser,
        limits: Limits,
        shown: Shown,
        grammar: Grammar | None = None,
    ) -> None:
        assert options.seed is not None
        self.number, self.ids = chooser.number, chooser.ids
        self.options, self.seed = options, options.seed
        self.chooser, self._limits, self._shown, self.grammar = chooser, limits, shown, grammar
        self.reason: Reason | None = None
        self._logprobs: list[float] = []
        self._top: list[tuple[tuple[int, float], ...]] = []

    def want(self) -> Want | None:
        """What the next token needs of the model's logits; None: all."""
        if self.grammar is not None:
            self.chooser.allowed = self.grammar.allowed
        return self.chooser.want(self.options.logprobs)

    def wants_after(self, guesses: Sequence[int]) -> list[Want | None]:
        """The same now and after each of these ``guesses`` for the next tokens; there is no grammar."""
        return self.chooser.wants_after(guesses, self.options.logprobs)

    def choose(self, scores: Scores) -> int:
        """The next token by the model's logits. Raises `ShardrunError` where none can be chosen."""
        if self.grammar is not None:
            self.chooser.allowed = self.grammar.allowed
            if self.grammar.error:
                raise ShardrunError(f"the JSON schema cannot be followed any further: {self.grammar.error}")
        if scores.drawn is not None:
            return scores.drawn[self.chooser.number_now]
        return self.chooser.choose(scores.values, scores.ids)

    @property
    def penalties(self) -> Penalties:
        """What changes logits for this text."""
        return self.chooser.penalties

    @property
    def room(self) -> int:
        """How many tokens may still come."""
        return self._limits.most - len(self.ids)

    def take(self, token: int, scores: Scores | None) -> Token:
        """Notes the token that comes next; ``scores``: the model's logits for it, which log-probabilities
        need."""
        self.chooser.read(token)
        if token in self._limits.ends:
            self.reason, piece = "end", ""
        else:
            piece = self._shown.add(token)
            if self._shown.stopped:
                self.reason = "stop"
            elif self.grammar is not None and self.grammar.read(token):
                self.reason = "end"
            elif not self.room:
                self.reason = "length"
        if self.options.logprobs is None:
            return Token(self.number, token, piece)
        assert scores is not None
        logs = scores.logs()
        places = sampling.top(logs, self.options.logprobs).tolist()
        best = tuple((scores.token(place), float(logs[place])) for place in places)
        logprob = float(logs[scores.place(token)])
        self._logprobs.append(logprob)
        self._top.append(best)
        return Token(self.number, token, piece, logprob, best)

    def done(self) -> Done:
        """The whole text, once it has ended."""
        assert self.reason is not None
        piece = self._shown.end()
        asked = self.options.logprobs is not None
        completion = Completion(
            self.number, self.ids, self._shown.text, self.reason,
            self._logprobs if asked else None, self._top if asked else None,
        )  # fmt: skip
        return Done(self.number, piece, completion)


def want_of_all(samples: Sequence[Sample]) -> Want | None:
    """What the first tokens of all samples of a prompt need of its logits: the same, but for the random
    numbers that pick them."""
    want = samples[0].want()
    if want is None or want.draw is None:
        return want
    numbers = tuple(sample.chooser.number_now for sample in samples)
    return replace(want, draw=replace(want.draw, numbers=numbers))


def make_samples(
    options: GenerateOptions,
    vocabulary: int,
    prompt: Ids,
    limits: Limits,
    tokenizer: Tokenizer | None,
    *,
    grammar: Grammar | None = None,
) -> list[Sample]:
    """The texts that are asked for, none of which has begun."""
    chooser = Chooser(options.sampling, vocabulary, prompt, limits.ends)
    return [
        Sample(
            options,
            chooser.copy(number),
            limits,
            Shown(tokenizer, options.stop, limits.before),
            grammar and grammar.copy(),
        )
        for number in range(options.samples)
    ]
