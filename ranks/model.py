"""`mindspore_lite.model`: a module of that name, for programs that import it by its own name."""

from __future__ import annotations

from ranks.lite.group import ModelGroup, ModelGroupFlag
from ranks.lite.model import Model
from ranks.lite.options.types import ModelType
from ranks.lite.runner import ModelParallelRunner, RunnerConfig

__all__ = ["Model", "ModelGroup", "ModelGroupFlag", "ModelParallelRunner", "ModelType", "RunnerConfig"]
