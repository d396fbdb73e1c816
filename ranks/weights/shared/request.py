"""What a script asks for: to share a model's weights, or to attach to another process's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Build the model as the owner of its weights."""

    pids: tuple[int, ...] = ()
    """Processes that may attach; they run already."""
    what: str = "pids"
    """Where the list comes from, for errors."""
    name: str | None = None
    """The name that the owner and the others agreed on; None: a new handle."""
    family: int | None = None
    """This process and its descendants may attach: the owner, or a process above it. None: nobody's."""


@dataclass(frozen=True)
class Attach:
    """Build the model over the weights of another process."""

    given: int | str
    """The owner's handle, or the agreed name."""
    timeout: float | None = None
    """Seconds to wait for the owner; None: ``SHARDRUN_TIMEOUT``, or 300."""
    wait: bool | None = None
    """Whether an owner that is not there may yet come; None: only one with an agreed name."""
