"""Other names for a checkpoint's weights: rules that a user gives, and the maps that are built in."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sharding.errors import OptionError
from sharding.importers.checkpoints.base import shown_name

MOST_SECONDS = 20.0
"""Of computing, for the names of one checkpoint."""


@dataclass(frozen=True)
class Rule:
    """Each match of ``pattern`` in a name becomes ``replacement`` (Python's regular expressions)."""

    pattern: re.Pattern[str]
    replacement: str


def _map(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple(Rule(re.compile(pattern), replacement) for pattern, replacement in pairs)


MAPS = {
    "mindspore": _map(
        (r"(^|\.)gamma$", r"\1weight"),
        (r"(^|\.)beta$", r"\1bias"),
        (r"(^|\.)moving_mean$", r"\1running_mean"),
        (r"(^|\.)moving_variance$", r"\1running_var"),
        (r"(^|\.)embedding_table$", r"\1weight"),
    ),
    "ddp": _map((r"^module\.", "")),
    "compiled": _map((r"^_orig_mod\.", "")),
}
"""``mindspore``: what MindSpore's normalizations and embeddings call their weights to torch's names;
``ddp`` and ``compiled``: without the prefix that ``DistributedDataParallel`` or ``torch.compile`` adds."""


def parse_rules(texts: Iterable[str]) -> list[Rule]:
    """Reads ``PATTERN=REPLACEMENT`` or the name of one of `MAPS`. Raises `OptionError`."""
    rules: list[Rule] = []
    for text in texts:
        if text in MAPS:
            rules.extend(MAPS[text])
            continue
        pattern, equals, replacement = text.rpartition("=")  # patterns may hold "=", names hardly do
        if not equals or not pattern:
            raise OptionError(
                f"--rename {text!r}: expected PATTERN=REPLACEMENT, or one of the maps {', '.join(MAPS)}."
            )
        try:
            compiled = re.compile(pattern)
            # A replacement is checked only when it is used; this one is used on nothing.
            re.compile(f"{pattern}|").sub(replacement, "")
        except (re.error, IndexError, RecursionError, OverflowError) as error:
            raise OptionError(f"--rename {text!r} is not a regular expression: {error}.") from None
        rules.append(Rule(compiled, replacement))
    return rules


def renamed(name: str, rules: Sequence[Rule]) -> str:
    """A name after all rules, in their order."""
    for rule in rules:
        name = rule.pattern.sub(rule.replacement, name)
    return name


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Ends patterns that backtrack without end after `MOST_SECONDS` of this process's time.

    Python looks for signals while it matches. Outside the main thread, which alone gets them, there is no
    limit.
    """

    def stop(_number: int, _frame: object) -> None:
        raise OptionError(
            f"--rename: the patterns took more than {MOST_SECONDS:g} seconds; a repetition of a repetition, "
            "such as (a+)+, takes for ever: give a simpler pattern."
        )

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def rename_all(names: Iterable[str], rules: Sequence[Rule]) -> dict[str, str]:
    """New name -> old name. Raises `OptionError` where two get the same, or a rule takes too long."""
    with _limited():
        pairs = [(renamed(name, rules), name) for name in names]
    found: dict[str, str] = {}
    for new, name in pairs:
        if new in found:
            raise OptionError(
                f"--rename gives two weights the name {shown_name(new)}: {shown_name(found[new])} and "
                f"{shown_name(name)}."
            )
        found[new] = name
    return found
