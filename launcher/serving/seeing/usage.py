"""What one request took: for the log of requests, and its span."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Usage:
    """Tokens read and generated for a request; 0 for one of tensors."""

    prompt_tokens: int = 0
    generated_tokens: int = 0

    def fields(self) -> dict[str, int]:
        """Those that there are, by name."""
        return {name: value for name, value in vars(self).items() if value}


USAGE: ContextVar[Usage | None] = ContextVar("shardrun_usage", default=None)
"""That of the request that this task is for."""
