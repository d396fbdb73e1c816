"""Objects that belong to the process that made them."""

from __future__ import annotations

from typing import NoReturn, TypeVar

Self = TypeVar("Self", bound="OneProcess")


class OneProcess:
    """Not pickled: what an argument of a multiprocessing call would need is said instead."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled, so it is no argument for another process: build it "
            "there from its file, or share its weights (ranks.share_weights) and give the handle to "
            "ranks.attach there."
        )

    def __copy__(self: Self) -> Self:
        copied = type(self).__new__(type(self))
        state: dict[str, object] = self.__dict__
        copied.__dict__.update(state)
        return copied
