"""What is used of torch's objects, which are made by a library that may be missing."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol


class Device(Protocol):
    """A device of torch's."""

    type: str


class Abortable(Protocol):
    """A group of torch's; older releases lack the method."""

    def abort(self) -> None:
        """Ends what it still does on its device."""


class Work(Protocol):
    """A collective that is under way."""

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""

    def wait(self, timeout: timedelta = ..., /) -> object:
        """Waits for it; raises what it ended with, or `RuntimeError` where it goes on for longer."""


class Store(Protocol):
    """Where ranks leave words for each other."""

    def set_timeout(self, timeout: timedelta, /) -> None:
        """Says how long `get` waits."""

    def set(self, key: str, value: str, /) -> None:
        """Writes a word."""

    def get(self, key: str, /) -> bytes:
        """Reads one, for which it waits."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all of these are there."""


class Tensor(Protocol):
    """A tensor, as far as collectives look at one."""

    dtype: object
    device: object
    shape: tuple[int, ...]

    def copy_(self, source: Tensor, /) -> object:
        """Copies elements, or numbers of another type."""

    def dim(self) -> int:
        """How many axes it has."""

    def element_size(self) -> int:
        """Bytes of an element."""

    def is_contiguous(self) -> bool:
        """Whether its elements lie one after the other."""

    def movedim(self, source: int, destination: int, /) -> Tensor:
        """The same with its axes in another order."""

    def numel(self) -> int:
        """How many elements it has."""

    def reshape(self, *shape: int) -> Tensor:
        """The same in another shape."""

    def to(self, dtype: object, /) -> Tensor:
        """A copy in another type."""

    def view(self, *dtype_or_shape: object) -> Tensor:
        """The same memory as another type, or in another shape."""
