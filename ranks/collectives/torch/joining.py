"""While torch makes a group, ranks wait in C++ for each other's addresses and connections, and see nothing
of one that has ended: they would wait for their time-out. So it is made in a thread, while this one looks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from ranks.collectives.rendezvous import Rendezvous
from ranks.collectives.torch.lines import place_of
from ranks.collectives.torch.protocols import Store
from ranks.errors import PeerLostError
from ranks.identity.place import Identity
from ranks.talk.connect import any_ended, cut_to

_AGAIN = 0.05  # seconds between two looks
_GRACE = 1.0  # seconds: a rank that has made the group may have ended well before this one has


def attended(make: Callable[[], None], look: Callable[[], None], store: Store | None, *, apart: bool) -> None:
    """Does ``make`` and raises what it raises, unless ``look``, which is called meanwhile, raises
    `PeerLostError` before: only where it may be done ``apart``, in another thread.

    Then that thread loses its connection to the ``store``, at which it ends: were it to come back while
    Python takes the process apart, that would end by SIGABRT. From another store, or from Gloo's connecting,
    it does not come back before the library's own time-out.
    """
    if not apart:
        make()
        return
    done, problems = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            make()
        except BaseException as error:  # raised where it is waited for
            problems.append(error)
        finally:
            done.set()

    threading.Thread(target=work, name="shardrun joining", daemon=True).start()
    while not done.wait(_AGAIN):
        try:
            look()
        except PeerLostError:
            if not done.wait(_GRACE):
                if (place := place_of(store)) is not None:
                    cut_to(place[1])
                    done.wait(_GRACE)
                raise
            if problems:  # of which this says more
                raise
    if problems:
        time.sleep(_AGAIN)  # the kernel closes the connections of a rank one by one
        look()  # it may say more
        raise problems[0]


def see(
    identity: Identity,
    rendezvous: Rendezvous | None,
    connections: Collection[int],
    members: Collection[int] | None,
) -> None:
    """Raises `PeerLostError` where a rank has ended to which this one is connected: by ``rendezvous`` on one
    host, else by Gloo's ``connections``. ``members``: those of the group that is made, where not all are: any
    other may have ended well."""
    if rendezvous is not None:
        if found := [rank for rank in rendezvous.gone() if members is None or rank in members]:
            error = rendezvous.lost(found[0])
            raise PeerLostError(f"{error} before all ranks had joined.", error.peer)
    elif any_ended(connections):
        other = 1 - identity.rank if identity.world_size == 2 else None
        who = "Another rank" if other is None else f"Rank {other}"
        raise PeerLostError(f"{who} ended before all ranks had joined.", other)
