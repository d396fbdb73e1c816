"""What is asked of a model's precision."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ranks.common.targets import TARGETS

FLOAT16, FLOAT32 = "float16", "float32"
CPU_GPU_MODES = ("enforce_fp32", "preferred_fp16")
ASCEND_MODES = ("enforce_fp32", "preferred_fp32", "enforce_fp16", "enforce_origin", "preferred_optimal")
MODES = dict(zip(TARGETS, (CPU_GPU_MODES, CPU_GPU_MODES, ASCEND_MODES), strict=True))
"""Target -> its precision modes."""


def modes_in_words() -> str:
    """The modes, each list of them with its targets."""
    targets: dict[tuple[str, ...], list[str]] = {}
    for target, modes in MODES.items():
        targets.setdefault(modes, []).append(target)
    return "; ".join(
        f"{', '.join(modes[:-1])} or {modes[-1]} ({', '.join(names)})" for modes, names in targets.items()
    )


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
