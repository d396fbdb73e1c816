"""Precision that a context and a configuration ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ranks.common.notice import warn_once
from ranks.common.targets import MODES
from ranks.devices.providers import TENSORRT
from ranks.errors import ShardrunError
from ranks.precision.modes import CANN_MODES, NO_PLAN_WITH_TENSORRT
from ranks.precision.request import Asked
from ranks.run import placement
from sharding.common.text import shortened

if TYPE_CHECKING:
    from ranks.lite.options.context import Context
    from ranks.precision.request import Precision

KEY = "precision_mode"
PLAN = "execution_plan"
Modes = tuple[tuple[str, str], ...]
"""(target, mode) as a configuration gives them."""
Plan = tuple[tuple[str, str], ...]
"""(name of a node or type of operators, type), as of `Asked`."""

_ALLOWED = {
    **MODES,
    "ascend": (*MODES["ascend"], *CANN_MODES.values()),
}
_TYPE = re.compile(r"data_?type\s*:\s*(float16|float32)", re.IGNORECASE)


def modes(sections: Mapping[str, Mapping[str, str]]) -> Modes:
    """``precision_mode`` of each ``[cpu_context]``, ``[gpu_context]``, ``[ascend_context]`` that has one.

    Raises `ShardrunError` for a mode that the target does not have.
    """
    found = []
    for target, allowed in _ALLOWED.items():
        mode = sections.get(f"{target}_context", {}).get(KEY)
        if mode is None:
            continue
        mode = mode.strip()
        if mode not in allowed:
            raise ShardrunError(
                f"[{target}_context] {KEY} must be one of {', '.join(allowed)}, but is {mode[:80]!r}"
            )
        found.append((target, mode))
    return tuple(found)


def plan(sections: Mapping[str, Mapping[str, str]], where: str) -> Plan:
    """``[execution_plan]``: name of a node or type of operators, and "float16" or "float32".

    Raises `ShardrunError` for an entry of another form.
    """
    found = []
    for key, value in sections.get(PLAN, {}).items():
        match = _TYPE.fullmatch(value.strip())
        if not match:
            raise ShardrunError(
                f"{where}, [{PLAN}] {shortened(key)} must be data_type:float16 or data_type:float32, "
                f"but is {value[:80]!r}"
            )
        # Names in square brackets are how mindspore_lite's documentation writes "a name of yours".
        found.append((key.strip().removeprefix("[").removesuffix("]"), match[1].lower()))
    return tuple(found)


def warn_of_others(target: str, given: Modes) -> None:
    """Warns, once each, of a configuration's modes for other targets than the chosen one.

    No error, for one file may serve several platforms, and mindspore_lite reads the target's section only.
    """
    for other, mode in given:
        if other != target:
            warn_once(
                f"precision:{other}:{mode}:{target}",
                f"[{other}_context] {KEY}={mode} has no effect, because the target is {target!r}.",
            )


def chosen(context: Context, target: str, given: Modes = ()) -> str:
    """The mode for the target that was chosen, by the configuration or else in the script; "" for none."""
    if (mode := dict(given).get(target)) is not None:
        return mode
    if target == "ascend":
        return context.ascend.precision_mode or context.ascend.legacy_precision_mode
    return context.gpu.precision_chosen if target == "gpu" else context.cpu.precision_chosen


def asked(context: Context, target: str, given: Modes, entries: Plan) -> Asked:
    """What a context and a configuration ask for on the target that was chosen."""
    return Asked(chosen(context, target, given), entries)


def left(target: str, placed: placement.Placement, asked: Asked) -> Precision | None:
    """`placement.precision` with what a script can do about a plan."""
    if asked.plan and placed.providers[0] == TENSORRT:
        raise ShardrunError(
            f'{NO_PLAN_WITH_TENSORRT}: set context.gpu.provider to "" (CUDA), or leave the plan out.'
        )
    return placement.precision(target, placed, asked)
