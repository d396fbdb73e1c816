"""How much a server takes at once."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.job.option_table import described, table
from launcher.job.values import Number, Whole

LIMITS = "limits"
"""Title of the group in ``--help``."""
_MB = 1 << 20
_MANY = 1 << 20


@dataclass(frozen=True)
class ServeLimits:
    """What clients may ask for; more is refused at once."""

    body: int = described(
        Whole(1, 1 << 40), LIMITS, "bytes of a request's body (default: 67108864)", "BYTES", "--max-body",
        default=64 * _MB,
    )  # fmt: skip
    held: int = described(
        Whole(1, 1 << 50), LIMITS, "bytes of all bodies under way together (default: 1073741824)", "BYTES",
        "--max-held", default=1 << 30,
    )  # fmt: skip
    queue: int = described(
        Whole(1, _MANY), LIMITS, "requests of one model that may wait (default: 256)", "N", "--max-queue",
        default=256,
    )  # fmt: skip
    seconds: float = described(
        Number(0, 86400, above=True), LIMITS,
        "how long a request may wait and be computed, and a text be silent (default: 60)", "SECONDS",
        "--request-timeout", default=60.0,
    )  # fmt: skip
    connections: int = described(
        Whole(1, _MANY), LIMITS, "open connections (default: 1024)", "N", "--max-connections", default=1024
    )
    tokens: int = described(
        Whole(1, _MANY),
        LIMITS,
        "tokens that a text may get (default: 4096)",
        "N",
        "--max-tokens",
        default=4096,
    )
    texts: int = described(
        Whole(1, 4096), LIMITS, "texts of one model that grow at the same time (default: 8)", "N",
        "--max-texts", default=8,
    )  # fmt: skip
    samples: int = described(
        Whole(1, 4096), LIMITS, "texts of one request (default: 8)", "N", "--max-samples", default=8
    )
    drain: float = described(
        Number(0, 3600), LIMITS, "seconds for what is under way when the server is told to end (default: 30)",
        "SECONDS", "--drain", default=30.0,
    )  # fmt: skip
    idle: float = described(
        Number(1, 86400), LIMITS, "seconds until a connection that asks nothing is closed (default: 75)",
        "SECONDS", "--max-idle", default=75.0,
    )  # fmt: skip


LIMIT_OPTIONS = table(ServeLimits)
"""Option by name."""
