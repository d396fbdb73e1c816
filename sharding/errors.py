"""The errors that shardrun raises for a user; each says what, where, expected, found and what to do."""

from sharding.common.text import human_bytes, printable


class ShardrunError(Exception):
    """Base of every error that shardrun raises on purpose; the command prints it without a traceback.

    Its text is fit to print, whatever the names in it hold: they come from files and from other processes.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class ModelError(ShardrunError):
    """A model file is missing, truncated, of another format, or not valid ONNX."""


class SliceError(ShardrunError):
    """A valid model cannot be sliced as asked."""


class OptionError(SliceError):
    """Options of slicing contradict each other, or a file that they name does not say what it should."""


class OutputError(SliceError):
    """The output folder cannot be used: it is a file, or holds what is not ours."""


class RoomError(SliceError):
    """A disk has less room than slices need; ``lack`` says how much it has, and how much they need."""

    def __init__(self, where: object, needed: int, free: int) -> None:
        self.lack = f"{human_bytes(needed)} are needed, but only {human_bytes(free)} are free on its disk"
        super().__init__(f"{where} cannot be written: {self.lack}: free some space there.")


class ShardError(ShardrunError):
    """A slice folder or a shard in it is missing, damaged, or was made for another rank or world size."""
