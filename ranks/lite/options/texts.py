"""Values of options as they are written: in quotes, lists of process ids, handles of shared weights."""

from __future__ import annotations

import re

from ranks.common.targets import TARGETS
from ranks.errors import WeightsError
from ranks.weights.shared.handle import LARGEST_HANDLE, unsigned
from ranks.weights.shared.peers import LARGEST_PID, MOST_PIDS
from sharding.common.text import parse_whole

SECTIONS = tuple(f"{target}_context" for target in sorted(TARGETS))
"""Of a configuration: where options of weights may stand."""


def unquoted(text: str) -> str:
    """``text`` without the blanks and the one pair of quotes around it.

    Quotes that are part of it stay: a lone one, and those of a list of quoted texts.
    """
    text = text.strip()
    quote = text[:1]
    if quote in {"'", '"'} and len(text) > 1 and text.endswith(quote) and quote not in text[1:-1]:
        return text[1:-1].strip()
    return text


def parse_pids(text: str, what: str) -> tuple[int, ...]:
    """The process ids in ``text``, separated by commas, ``[...]`` around them or not; each once.

    A 0 beside others is left out: in a list that is shared by the processes it is the place of one that has
    none to fill in, as the owner has. Raises `WeightsError` that says what ``what`` should be.
    """
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    parts = [unquoted(part) for part in inner.split(",")]
    if not parts[-1]:  # a comma at the end is no mistake
        parts.pop()
    for part in parts:
        if parse_whole(part, 0, LARGEST_PID) is None:
            raise WeightsError(
                f"{what} must be process ids from 1 to {LARGEST_PID} separated by commas, like '1234, 1235', "
                f"but holds {part[:80]!r}."
            )
    pids = [number for part in parts if (number := int(part)) != 0]
    if not 0 < len(pids) <= MOST_PIDS:
        found = f"lists {len(pids)}" if pids or not parts else "holds nothing but 0"
        raise WeightsError(f"{what} must list 1 to {MOST_PIDS} process ids, but {found}.")
    return tuple(dict.fromkeys(pids))


def parse_handle(text: str, what: str) -> int:
    """The handle in ``text``, decimal digits; raises `WeightsError` that says what ``what`` should be."""
    digits = text.strip()
    if re.fullmatch(r"-?[0-9]{1,20}", digits) and 0 < (number := unsigned(int(digits))) <= LARGEST_HANDLE:
        return number
    found = "empty" if not digits else f"a text of {len(digits)} characters that is no such number"
    raise WeightsError(
        f"{what} must be the number that get_model_info('shareable_weight_mem_handle') gave in the owner, "
        f"from 1 to 2**64 - 1 in decimal digits, but is {found}."
    )
