"""The environment variables that say how a process works: what each may hold, read here alone.

Empty text and blanks stand for a variable that is not set. Each raises `SettingError` for other values than
those named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

from ranks.errors import SettingError
from sharding.common.bounds import LONGEST_TIMEOUT, MAX_THREADS
from sharding.common.registry import Names
from sharding.common.text import did_you_mean, shortened

COLLECTIVES = Names("ranks.collectives.backends", "shardrun.collectives", ("auto",))
"""What joins the ranks; `ranks.collectives.BACKENDS` has what each is."""
DEFAULT_TIMEOUT = 300.0


def check(environ: Mapping[str, str] = os.environ) -> None:
    """Raises `SettingError` where one of them is wrong, before any work is done."""
    default_timeout(environ)
    threads(environ)
    collectives(environ)
    weights(environ)
    cache_limit(environ)
    target(environ)
    stand_in(environ)


def default_timeout(environ: Mapping[str, str] = os.environ) -> float:
    """Seconds a collective waits for a peer: ``SHARDRUN_TIMEOUT``, or `DEFAULT_TIMEOUT`."""
    text = _text(environ, "SHARDRUN_TIMEOUT")
    if not text:
        return DEFAULT_TIMEOUT
    seconds = parse_seconds(text)
    if seconds is None:
        raise _wrong("SHARDRUN_TIMEOUT", SECONDS, text)
    return seconds


SECONDS = f"a number of seconds above 0 and at most {LONGEST_TIMEOUT:.0f}"


def parse_seconds(text: str) -> float | None:
    """The `SECONDS` that a text says; None if it says anything else."""
    if not re.fullmatch(r"\+?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE):
        return None
    value = float(text)
    return value if 0 < value <= LONGEST_TIMEOUT else None


def threads(environ: Mapping[str, str] = os.environ) -> int | None:
    """ONNX Runtime threads per rank: ``SHARDRUN_THREADS``; None where it is not set."""
    text = _text(environ, "SHARDRUN_THREADS")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= MAX_THREADS):
        raise _wrong("SHARDRUN_THREADS", f"a number from 1 to {MAX_THREADS}", text)
    return int(text)


def collectives(environ: Mapping[str, str] = os.environ) -> str:
    """Which collectives join the ranks: ``SHARDRUN_COLLECTIVES``, or ``auto``."""
    text = _text(environ, "SHARDRUN_COLLECTIVES") or "auto"
    if text not in COLLECTIVES:
        raise _wrong("SHARDRUN_COLLECTIVES", f"one of {', '.join(COLLECTIVES)}", text, COLLECTIVES)
    return text


def weights(environ: Mapping[str, str] = os.environ) -> str:
    """Whether weights are prepared: ``SHARDRUN_WEIGHTS``, which is ``on``, ``off`` or nothing."""
    text = _text(environ, "SHARDRUN_WEIGHTS").lower()
    if text not in {"", "on", "off"}:
        raise _wrong("SHARDRUN_WEIGHTS", "on or off", text)
    return text


def cache_limit(environ: Mapping[str, str] = os.environ) -> int | None:
    """The most bytes that the cache may take: ``SHARDRUN_CACHE_LIMIT``, a number of bytes, or one with KB,
    MB, GB or TB; None where it is not set."""
    text = _text(environ, "SHARDRUN_CACHE_LIMIT")
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,18})(\.\d{1,9})? ?([KMGT]?)B?", text, re.ASCII | re.IGNORECASE)
    expected = "a size such as 20GB or 500MB"
    if found is None:
        raise _wrong("SHARDRUN_CACHE_LIMIT", expected, text)
    whole, part, unit = found.groups()
    size = int(float(whole + (part or "")) * 1000 ** " KMGT".index(unit.upper() or " "))
    if size == 0:  # to one no limit, to another no cache
        raise _wrong("SHARDRUN_CACHE_LIMIT", f"{expected}, above 0", text)
    return size


def target(environ: Mapping[str, str] = os.environ) -> str:
    """``SHARDRUN_TARGET``: ``cpu`` where scripts that name other targets run on the CPU, or nothing."""
    text = _text(environ, "SHARDRUN_TARGET").lower()
    if text not in {"", "cpu"}:
        raise _wrong("SHARDRUN_TARGET", "'cpu' or not set", text)
    return text


def stand_in(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `ranks` stands in for mindspore_lite: unless ``SHARDRUN_MINDSPORE_LITE`` is ``real``."""
    text = _text(environ, "SHARDRUN_MINDSPORE_LITE").lower()
    if text not in {"", "ranks", "real"}:
        raise _wrong("SHARDRUN_MINDSPORE_LITE", "'ranks' or 'real'", text)
    return text != "real"


def _text(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()


def _wrong(name: str, expected: str, found: str, known: Collection[str] = ()) -> SettingError:
    return SettingError(
        f"{name} must be {expected}, but is {shortened(found, 80)!r}{did_you_mean(found, known)}."
    )
