"""What is said of ranks that are not there in time."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from launcher.job.places.hosts import over_ssh

log = logging.getLogger(__name__)

_SHOWN = 8
_LONGEST = 300


def listed(items: Sequence[object]) -> str:
    """The first few of some ranks or hosts."""
    return ", ".join(map(str, items[:_SHOWN])) + (", ..." if len(items) > _SHOWN else "")


def say_who_is_awaited(there: int, size: int, name: str, remote: Sequence[str], *, ssh: bool) -> None:
    """Says for which hosts a start waits; ``name``: what starts the ranks, ``ssh``: by ssh."""
    by = " over ssh" if ssh else ""
    log.warning(
        "%d of %d ranks have started; %s reaches %s%s", there, size, name, listed(over_ssh(remote)), by
    )


def late(  # noqa: PLR0917 - what the sentence is made of
    what: str,
    seconds: float,
    missing: Sequence[int],
    launcher: str,
    far: Sequence[str],
    said: Sequence[str],
    more: str = "",
) -> str:
    """The sentence, followed by the last lines that whatever starts the ranks has printed.

    ``missing``: ranks that have not said anything; ``launcher``: the name of what starts them; ``far``: the
    hosts that it reaches over ssh; ``said``: the lines that it printed; ``more``: what else is known.
    """
    text = f"{what} within {seconds:g} s"
    if missing:
        text += f"; nothing was heard of rank{'s' * (len(missing) > 1)} {listed(missing)}"
    advice = "look at the hosts, or allow more time (--timeout)."
    if missing and far:
        advice = (
            f"{launcher} starts the ranks over ssh on {listed(far)}: see that `ssh {far[0]}` connects "
            "without a question and that this program is installed there, or allow more time (--timeout)."
        )
    lines = [f"  {line[:_LONGEST]}" for line in said if line.strip("- ")]
    return "\n".join([f"{text}: {advice}{more}", *([f"{launcher} said:"] if lines else []), *lines])
