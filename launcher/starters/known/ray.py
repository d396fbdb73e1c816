"""Actors of a Ray cluster, which finds room for them."""

from __future__ import annotations

from launcher.starters.base import Launcher, Starter


def _make() -> Launcher:
    from launcher.starters.ray import RayLauncher

    return RayLauncher()


STARTER = Starter(_make, takes=("ray_address", "gpus"), meaning="actors of a Ray cluster")
