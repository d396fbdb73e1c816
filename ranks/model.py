"""`mindspore_lite.model`: a module of that name, for programs that import it by its own name."""

from __future__ import annotations

from ranks.api.group import ModelGroup, ModelGroupFlag
from ranks.api.model import Model
from ranks.api.runner import ModelParallelRunner, RunnerConfig
from ranks.api.types import ModelType

__all__ = ["Model", "ModelGroup", "ModelGroupFlag", "ModelParallelRunner", "ModelType", "RunnerConfig"]
