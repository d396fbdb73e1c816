"""Texts of JSON that fit a schema: which tokens may come next. The package llguidance knows it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from launcher.errors import ConfigError
from launcher.generation.options import MOST_SCHEMA
from sharding.common.text import one_line, shortened

if TYPE_CHECKING:
    from launcher.generation.text.tokenizer import Tokenizer

ANY_OBJECT = '{"type": "object"}'
"""The schema of any JSON object."""
_DEEPEST = 64
_MARK = "\x02"
"""Stands before a text, and is a part of no longer token."""
_SPACES = r"[ ]?|\n[ \t]{0,32}"
"""Between the parts of JSON: without an end to it, a text could go on with nothing else for ever."""
_LIMITS = {
    "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 200_000, "step_max_items": 50_000,
    "max_lexer_states": 50_000, "max_grammar_size": 200_000,
    "precompute_large_lexemes": False, "verbose_errors": False,
}  # fmt: skip
"""Of one schema: compiling takes at most tenths of a second, a step milliseconds."""
_LONGEST_TOKEN = 1024
"""Bytes: the package takes no longer ones. Shorter ones spell the same text, so these never come."""
_STATE = re.compile(r"<state>|<non-verbose")


class _Matcher(Protocol):
    """What is used of the package's matcher. Its methods raise nothing: errors are asked for."""

    def compute_bitmask(self) -> bytes:
        """A bit for each token."""

    def consume_token(self, sampled_token: int) -> bool:
        """The text goes on."""

    def is_stopped(self) -> bool:
        """Whether nothing but an end may follow; also after an error."""

    def get_error(self) -> str:
        """What went wrong, or nothing."""

    def deep_copy(self) -> _Matcher:
        """Another one at the same place."""


class Grammar:
    """One text as far as its form allows what comes next. ``end``: the token that stands for the end in the
    matcher; ``ends``: those that end the text."""

    def __init__(self, matcher: _Matcher, end: int, ends: Sequence[int]) -> None:
        self._matcher, self._end, self._ends = matcher, end, np.array(ends, np.int64)
        self._allowed: NDArray[np.int64] | None = None
        self.error = ""
        """Why nothing can be said of what comes next."""

    @property
    def allowed(self) -> NDArray[np.int64]:
        """The tokens that may come next, by rising id; none after an ``error``."""
        if self._allowed is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            found = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
            self.error = self.error or _told(self._matcher.get_error())
            if self.error:
                found = found[:0]
            elif self._end in found:
                found = np.union1d(found[found != self._end], self._ends)
            self._allowed = found.astype(np.int64)
        return self._allowed

    def read(self, token: int) -> bool:
        """The text goes on with this token; whether it is whole, and nothing can follow."""
        self._allowed = None
        self._matcher.consume_token(token)
        self.error = _told(self._matcher.get_error())
        return not self.error and self._matcher.is_stopped()

    def copy(self) -> Grammar:
        """The same for another text that has begun alike."""
        return Grammar(self._matcher.deep_copy(), self._end, self._ends.tolist())


