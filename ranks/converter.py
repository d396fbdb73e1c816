"""`mindspore_lite.converter`: a module of that name, for programs that import it by its own name."""

from __future__ import annotations

from ranks.api.converter import Converter
from ranks.api.types import FmkType

__all__ = ["Converter", "FmkType"]
