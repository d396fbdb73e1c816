"""Whether memory of devices can be shared by file descriptors."""

from __future__ import annotations

import pytest

from ranks.devices.cuda_driver import Driver


class Played(Driver):
    """A driver that says what it is told to."""

    def __init__(self, *, known: bool, attributes: list[int]) -> None:
        self.known, self.attributes = known, attributes

    def has(self, name: str) -> bool:
        return self.known

    def _attribute(self, device: int, number: int) -> int:
        return self.attributes.pop()


@pytest.mark.parametrize(
    ("known", "attributes", "shared"),
    [(True, [1, 1], True), (True, [1, 0], False), (True, [0, 1], False), (False, [1, 1], False)],
)
def test_descriptors_need_the_call_and_both_attributes(
    known: bool, attributes: list[int], shared: bool
) -> None:
    assert Played(known=known, attributes=[*attributes]).exports_descriptors(0) is shared
