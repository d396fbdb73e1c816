"""Processes of this machine."""

from __future__ import annotations

from launcher.starters.base import Launcher, Starter


def _make() -> Launcher:
    from launcher.starters.local import LocalLauncher

    return LocalLauncher()


STARTER = Starter(_make, order=1, spans_hosts=False, meaning="processes of this machine")
