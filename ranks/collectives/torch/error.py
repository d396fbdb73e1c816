"""What torch.distributed says of a failure, as one of our errors."""

from __future__ import annotations

import re

from ranks.errors import SILENT, CollectiveError, CollectiveTimeoutError, PeerLostError

_LOST = (
    "onnection closed",
    "onnection reset",
    "roken pipe",
    "onnection refused",
    "remote process exit",  # NCCL: "exited", and "exiting prematurely"
    "ncclRemoteError",
)

_SILENT = ("onnection timed out", "o route to host", "ost is down", "etwork is unreachable")
"""The kernel's words of a host that does not answer."""
_GUESS = re.compile(r"\. This is typically caused by .*")
"""What Gloo says after its reason."""
_PLACE = re.compile(r"^\[[^\[\]\s]+:\d+\] ")
"""Where in its source Gloo found an error."""


def translate(error: Exception, what: str, rank: int, timeout: float, peer: int | None) -> CollectiveError:
    """torch's error as one of ours; torch has one class for all, so its text decides."""
    text = str(error)
    who = f"Rank {peer}" if peer is not None else "Another rank"
    # NCCL's own reason comes last, behind a place in torch's source.
    told = text.partition("Last error:\n")[2].strip() or text.strip()
    reason = type(error).__name__
    if told:
        reason = _GUESS.sub("", _PLACE.sub("", told.splitlines()[0]))[:200]
    if any(words in reason for words in _SILENT):
        return PeerLostError(
            f"{who} is gone: {SILENT}. Rank {rank} waited in {what} ({reason}).",
            peer,
            silent=True,
        )
    if is_loss(error):
        return PeerLostError(f"{who} ended while rank {rank} waited in {what} ({reason}).", peer)
    if "imed out" in text or "timeout" in text.lower():
        return CollectiveTimeoutError(
            f"{who} did not come to {what} within {timeout:g} s (rank {rank} waited): look for what holds "
            "it up, or raise SHARDRUN_TIMEOUT."
        )
    return CollectiveError(f"{what} failed on rank {rank}: {reason}")


def is_loss(error: Exception) -> bool:
    """Whether torch says that another rank is no longer there."""
    return any(words in str(error) for words in (*_LOST, *_SILENT))
