"""Answers of the OpenAI protocol: whole ones, and the pieces of a stream."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from launcher.generation.sample import Completion, Token

if TYPE_CHECKING:
    from launcher.generation.text.tokenizer import Tokenizer
    from launcher.serving.openai.tools import Tools

Json = dict[str, object]
_IMPOSSIBLE = -9999.0
"""The log-probability of a token that cannot come, as vLLM has it."""
_REASONS = {"end": "stop", "stop": "stop", "length": "length"}


@dataclass(frozen=True)
class Spelling:
    """How tokens are written by themselves; without a tokenizer by their ids."""

    tokenizer: Tokenizer | None

    def bytes_of(self, token: int) -> bytes:
        """Those that the token stands for: of a special one, its name."""
        if self.tokenizer is None:
            return f"token_id:{token}".encode()
        pieces = self.tokenizer.pieces
        return pieces[token] if token < len(pieces) else b""  # a vocabulary may be padded

    def text(self, token: int) -> str:
        """The same as text; bytes that are no whole characters by their numbers."""
        return self.bytes_of(token).decode("utf-8", "backslashreplace")

    def name(self, token: int) -> str:
        """The same, where those bytes are marked."""
        text, known = self.text(token), self.bytes_of(token)
        return text if text.encode() == known else f"bytes:{text}"

    def shown(self, token: int) -> bytes:
        """What the token adds to a text."""
        hidden = self.tokenizer is not None and token in self.tokenizer.special
        return b"" if hidden else self.bytes_of(token)


@dataclass
class Answer:
    """One answer as it grows. ``chat``: of a chat rather than of a completion."""

    model: str
    chat: bool
    spelling: Spelling
    logprobs: bool
    counted: bool = False
    """Whether the pieces of a stream have a place for the number of tokens, which the last one says."""
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = ""
    prompt_tokens: int = 0
    tokens: int = 0
    tools: Tools | None = None
    """Where texts are calls of functions."""
    _offsets: dict[int, _Offsets] = field(default_factory=dict)
    _held: dict[int, str] = field(default_factory=dict)
    """Texts so far that may be calls, where only the whole says so."""
    _begun: set[int] = field(default_factory=set)
    """Texts of which something that is no call was told."""

    def __post_init__(self) -> None:
        self.id = self.id or f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}"

    def whole(self, texts: Sequence[tuple[int, Completion]]) -> Json:
        """The answer of texts that have ended, each with its index."""
        return {
            **self._head(streamed=False),
            "choices": [self._choice(*one) for one in texts],
            "usage": self.usage(),
        }

    def piece(self, index: int, text: str, token: Token | None = None, reason: str | None = None) -> Json:
        """A piece of one text of a stream."""
        part: Json = {}
        if self.tools is not None:
            part = self._part_of_call(self.tools, index, text, ended=reason is not None)
        found: Json = {"index": index, "finish_reason": self._reason(reason, called="tool_calls" in part)}
        if self.tools is not None:
            found["delta"] = part
        elif self.chat:
            found["delta"] = {"content": text} if text or reason is None else {}
        else:
            found["text"] = text
        found["logprobs"] = None
        if self.logprobs and token is not None:
            found["logprobs"] = self._shown(index, [token.id], [token.logprob or 0.0], [token.top])
        return self._piece(found)

    def opening(self, index: int) -> Json:
        """The first piece of a text of a chat: who speaks."""
        delta: Json = {"role": "assistant", "content": ""}
        if self.tools is not None and self.tools.form is None:
            delta["content"] = None
            if self.tools.name is not None:
                delta["tool_calls"] = [{"index": 0, **self.tools.calls(index, "")[1][0]}]
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._piece(choice)

    def _part_of_call(self, tools: Tools, index: int, text: str, *, ended: bool) -> Json:
        if tools.name is not None:
            return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]} if text else {}
        held = self._held.get(index, "") + text
        if not ended:
            begun = index in self._begun
            certain = 0 if tools.form is None else tools.form.certain(held, begun=begun)
            self._held[index] = held[certain:]
            if not certain:
                return {}
            self._begun.add(index)
            return {"content": held[:certain]}
        said, calls = tools.calls(index, held, begun=index in self._begun)
        found: Json = {"content": said} if said else {}
        if calls:
            found["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        return found

    def _reason(self, reason: str | None, *, called: bool) -> str | None:
        if reason is None:
            return None
        told = _REASONS[reason]
        return told if self.tools is None else self.tools.reason(told, called=called)

    def _piece(self, choice: Json) -> Json:
        counted: Json = {"usage": None} if self.counted else {}
        return {**self._head(streamed=True), "choices": [choice], **counted}

    def closing(self) -> Json:
        """The last piece of a stream: the number of tokens."""
        return {**self._head(streamed=True), "choices": [], "usage": self.usage()}

    def usage(self) -> Json:
        """The number of tokens."""
        total = self.prompt_tokens + self.tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens, "total_tokens": total}

    def _head(self, *, streamed: bool) -> Json:
        kind = "text_completion" if not self.chat else f"chat.completion{'.chunk' if streamed else ''}"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, index: int, text: Completion) -> Json:
        shown = text.text if text.text is not None else ""
        said: Json = {"text": shown}
        found: list[Json] = []
        if self.chat:
            content: str | None = shown
            if self.tools is not None:
                content, found = self.tools.calls(index, shown)
            calls: Json = {"tool_calls": found} if found else {}
            said = {"message": {"role": "assistant", "content": content, "refusal": None, **calls}}
        probable = None
        if self.logprobs and text.logprobs is not None:
            probable = self._shown(index, text.ids, text.logprobs, text.top or [()] * len(text.ids))
        reason = self._reason(text.reason, called=bool(found))
        return {"index": index, **said, "logprobs": probable, "finish_reason": reason}

    def _shown(
        self,
        index: int,
        ids: Sequence[int],
        logprobs: Sequence[float],
        tops: Sequence[Sequence[tuple[int, float]]],
    ) -> Mapping[str, object]:
        """The log-probabilities of tokens that follow those that were shown of a text already."""
        # A model may say that a token is impossible: JSON has no number for that.
        logprobs = [max(value, _IMPOSSIBLE) for value in logprobs]
        tops = [[(token, max(value, _IMPOSSIBLE)) for token, value in top] for top in tops]
        if not self.chat:
            offsets = self._offsets.setdefault(index, _Offsets())
            best = [{self.spelling.name(token): value for token, value in top} for top in tops]
            return {
                "tokens": [self.spelling.name(token) for token in ids], "token_logprobs": logprobs,
                "top_logprobs": best,
                "text_offset": [offsets.next(self.spelling.shown(token)) for token in ids],
            }  # fmt: skip

        def entry(token: int, value: float) -> Json:
            found = self.spelling
            return {"token": found.text(token), "logprob": value, "bytes": list(found.bytes_of(token))}

        return {
            "content": [
                {**entry(token, value), "top_logprobs": [entry(*one) for one in top]}
                for token, value, top in zip(ids, logprobs, tops, strict=True)
            ]
        }


_GOES_ON, _BEGINS = 0x80, 0xC0
"""From the first byte on up to the second one, bytes of UTF-8 are no first ones of a character."""


class _Offsets:
    """Where tokens begin in a text, in characters: a character may be of several tokens."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0

    def next(self, piece: bytes) -> int:
        """Where the next token begins, which adds these bytes."""
        if piece and not _GOES_ON <= piece[0] < _BEGINS:  # what is left of a character is none
            self._at += len(self._decoder.decode(b"", final=True))
        found = self._at
        self._at += len(self._decoder.decode(piece))
        return found


def best_of(texts: Sequence[Completion], count: int) -> Sequence[Completion]:
    """Those of texts whose tokens are likeliest on the whole, best first."""
    if count == len(texts):
        return texts

    def mean(text: Completion) -> float:
        logs = text.logprobs or [0.0]
        return sum(logs) / len(logs)

    return sorted(texts, key=mean, reverse=True)[:count]
