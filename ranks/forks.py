"""What a forked child must set right: locks that are held by threads which only its parent has.

A child has the thread that forked, and a copy of all memory as it was then. A lock that another thread of the
parent held stays held in the child for ever.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Owner = TypeVar("Owner")

_renewals: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def in_child(owner: Owner, renew: Callable[[Owner], None]) -> None:
    """Calls ``renew(owner)`` in every child that is forked while ``owner`` is in use elsewhere."""
    _renewals[owner] = renew


def _renew_all() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


os.register_at_fork(after_in_child=_renew_all)
