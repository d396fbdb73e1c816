"""The options of `Model.build_from_file` that name variable weights.

The keys are those of mindspore_lite: ``variable_weights_list`` (names, comma-separated) and
``variable_weights_file`` (a text file with one name a line). They stand in the section of any device; where
both are given, the names of both count.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ranks.errors import WeightsError
from ranks.lite.options.content import exists
from ranks.lite.options.errors import as_runtime_error
from ranks.lite.options.texts import SECTIONS, unquoted

LIST, FILE = "variable_weights_list", "variable_weights_file"
KEYS = (LIST, FILE)
LARGEST_FILE = 64 << 20
"""Bytes; a million names of 64 letters."""

Sections = Mapping[str, Mapping[str, str]]


def named(sections: Sections, from_dict: Sections, config_path: str) -> tuple[str, ...]:
    """The names that these sections (of the configuration file, and over it those of ``config_dict``) give.

    A file is looked for in the current folder, or beside the configuration file that names it. Raises a
    `RuntimeError` (that is a `WeightsError` too) where it cannot be read, or an option names nothing.
    """
    names: list[str] = []
    try:
        for section in SECTIONS:
            own = from_dict.get(section, {})
            entries = {**sections.get(section, {}), **own}
            if LIST in entries:
                names += _some(_inner(entries[LIST]).split(","), f"[{section}] {LIST}")
            if FILE in entries:
                text = entries[FILE].strip()
                path = text if FILE in own else beside(text, config_path)
                names += _some(_lines(path, f"[{section}] {FILE}"), f"[{section}] {FILE} {path!r}")
    except WeightsError as error:
        raise as_runtime_error("load configuration failed!", error) from None
    return tuple(dict.fromkeys(names))


def beside(path: str, config_path: str) -> str:
    """``path`` as it stands or, where that is no file, beside the configuration file that names it."""
    if not path or not config_path or "\0" in path or exists(path):
        return path
    found = Path(config_path).parent / path
    return str(found) if exists(str(found)) else path


def _inner(text: str) -> str:
    """A list of quoted names without brackets around it; names without quotes may begin and end with one."""
    text = text.strip()
    bracketed = text.startswith("[") and text.endswith("]")
    return text[1:-1] if bracketed and text[1:-1].strip()[:1] in {"'", '"'} else text


def _some(items: list[str], what: str) -> list[str]:
    found = [name for item in items if (name := unquoted(item))]
    if not found:
        raise WeightsError(f"{what} names no weight.")
    return found


def _lines(path: str, what: str) -> list[str]:
    what = f"{what} {path[:400]!r}"
    try:
        if "\0" in path or not Path(path).is_file():  # to read a pipe would wait for who writes to it
            raise WeightsError(f"{what} is no file: it must be a text file with one weight name a line.")
        size = Path(path).stat().st_size
        if size > LARGEST_FILE:
            raise WeightsError(f"{what} has {size} bytes; a list of names has at most {LARGEST_FILE}.")
        return Path(path).read_text("utf-8-sig").split("\n")
    except OSError as error:
        raise WeightsError(f"{what} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise WeightsError(f"{what} is not a text file: byte {error.start} is not UTF-8.") from None
