"""`mindspore_lite.converter`: a module of that name, for programs that import it by its own name."""

from __future__ import annotations

from ranks.lite.converter import Converter
from ranks.lite.options.types import FmkType

__all__ = ["Converter", "FmkType"]
