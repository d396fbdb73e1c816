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
    """A rank ended or failed while it was needed; the message starts with the first cause."""


class VerifyError(ShardrunError):
    """A sliced result differs from the unsliced model's by more than the tolerance."""
