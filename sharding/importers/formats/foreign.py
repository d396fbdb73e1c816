"""Models of other runtimes, each of which has its sentence (`sharding.importers.foreign`)."""

from __future__ import annotations

from sharding.importers.foreign import import_model, kind_of
from sharding.importers.format import ModelFormat

FORMAT = ModelFormat(lambda path, head: kind_of(path, head) is not None, import_model, last=True)
