"""`mindspore_lite.version`: a module of that name, for programs that ask it which version they have."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "2.3.0"
"""The version of mindspore_lite whose interface `ranks` follows, which scripts see as its `__version__`."""
