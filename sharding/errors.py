"""The errors that shardrun raises for a user; each says what, where, expected, found and what to do."""

import os

from sharding.common.text import human_bytes, printable


class ShardrunError(Exception):
    """Base of every error that shardrun raises on purpose; the command prints it without a traceback.

    Its text is fit to print, whatever the names in it hold: they come from files and from other processes.
    """

    sources: tuple[tuple[str, str], ...] = ()
    """Files that were made of what the user gave, each with its source, which the text names instead."""

    def made_of(self, file: str | os.PathLike[str], source: str) -> None:
        """Says that ``file``, which the text may name, was made of ``source``."""
        names = dict.fromkeys((os.path.realpath(file), os.fspath(file)))
        self.sources = (*self.sources, *((name, source) for name in names))

    def __str__(self) -> str:
        text = super().__str__()
        for file, source in self.sources:
            text = _by_source(text, file, source)
        return printable(text)


def _by_source(text: str, file: str, source: str) -> str:
    first, *rest = text.split(file)
    # A file of weights stays: its name only begins alike.
    return first + "".join(f"{file if part.startswith('.data') else source}{part}" for part in rest)


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
