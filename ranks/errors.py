"""Errors raised inside a rank; see `sharding.errors` for the base class."""

from sharding.errors import ModelError, OptionError, OutputError, ShardError, ShardrunError, SliceError

__all__ = [
    "SILENT",
    "CollectiveError",
    "CollectiveTimeoutError",
    "DeviceError",
    "IdentityError",
    "ModelError",
    "PeerLostError",
    "QueueFullError",
    "SettingError",
    "ShardError",
    "ShardrunError",
    "SliceError",
    "WeightsError",
    "is_usage",
]

SILENT = "nothing comes from its host any more, which is down, or the network to it is cut"
"""Why a rank is gone whose host does not answer."""


class SettingError(ShardrunError):
    """An environment variable or a configuration does not say what it should."""


class IdentityError(ShardrunError):
    """The environment says who this rank is only in part, or contradicts itself."""


class DeviceError(ShardrunError):
    """A target device, its driver or its execution provider is not there."""


class CollectiveError(ShardrunError):
    """A collective failed or the ranks could not find each other."""


class CollectiveTimeoutError(CollectiveError):
    """A peer did not arrive at a collective in time."""


class PeerLostError(CollectiveError):
    """A peer ended while this rank waited for it. Never the first cause: the peer's own error is.

    ``silent``: nothing came from the peer's host any more, so that nobody here will hear how it ended.
    """

    def __init__(self, message: str, peer: int | None = None, *, silent: bool = False) -> None:
        super().__init__(message)
        self.peer = peer
        self.silent = silent


class QueueFullError(ShardrunError):
    """More predictions wait for a worker of a `ModelParallelRunner` than may; a later one may succeed."""


class WeightsError(ShardrunError):
    """Weights cannot be shared, attached to, or replaced as asked."""


def is_usage(error: BaseException) -> bool:
    """Whether what was given is wrong (a setting, a model, options, a file), rather than what was done with
    it: the exit code is then another one."""
    from sharding.common.documents import DocumentError

    usage = SettingError | IdentityError | ModelError | OptionError | OutputError | DocumentError
    return isinstance(error, usage)
