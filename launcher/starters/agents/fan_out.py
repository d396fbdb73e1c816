"""In which order agents are begun, and which of them by way of others.

A connection takes a process here, a key exchange and a login, so few are being made at once. With many hosts,
those that are there reach others: their agents get hosts to connect to, as long as that works. Whatever does
not work, or takes long, is reached from here, as all others are meanwhile; so a tree that is of no use (hosts
that have no keys for each other) costs little more than none.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import LaunchError

if TYPE_CHECKING:
    from launcher.starters.agents.handle import Agent
    from launcher.starters.agents.tree import Branch, Route

log = logging.getLogger(__name__)

WIDTH = 64
"""Hosts to which connections are being made at once from here."""
FIRST_WIDTH = 16
"""The same where hosts reach others: each process that is started here takes time of this machine alone."""
BRANCH_WIDTH = 16
"""The same from one of the hosts."""
TREE_FROM = WIDTH + 1
"""So many hosts that it pays to have some reach others."""
ROUTE_SECONDS = 5.0
"""After which a host is reached from here that does not answer by another one."""
_MOST_FAILURES = 3
"""Failures of the first routes after which no more are tried."""


class _Open(NamedTuple):
    """A route that is being made, which is given up when its time is over."""

    route: Route
    agent: Agent
    deadline: float


class FanOut:
    """Begins agents: the first ones at once, the rest in a thread."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._waiting = collections.deque(sorted(agents, key=lambda agent: bool(agent.host.beyond)))
        self._direct: set[Agent] = set()
        self._through: dict[Agent, Branch] = {}
        self._from_here: set[Agent] = set()
        """Those whose route has failed."""
        self._open: list[_Open] = []
        self._branches: list[Branch] = []
        self._changed = threading.Condition()
        self._by_tree = len(agents) >= TREE_FROM
        self._arrived = self._failures = 0

    def begin(self) -> None:
        """Raises `OSError`, `RuntimeError` and `LaunchError` where one of the first cannot be begun."""
        for _ in range(min(self._width, len(self._waiting))):
            agent = self._waiting.popleft()
            self._direct.add(agent)
            agent.begin()
        if self._waiting:
            threading.Thread(target=self._work, name="shardrun hosts", daemon=True).start()

    @property
    def _width(self) -> int:
        return FIRST_WIDTH if self._by_tree else WIDTH

    def started(self, agent: Agent) -> None:
        """An agent has started its ranks, or never will; in whichever thread."""
        with self._changed:
            self._direct.discard(agent)
            self._through.pop(agent, None)
            if agent.branch is not None and self._by_tree:
                self._branches.append(agent.branch)
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (ready := self._next()):
                    if not self._waiting and not self._open:
                        return
                    self._changed.wait(self._patience())
            ready()

    def _patience(self) -> float | None:
        ends = [item.deadline for item in self._open]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _next(self) -> functools.partial[None] | None:
        """What is to be done now, with the lock not held; None where that is to wait for something."""
        now = time.monotonic()
        for item in self._open:
            if item.route.failed or item.route.answered or now >= item.deadline:
                self._open.remove(item)
                usable = item.route.answered and not item.route.failed
                return functools.partial(self._use if usable else self._give_up, item)
        if not self._waiting:
            return None
        branch = self._branch()
        if branch is not None and self._waiting[-1].host.beyond and self._waiting[-1] not in self._from_here:
            agent = self._waiting.pop()
            self._through[agent] = branch
            return functools.partial(self._reach, agent, branch)
        if len(self._direct) < self._width:
            agent = self._waiting.popleft()
            self._direct.add(agent)
            return functools.partial(self._begin, agent)
        return None

    def _branch(self) -> Branch | None:
        """The one that has least to do, of those that may get more."""
        busy = collections.Counter(self._through.values())
        self._branches = [branch for branch in self._branches if branch.usable]
        free = [branch for branch in self._branches if busy[branch] < BRANCH_WIDTH]
        return min(free, key=busy.__getitem__, default=None) if self._by_tree else None

    def _begin(self, agent: Agent) -> None:
        try:
            agent.begin()
        except (OSError, RuntimeError, LaunchError) as error:
            agent.fail(str(error))

    def _reach(self, agent: Agent, branch: Branch) -> None:
        try:
            route = branch.open(agent.host, self._wake)
        except (OSError, RuntimeError) as error:
            log.debug("no way to %s by %s: %s", agent.host.name, branch.host, error)
            self._back(agent, branch)
            return
        with self._changed:
            self._open.append(_Open(route, agent, time.monotonic() + ROUTE_SECONDS))

    def _use(self, item: _Open) -> None:
        self._arrived += 1
        try:
            item.agent.begin(item.route.use)
        except (OSError, RuntimeError, LaunchError) as error:
            with contextlib.suppress(OSError):
                item.route.leave()
            item.agent.fail(str(error))

    def _give_up(self, item: _Open) -> None:
        route = item.route
        log.debug("%s is reached from here, not by %s: %s", route.host, route.branch.host, route.why)
        with contextlib.suppress(OSError):
            route.leave()
        self._back(item.agent, route.branch)

    def _back(self, agent: Agent, branch: Branch) -> None:
        """It is reached from here, and by that branch nothing more."""
        with self._changed:
            branch.usable = False
            self._failures += 1
            if self._failures >= _MOST_FAILURES and not self._arrived:
                self._by_tree = False
            self._through.pop(agent, None)
            self._from_here.add(agent)
            self._waiting.appendleft(agent)
