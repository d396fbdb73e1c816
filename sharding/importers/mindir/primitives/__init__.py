"""The primitives of MindSpore that have a conversion, by families."""

from __future__ import annotations

import importlib

FAMILIES = ("structure",)
"""Modules of this package; each registers what it converts."""


def load() -> None:
    """Imports the families, which fills `base.PRIMITIVES`."""
    for family in FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
