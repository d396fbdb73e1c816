"""Answers of the OpenAI protocol: whole ones, and the pieces of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from launcher.generation.sample import Completion, Token

Json = dict[str, object]
Decode = Callable[[int], str]
"""The text of one token."""
_IMPOSSIBLE = -9999.0
"""The log-probability of a token that cannot come, as vLLM has it."""
_REASONS = {"end": "stop", "stop": "stop", "length": "length"}


@dataclass
class Answer:
    """One answer as it grows. ``chat``: of a chat rather than of a completion."""

    model: str
    chat: bool
    decode: Decode
    logprobs: bool
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = ""
    prompt_tokens: int = 0
    tokens: int = 0
    _lengths: dict[int, int] = field(default_factory=dict)

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
        found: Json = {"index": index, "finish_reason": None if reason is None else _REASONS[reason]}
        if self.chat:
            found["delta"] = {"content": text} if text or reason is None else {}
        else:
            found["text"] = text
        found["logprobs"] = None
        if self.logprobs and token is not None:
            before = self._lengths.get(index, 0)
            found["logprobs"] = self._shown([token.id], [token.logprob or 0.0], [token.top], before)
            self._lengths[index] = before + len(self.decode(token.id))
        return {**self._head(streamed=True), "choices": [found]}

    def opening(self, index: int) -> Json:
        """The first piece of a text of a chat: who speaks."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**self._head(streamed=True), "choices": [choice]}

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
        said: Json = {"message": {"role": "assistant", "content": shown}} if self.chat else {"text": shown}
        probable = None
        if self.logprobs and text.logprobs is not None:
            probable = self._shown(text.ids, text.logprobs, text.top or [()] * len(text.ids))
        return {"index": index, **said, "logprobs": probable, "finish_reason": _REASONS[text.reason]}

    def _shown(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float],
        tops: Sequence[Sequence[tuple[int, float]]],
        before: int = 0,
    ) -> Mapping[str, object]:
        """``before``: characters of the text's tokens that were shown already."""
        texts = [self.decode(token) for token in ids]
        # A model may say that a token is impossible: JSON has no number for that.
        logprobs = [max(value, _IMPOSSIBLE) for value in logprobs]
        tops = [[(token, max(value, _IMPOSSIBLE)) for token, value in top] for top in tops]
        if not self.chat:
            offsets, at = [], before
            for text in texts:
                offsets.append(at)
                at += len(text)
            best = [{self.decode(token): value for token, value in top} for top in tops]
            return {
                "tokens": texts, "token_logprobs": logprobs, "top_logprobs": best,
                "text_offset": offsets,
            }  # fmt: skip

        def entry(text: str, value: float) -> Json:
            return {"token": text, "logprob": value, "bytes": list(text.encode())}

        return {
            "content": [
                {**entry(text, value), "top_logprobs": [entry(self.decode(token), one) for token, one in top]}
                for text, value, top in zip(texts, logprobs, tops, strict=True)
            ]
        }
