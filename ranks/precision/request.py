"""What is asked of a model's precision."""

from __future__ import annotations

import json
from dataclasses import dataclass

FLOAT16, FLOAT32 = "float16", "float32"


@dataclass(frozen=True)
class Asked:
    """What a user asks for: one of the target's `MODES`, "" for none; an execution plan as of `Precision`."""

    mode: str = ""
    plan: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.mode or self.plan)

    def to_text(self) -> str:
        """For the command line of a rank."""
        return json.dumps([self.mode, self.plan])

    @classmethod
    def from_text(cls, text: str) -> Asked:
        """What `to_text` gave."""
        mode, plan = json.loads(text)
        return cls(mode, tuple((name, kind) for name, kind in plan))


@dataclass(frozen=True)
class Precision:
    """``mode``: the type that nodes compute in, where they can, "" for the model's own; ``plan``: (name of a
    node or type of operators, type) for some of them, which wins over the mode.

    ``rounded``: float16 means that a node's factors and results are rounded to it and computed with in
    float32, as on the CPU. (There ONNX Runtime has no float16 kernels of most operators: it computes in
    float32 anyway, and leaves out the rounding that a float16 node would have had.)
    """

    mode: str = ""
    plan: tuple[tuple[str, str], ...] = ()
    rounded: bool = False

    def __bool__(self) -> bool:
        return bool(self.mode or self.plan)
