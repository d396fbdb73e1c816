"""What is said of ranks that are not there in time."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from launcher.job.places.hosts import over_ssh
from launcher.starters.base import Launcher
from launcher.starters.reach import CONNECT_SECONDS
from sharding.common.text import listed

log = logging.getLogger(__name__)

NOTICE_SECONDS = CONNECT_SECONDS + 5.0
"""A start that takes longer says what it waits for: where a host does not answer, the error comes before."""
_LONGEST = 300


def say_who_is_awaited(there: int, size: int, launcher: Launcher, hosts: Collection[str]) -> None:
    """Says for which ``hosts`` a start waits."""
    waited_for = sorted(hosts)
    by = " over ssh" if launcher.over_ssh and over_ssh(waited_for) else ""
    log.warning(
        "%d of %d ranks have started; nothing was heard yet from %s, where %s starts ranks%s",
        there, size, listed(waited_for), launcher.name, by,
    )  # fmt: skip


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
