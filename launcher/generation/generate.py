"""Generating: a prompt through a decoder, and the events that come of it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from launcher.errors import ConfigError
from launcher.generation.beams import search
from launcher.generation.decoder import (
    Arrays,
    Decoder,
    Follows,
    Ids,
    Sequence,
    check_ids,
    check_room,
    expect,
)
from launcher.generation.options import NEW_TOKENS, GenerateOptions, options_of
from launcher.generation.sample import Event, Limits, Sample, Texts, make_samples, want_of_all
from launcher.generation.scoring import read_prompt, scores_of, scores_of_each
from launcher.generation.speculation import Draft, Guesser, Lookup, grow
from launcher.generation.text.detokenizer import LOOKED_BACK
from launcher.generation.text.grammar import Grammar, grammar_of
from launcher.generation.text.tokenizer import TOKEN_CHARACTERS, Tokenizer
from ranks.common.elsewhere import ELSEWHERE
from ranks.tokens.scores import Scores
from sharding.common.text import counted

if TYPE_CHECKING:
    from sharding.common.arrays import Array


AHEAD = 32
"""Tokens that ranks may choose before a reader asks for them."""


@dataclass(frozen=True)
class Manner:
    """How a model's texts begin and end, as its folder says. ``defaults``: options by name, and
    ``do_sample``, ``max_length`` and ``min_length`` (both with the prompt)."""

    ends: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    """What a decoder with an encoder reads first."""
    defaults: Mapping[str, object] | None = None


class Events(Protocol):
    """Events as they come; a generator is one."""

    def __next__(self) -> Event: ...

    def close(self) -> None:
        """Ends them, and frees what they hold; safe to call twice."""


class Generation(Texts):
    """The texts of one prompt as they come: an iterator over `Token` and `Done`, once.

    Nothing is computed before the first event is asked for; then ranks that choose tokens by themselves are
    up to `AHEAD` of them beyond the reader. `close`, or the end of a ``with``, gives the model's state back
    early.
    """

    def __init__(
        self, events: Events, options: GenerateOptions, prompt: Several[int], *, has_text: bool
    ) -> None:
        super().__init__(has_text=has_text)
        self._events = events
        # Their end waits for ranks, which whoever collects this may hold up.
        self._forgotten = ELSEWHERE.when_gone(self, events.close)
        self.options, self.prompt = options, list(prompt)

    def _next(self) -> Event:
        try:
            return next(self._events)
        except BaseException:  # the end, too: nothing is left to be closed
            self._forgotten.detach()
            raise

    @property
    def text(self) -> str | None:
        """The first text, generated to its end; None without a tokenizer."""
        return self.finish()[0].text

    @property
    def ids(self) -> list[int]:
        """The token ids of the first text, generated to its end."""
        return self.finish()[0].ids

    def close(self) -> None:
        """Ends the generation; safe to call twice."""
        self._forgotten.detach()
        self._events.close()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def generate(
    decoder: Decoder,
    prompt: str | Several[int] | Ids | None,
    options: GenerateOptions | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    manner: Manner | None = None,
    inputs: Arrays | None = None,
    draft: Decoder | None = None,
    special: bool = True,
    **more: object,
) -> Generation:
    """Continues a prompt: text, or token ids.

    With an encoder that reads text the prompt is the encoder's; with any other (``inputs`` are its arrays)
    the prompt is what the decoder reads first, if it is given. ``draft``: a smaller decoder with the same
    vocabulary that guesses tokens. ``special``: whether the tokenizer adds its special tokens; else a prompt
    has them, as a chat template writes it, and what follows begins a text. ``more``: single options by name.

    Raises `ConfigError` at once for what does not fit the model; the iterator raises what the model raises.
    """
    prepared = prepare(
        decoder, prompt, options_of(options, more),
        tokenizer=tokenizer, manner=manner, inputs=inputs, draft=draft, special=special,
    )  # fmt: skip
    events = _events(decoder, prepared, tokenizer, draft)
    return Generation(events, prepared.options, prepared.prompt, has_text=tokenizer is not None)


@dataclass(frozen=True)
class Prepared:
    """A request that fits its model."""

    prompt: list[int]
    """The token ids of the prompt."""
    read: Ids
    """What the decoder reads first."""
    given: Arrays | None
    """What the encoder is given, where there is one."""
    options: GenerateOptions
    """Settled: the seed and the number of new tokens are there."""
    limits: Limits
    grammar: Grammar | None = None
    """What the text follows, where it is to follow a schema."""


def prepare(
    decoder: Decoder,
    prompt: str | Several[int] | Ids | None,
    asked: GenerateOptions,
    *,
    tokenizer: Tokenizer | None = None,
    manner: Manner | None = None,
    inputs: Arrays | None = None,
    draft: Decoder | None = None,
    special: bool = True,
) -> Prepared:
    """Checks and settles what `generate` takes. Raises `ConfigError` for what does not fit the model."""
    manner = manner or Manner()
    encoded = {spec.name for spec in decoder.encoder_inputs}
    # What a decoder of sound begins with is written out: its tokenizer would add an end.
    ids = _ids(decoder, prompt, tokenizer, special and not (encoded and "input_ids" not in encoded))
    read, given = _arranged(decoder, ids, inputs, manner)
    room = check_room(len(read), decoder.context)
    defaults = _lengths(manner.defaults or {}, len(read))
    if asked.ignore_eos or asked.json_schema is not None:
        defaults.pop("forced_last", None)
    settled = asked.filled(defaults)
    most = settled.max_new_tokens or NEW_TOKENS
    most = most if room is None else min(most, room)
    seed = secrets.randbits(63) if settled.seed is None else settled.seed
    settled = replace(
        settled, seed=seed, max_new_tokens=most, min_new_tokens=min(settled.min_new_tokens or 0, most)
    )
    ends = frozenset([*(() if settled.ignore_eos else manner.ends), *settled.stop_ids])
    _check(decoder, settled, tokenizer, draft, ends)
    grammar = None
    if settled.json_schema is not None:
        grammar = grammar_of(tokenizer, settled.json_schema, sorted(ends))
    # An answer to messages begins a text of its own.
    before = read[-LOOKED_BACK:].tolist() if special else ()
    return Prepared(ids.tolist(), read, given, settled, Limits(ends, most, before), grammar)


def _ids(decoder: Decoder, prompt: object, tokenizer: Tokenizer | None, special: bool) -> Ids:
    if prompt is None:
        return np.empty(0, np.int64)
    if isinstance(prompt, list) and not decoder.encoder_inputs:
        check_room(len(prompt), decoder.context)  # before it is looked through: it may be millions of ids
    if isinstance(prompt, str):
        if decoder.context is not None and len(prompt) > decoder.context * TOKEN_CHARACTERS:
            raise ConfigError(
                f"the prompt has {len(prompt)} characters, far more than fit the model's context of "
                f"{decoder.context} tokens; shorten it"
            )
        prompt = ids_of_text(prompt, tokenizer, special=special)
    return check_ids(prompt, decoder)


def ids_of_text(prompt: str, tokenizer: Tokenizer | None, *, special: bool) -> list[int]:
    """The token ids of a text. Raises `ConfigError` without a tokenizer."""
    if tokenizer is None:
        raise ConfigError(
            "the prompt is text, but there is no tokenizer: give token ids, or a folder with a "
            "tokenizer.json (which `pip install 'shardrun[text]'` brings the package for)"
        )
    return tokenizer.ids(prompt, special=special)


def _arranged(
    decoder: Decoder, ids: Ids, inputs: Arrays | None, manner: Manner
) -> tuple[Ids, dict[str, Array] | None]:
    """What the decoder reads, and what the encoder does."""
    names = [spec.name for spec in decoder.encoder_inputs]
    if not names:
        if inputs:
            raise ConfigError(f"the model has no encoder, which could take {next(iter(inputs))!r}")
        if not len(ids):
            raise ConfigError("there is no prompt: a decoder alone needs one")
        return ids, None
    given = dict(inputs or {})
    if unknown := [name for name in given if name not in names]:
        raise ConfigError(f"the encoder has no input {unknown[0]!r}; it takes {', '.join(names)}")
    start = np.array(manner.start, np.int64)
    if "input_ids" in names and "input_ids" not in given:
        if not len(ids):
            raise ConfigError("there is no prompt, which the model's encoder reads")
        given["input_ids"] = ids[None]
    elif len(ids):
        start = ids
    missing = [name for name in names if name not in given and name != "attention_mask"]
    if missing:
        raise ConfigError(f"the model's encoder takes the array {missing[0]!r}, which is not given")
    if not len(start):
        raise ConfigError("nothing says with which token this decoder starts: give token ids as the prompt")
    return check_ids(start, decoder, "the decoder's start"), given


def _lengths(defaults: Mapping[str, object], prompt: int) -> dict[str, object]:
    """Defaults whose lengths count new tokens only."""
    found = dict(defaults)
    longest, shortest = found.pop("max_length", None), found.pop("min_length", None)
    if isinstance(longest, int) and found.get("max_new_tokens") is None and longest > prompt:
        found["max_new_tokens"] = longest - prompt
    if isinstance(shortest, int) and found.get("min_new_tokens") is None:
        found["min_new_tokens"] = max(0, shortest - prompt)
    return found


def _check(
    decoder: Decoder,
    options: GenerateOptions,
    tokenizer: Tokenizer | None,
    draft: Decoder | None,
    ends: Iterable[int],
) -> None:
    """Raises `ConfigError` for options that this model cannot follow."""
    if options.stop and tokenizer is None:
        raise ConfigError("stop: a stop text is looked for in text, but there is no tokenizer; give stop_ids")
    if options.logit_bias and max(options.logit_bias) >= decoder.vocabulary:
        raise ConfigError(
            f"logit_bias: there is no token {max(options.logit_bias)}: the model's vocabulary has the ids 0 "
            f"to {decoder.vocabulary - 1}"
        )
    forced = (options.suppressed, options.suppressed_first, options.forced_first, options.forced_last)
    for token in (item for ids in forced for item in ids or ()):
        if token >= decoder.vocabulary:
            raise ConfigError(
                f"the token {token} shall be suppressed or forced, but the model's vocabulary has the ids 0 "
                f"to {decoder.vocabulary - 1}"
            )
    if len(set(options.suppressed or ())) == decoder.vocabulary:
        raise ConfigError("suppressed: these are all tokens of the vocabulary; leave one that can be chosen")
    for token in ends:
        if not 0 <= token < decoder.vocabulary:
            raise ConfigError(
                f"the token {token} shall end the text, but the model's vocabulary has the ids 0 to "
                f"{decoder.vocabulary - 1}"
            )
    if draft is not None and not options.speculate:
        raise ConfigError(
            "a draft model is given, but not how many tokens it shall propose: give `speculate`"
        )
    if options.speculate and not decoder.rewinds:
        raise ConfigError(
            "speculate: this model's state is recurrent, and cannot forget guesses that were wrong; leave it "
            "out"
        )
    if draft is not None:
        if draft.vocabulary != decoder.vocabulary:
            raise ConfigError(
                f"the draft model has {counted(draft.vocabulary, 'token')}, but the model has "
                f"{decoder.vocabulary}: both must have the same vocabulary"
            )
        if not draft.rewinds or draft.encoder_inputs:
            raise ConfigError(
                "the draft model must be a decoder alone, whose state can forget its last tokens"
            )
        if decoder.encoder_inputs:
            raise ConfigError("a draft model is for decoders alone, but the model has an encoder")


def _events(
    decoder: Decoder, prepared: Prepared, tokenizer: Tokenizer | None, draft: Decoder | None
) -> Generator[Event]:
    prompt, options, limits = prepared.read, prepared.options, prepared.limits
    with contextlib.ExitStack() as stack:
        state = decoder.sequence(prepared.given)
        expect(state, len(prompt), options.max_new_tokens or 0)
        stack.callback(state.close)
        if (options.beams or 1) > 1:
            stack.pop_all()
            yield from search(decoder, state, prompt, options, limits, tokenizer)
            return
        samples = make_samples(
            options, decoder.vocabulary, prompt, limits, tokenizer, grammar=prepared.grammar
        )
        scores = read_prompt(state, prompt, want_of_all(samples), options.chunk)
        states = [state]
        for _ in samples[1:]:
            states.append(state.fork())
            stack.callback(states[-1].close)
        if not options.speculate:
            yield from _together(decoder, samples, states, scores)
            return
        for sample, own in zip(samples, states, strict=True):
            guesser: Guesser = Lookup() if draft is None else Draft(draft, sample, prompt, options.chunk)
            stack.callback(guesser.close)
            yield from grow(sample, own, scores, prompt, guesser, options.speculate)


def _together(
    decoder: Decoder, samples: Several[Sample], states: Several[Sequence], scores: Scores
) -> Iterator[Event]:
    """All samples of a prompt, one token of each at a time."""
    going: list[tuple[Sample, Sequence, Scores]] = [
        (sample, state, scores) for sample, state in zip(samples, states, strict=True)
    ]
    while going:
        if len(going) == 1:
            yield from _alone(*going[0])
            return
        still = []
        for sample, state, own in going:
            yield sample.take(sample.choose(own), own)
            if sample.reason is None:
                still.append((sample, state))
            else:
                state.close()
                yield sample.done()
        if not still:
            return
        ids = np.array([sample.ids[-1] for sample, _ in still], np.int64)
        states, wants = [state for _, state in still], [sample.want() for sample, _ in still]
        if len(still) == 1:
            found = scores_of(states[0], ids, wants)
        else:
            found = scores_of_each(decoder, states, ids, wants)
        going = [(*pair, own) for pair, own in zip(still, found, strict=True)]


def run_ahead(
    sample: Sample, state: Sequence, wanted: Callable[[], bool] | None = None
) -> Generator[int] | None:
    """The tokens that come next, which ranks choose by themselves as long as more are ``wanted``; None where
    they cannot. Close it before anything else is done with the sequence."""
    free = sample.grammar is None and sample.options.logprobs is None
    if free and isinstance(state, Follows) and state.follows:
        return state.follow(sample.chooser, sample.room, AHEAD, wanted)
    return None


def _alone(sample: Sample, state: Sequence, scores: Scores) -> Iterator[Event]:
    """One text to its end. Where the ranks can choose its tokens by themselves, they run ahead of the reader
    by a few."""
    yield sample.take(sample.choose(scores), scores)
    while sample.reason is None:
        ahead = run_ahead(sample, state)
        if ahead is not None:
            with contextlib.closing(ahead) as tokens:
                for token in tokens:
                    yield sample.take(token, None)
                    if sample.reason is not None:
                        break
            continue
        [scores] = scores_of(state, np.array(sample.ids[-1:], np.int64), [sample.want()])
        yield sample.take(sample.choose(scores), scores)
    state.close()
    yield sample.done()
