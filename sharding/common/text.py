"""Text for people: numbers, names from files made fit to print, and what a misspelled word may mean."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence

# Patterns are texts: `re` compiles each when it is first used, and keeps it. A command that prints its help
# uses none of them, and compiling them takes longer than all else of this module.
# A model may have a million names, each as long as it likes.
_MOST_COMPARED, _LONGEST_WORD = 10_000, 200
_TOO_LONG, _KEPT = r"\S{1001,}", 200
_LISTED = 8


def human_bytes(count: int) -> str:
    """A number of bytes with a decimal unit: 1234567 is 1.23 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


MAX_WHOLE = 2**63 - 1


def parse_whole(text: str, low: int = 0, high: int = MAX_WHOLE) -> int | None:
    """The whole number from ``low`` to ``high`` that a text says by the digits 0 to 9 alone; None for any
    other text. `int` takes more: signs, blanks, underscores, digits of other scripts; thousands of digits
    are an error of its own."""
    if not (text.isascii() and text.isdigit() and len(text) <= 40):
        return None
    return number if low <= (number := int(text)) <= high else None


_SIZE = r"(?ai)(\d{1,19})(\.\d{1,9})? ?(?:([KMGT])(i)?)?B?"


def parse_size(text: str) -> int | None:
    """The number of bytes of a text such as 24GB, 1.5 G or 512 MiB; None for any other text, for 0, and for
    2^63 or more."""
    found = re.fullmatch(_SIZE, text.strip())
    if found is None:
        return None
    whole, part, unit, binary = found.groups()
    factor = (1024 if binary else 1000) ** " KMGT".index((unit or " ").upper())
    size = int(float(whole + part) * factor) if part else int(whole) * factor
    return size if 0 < size < 2**63 else None


def counted(count: int, noun: str) -> str:
    """A number of things: 1 rank, 2 ranks."""
    return f"{count} {noun}{'s' * (count != 1)}"


def reason_rows(reason: str) -> list[tuple[str, str]]:
    """Why a strategy was chosen, as rows of a table, one for each part of the sentence."""
    parts = reason.split("; ") if reason else []
    return [("" if number else "chosen", part) for number, part in enumerate(parts)]


# Besides control characters: line ends and changes of direction in Unicode, what has no width, and halves of
# surrogate pairs, which no stream can encode. The two joiners (200C, 200D) belong to words and stay.
_HIDDEN = r"[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]"
_SHORT = {"\n": "\\n", "\t": "\\t"}


def one_line(text: str) -> str:
    """Text with control characters escaped: names in files may hold line ends and a terminal's commands."""
    return re.sub(_HIDDEN, _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _SHORT.get(found[0]) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def printable(text: str) -> str:
    """The same of text whose line ends are meant."""
    return "\n".join(map(one_line, text.split("\n")))


def without_long_words(text: str) -> str:
    """A sentence whose words a person can read: a name of 10 kB is cut to its ends; no path is that long."""
    return re.sub(_TOO_LONG, lambda word: shortened(word[0], _KEPT), text)


def similar(word: str, known: Iterable[str], most: int, alike: float = 0.6) -> list[str]:
    """Words of those known that a misspelled one may mean, at most so many, the likeliest first.

    Case and hyphens do not count. ``alike``: from 0 to 1, difflib's measure.
    """
    import difflib

    spelled = {item.lower().replace("-", "_"): item for item in itertools.islice(known, _MOST_COMPARED)}
    found = difflib.get_close_matches(word[:_LONGEST_WORD].lower().replace("-", "_"), spelled, most, alike)
    return [spelled[item] for item in found]


def listed(items: Sequence[object]) -> str:
    """The first few of some ranks or hosts, as ``0, 1, 2, ...``."""
    return ", ".join(map(str, items[:_LISTED])) + (", ..." if len(items) > _LISTED else "")


def listed_collectives(found: Iterable[tuple[str, str]]) -> str:
    """Collectives, each an operator and the bodies that it lies in, counted for people: those of an inference
    whichever way it goes first, then those of each body."""
    groups: dict[str, Counter[str]] = {"": Counter()}
    for op, within in found:
        groups.setdefault(within, Counter())[op] += 1
    texts = {
        within: ", ".join(f"{count} {op}" for op, count in sorted(counts.items()))
        for within, counts in groups.items()
    }
    inner = [f"in {within}: {text}" for within, text in texts.items() if within]
    return "; ".join([texts[""], *inner] if texts[""] else inner) or "none"


def closest(word: str, known: Iterable[str]) -> str | None:
    """The word of those known that a misspelled one most likely means."""
    return next(iter(similar(word, known, 1)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the end of a message, where a known word is close; else nothing."""
    found = closest(word, known)
    return f"; did you mean {found!r}?" if found is not None else ""


def shortened(text: str, length: int = 60) -> str:
    """A long name without its middle."""
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[:half]}…{text[-half:]}"
