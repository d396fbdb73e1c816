"""The options of `Model.build_from_file` that share weights between processes.

The keys are those of mindspore_lite: ``shareable_weight_pid_list`` makes the model the owner of its weights,
``shareable_weight_mem_handle`` attaches it to an owner's. They stand in the section of any device, or alone
in a dictionary as ``pids`` and ``shared_mem_handle``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ranks.errors import WeightsError
from ranks.lite.options.check import identifier, integers
from ranks.lite.options.errors import as_runtime_error, runtime_error
from ranks.lite.options.texts import SECTIONS, parse_handle, parse_pids, unquoted
from ranks.weights.shared.request import Attach, Share

PIDS, HANDLE = "shareable_weight_pid_list", "shareable_weight_mem_handle"
SHORT = {"pids": PIDS, "shared_mem_handle": HANDLE}
KEYS = {**{key: key for key in (PIDS, HANDLE)}, **SHORT}

Given = list[tuple[str, str, str]]
"""The key, its value, and where it stands, of each that is given."""


def take_short(config_dict: Mapping[str, object]) -> tuple[dict[str, object], Given]:
    """A ``config_dict`` without the short forms, and those. Raises `TypeError` for values of other types."""
    given: Given = []
    rest = {}
    for key, value in config_dict.items():
        if key not in SHORT or isinstance(value, dict):
            rest[key] = value
        else:
            given.append((SHORT[key], unquoted(_text(key, value)), f"config_dict[{key!r}]"))
    return rest, given


def _text(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if key == "pids" and isinstance(value, (list, tuple)):
        return ",".join(map(str, integers("config_dict['pids']", value, truths=False)))
    try:
        return str(identifier(key, value))
    except TypeError:
        raise TypeError(f"config_dict[{key!r}] must be str, but got {type(value)}.") from None


def in_sections(sections: Mapping[str, Mapping[str, str]], where: str) -> Given:
    """The keys in the sections of a configuration, whose keys are in lower case."""
    return [
        (KEYS[key], value, f"[{section}] {key} in {where}")
        for section in SECTIONS
        for key, value in sections.get(section, {}).items()
        if key in KEYS
    ]


def choose(given: Given) -> Share | Attach | None:
    """What the options ask for.

    Raises a `RuntimeError` (that is a `WeightsError` too) where they are malformed or contradict each other.
    """
    try:
        pids = {parse_pids(text, where): where for key, text, where in given if key == PIDS}
        handles = {parse_handle(text, where): where for key, text, where in given if key == HANDLE}
    except WeightsError as error:
        raise as_runtime_error("load configuration failed!", error) from None
    places = [*pids.values(), *handles.values()]
    if len(places) > 1:
        both = " and ".join(places[:2])
        reason = (
            "a model either shares its weights or attaches to another's"
            if pids and handles
            else "they say different things: give one"
        )
        raise runtime_error(
            f"load configuration failed! Error is both {both} are given, but {reason}.", WeightsError
        )
    if pids:
        ((listed, where),) = pids.items()
        return Share(listed, where)
    return Attach(next(iter(handles))) if handles else None