class _Vocabulary:
    """A tokenizer, as the package wants to have it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokens = [piece if len(piece) <= _LONGEST_TOKEN else b"" for piece in tokenizer.pieces]
        self.eos_token_id = len(self.tokens)  # a token of its own: a model may have several, or none
        self.tokens.append(b"")
        self.special_token_ids = [*sorted(tokenizer.special), self.eos_token_id]
        self._tokenizer = tokenizer
        self._begin = tokenizer.ids(_MARK, special=False)
        self._numbers = {
            piece: number for number, piece in enumerate(self.tokens) if number not in tokenizer.special
        }
        self._longest = max(map(len, self.tokens), default=1)

    def __call__(self, text: str) -> list[int]:
        """The ids of a text that stands within another one: at the beginning many tokenizers add a space."""
        found = self._tokenizer.ids(_MARK + text, special=False)
        own, known = found[len(self._begin) :], text.encode()
        whole = (
            found[: len(self._begin)] == self._begin and b"".join(self.tokens[one] for one in own) == known
        )
        if whole and self._tokenizer.special.isdisjoint(own):  # a special token's name in a text is text
            return own
        return self._by_length(known)

    def _by_length(self, text: bytes) -> list[int]:
        """The longest tokens that fit, from the beginning; nothing where none does."""
        found, at = [], 0
        while at < len(text):
            for length in range(min(self._longest, len(text) - at), 0, -1):
                if (number := self._numbers.get(text[at : at + length])) is not None:
                    found.append(number)
                    at += length
                    break
            else:
                return found
        return found


def packed(tokenizer: Tokenizer) -> object:
    """A tokenizer as matchers need it, which takes a second for a large one. Raises `ConfigError` without the
    package."""
    try:
        import llguidance
    except ImportError:
        raise ConfigError(
            "texts that follow a JSON schema need the package llguidance, which is not installed here: "
            "`pip install 'shardrun[json]'`"
        ) from None
    try:
        return llguidance.LLTokenizer(_Vocabulary(tokenizer))
    except (KeyboardInterrupt, MemoryError, ConfigError):
        raise
    except BaseException as error:  # panics of the package are no `Exception`
        raise ConfigError(
            f"{tokenizer.path}: no text of this tokenizer can follow a JSON schema: "
            f"{shortened(one_line(str(error)), 200)}"
        ) from None


def grammar_of(tokenizer: Tokenizer | None, schema: str, ends: Sequence[int]) -> Grammar:
    """What follows a JSON schema, which is JSON itself. Raises `ConfigError` for one that cannot be followed,
    or only with too much work."""
    if tokenizer is None:
        raise ConfigError("a text can follow a JSON schema only with a tokenizer, but the model has none")
    check_schema(schema)
    known = tokenizer.packed
    import llguidance

    options = {"whitespace_pattern": _SPACES}
    whole = "{}" if schema.strip() == "true" else schema  # the same, and the package wants an object
    try:
        made = llguidance.LLMatcher.grammar_from_json_schema(whole, overrides=options)
        limits = llguidance.LLParserLimits(**_LIMITS)
        matcher: _Matcher = llguidance.LLMatcher(known, made, log_level=0, limits=limits)
        error = matcher.get_error()
    except ValueError as problem:
        error = str(problem)
    if error:
        raise ConfigError(f"the JSON schema cannot be followed: {_told(error)}")
    found = Grammar(matcher, len(tokenizer.pieces), ends)
    if not len(found.allowed):
        raise ConfigError(f"the JSON schema cannot be followed: {_why(found.error)}")
    return found


def _why(error: str) -> str:
    return "nothing fits it" if not error or error.startswith("NoExtension") else error


def check_schema(schema: str) -> None:
    """Raises `ConfigError` for what is no JSON schema of a reasonable size."""
    if len(schema) > MOST_SCHEMA:
        raise ConfigError(
            f"the JSON schema has {len(schema)} characters: expected at most {MOST_SCHEMA}; simplify it"
        )
    deepest = f"the JSON schema is more than {_DEEPEST} levels deep: simplify it, or refer to parts by $ref"
    try:
        found = json.loads(schema)
    except RecursionError:
        raise ConfigError(deepest) from None
    except ValueError as error:
        raise ConfigError(f"the JSON schema is no JSON: {shortened(str(error), 100)}") from None
    if not isinstance(found, dict | bool):
        raise ConfigError("the JSON schema: expected a JSON object, found something else")
    deep, level = 0, [found]
    while level := [
        inner
        for item in level
        for inner in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
    ]:
        deep += 1
        if deep > _DEEPEST:
            raise ConfigError(deepest)


def _told(error: str) -> str:
    """What the package says, without its own state."""
    return shortened(one_line(_STATE.split(error)[0]), 300)
