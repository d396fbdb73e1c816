"""Quotes that users write around a value of a configuration file or an environment variable."""

from __future__ import annotations


def unquoted(text: str) -> str:
    """``text`` without the blanks and the one pair of quotes around it.

    Quotes that are part of it stay: a lone one, and those of a list of quoted texts.
    """
    text = text.strip()
    quote = text[:1]
    if quote in {"'", '"'} and len(text) > 1 and text.endswith(quote) and quote not in text[1:-1]:
        return text[1:-1].strip()
    return text
