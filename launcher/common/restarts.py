"""What is said of ranks that fail: whether they are started again, and how often."""

from __future__ import annotations

from launcher.errors import ConfigError

NEVER, ON_FAILURE = "never", "on-failure"
EXPECTED = f"{NEVER}, {ON_FAILURE} or {ON_FAILURE}:N"
"""What may be said. N: restarts in a row, each of ranks that answered nothing in between."""
MOST, HIGHEST = 5, 1000
PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each restart of a row; the last one for all that follow."""
CALM_SECONDS = 60.0
"""Restarts within so many seconds are a row for these pauses, whatever was answered in between."""


def parse_restart(text: str) -> int:
    """How many restarts in a row there may be, from a text such as ``on-failure:3``. Raises `ConfigError`."""
    name, colon, count = text.partition(":") if isinstance(text, str) else ("", "", "")
    if name == NEVER and not colon:
        return 0
    if name == ON_FAILURE and not colon:
        return MOST
    number = int(count) if count.isascii() and count.isdigit() and len(count) < 5 else 0
    if name == ON_FAILURE and 1 <= number <= HIGHEST:
        return number
    raise ConfigError(f"restart: expected {EXPECTED}, with N from 1 to {HIGHEST}, found {str(text)[:40]!r}")


def parsed_restart(text: str) -> str:
    """The text, if it says how often. Raises `ConfigError`."""
    parse_restart(text)
    return text


def pause(number: int) -> float:
    """The seconds before the restart of this number, from 1, of a row."""
    return PAUSES[min(number, len(PAUSES)) - 1]
