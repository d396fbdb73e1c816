"""Errors raised by the launcher; see `sharding.errors` for the base class."""

from sharding.errors import ShardrunError

__all__ = ["ConfigError", "LaunchError", "RankFailedError", "RankTableError", "ShardrunError", "VerifyError"]


class ConfigError(ShardrunError):
    """A flag, a job file or an input file does not say what it should."""


class RankTableError(ConfigError):
    """A rank table is malformed or contradicts itself."""


class LaunchError(ShardrunError):
    """The ranks could not be started."""


class RankFailedError(ShardrunError):
    """A rank ended or failed while it was needed; the message starts with the first cause.

    ``rank`` and ``host`` say which, where one rank is the cause; ``details`` is its traceback, if it had one;
    ``code`` its exit code (negative: a signal), if it only ended; ``usage`` whether the rank says that what
    it was given is wrong.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        host: str | None = None,
        details: str = "",
        code: int | None = None,
        usage: bool = False,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.details = details
        self.code = code
        self.usage = usage


class VerifyError(ShardrunError):
    """A result differs from the right one by more than the tolerance."""
