"""What a path that is not there may stand for: a file of a similar name, or an address."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from sharding.common.text import similar as similar_words

MODELS = frozenset({".onnx", ".mindir"})
"""Suffixes that stand for one another: the content decides what a model is."""
_ADDRESS = r"([A-Za-z][A-Za-z0-9+.-]+):/+(?=[^/])"  # one letter is a drive of Windows
_MOST = 5000  # entries of a folder that are looked at
_SHOWN = 2
_ALIKE = 0.65  # of 1: difflib's measure


def is_address(text: str) -> bool:
    """Whether a text is an address such as https://HOST/FILE, and no path."""
    return re.match(_ADDRESS, text) is not None


def shown(path: str | Path) -> str:
    """The path as it was given: of https://HOST/FILE a `Path` keeps one of two slashes."""
    text = str(path)
    found = re.match(_ADDRESS, text)
    return f"{found[1]}://{text[found.end() :]}" if found else text


def hint(path: str | Path) -> str:
    """A hint to print behind the path of a file that is not there; "" where there is none to give."""
    if is_address(str(path)):
        return " (an address: nothing is downloaded here, so fetch the file first and give its path)"
    found = similar(path)
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def reason(path: str | Path, problem: BaseException) -> str:
    """Why a file cannot be read, with the `hint` where it is not there."""
    said = getattr(problem, "strerror", None) or str(problem)
    return said + (hint(path) if isinstance(problem, FileNotFoundError) else "")


def similar(path: str | Path) -> list[str]:
    """Paths that are there and whose one wrong part, file or folder, is named much as ``path`` has it."""
    parts = Path(path).parts
    if "\0" in str(path) or not parts:
        return []
    folder = Path()
    try:
        here: list[Path] = list(
            itertools.takewhile(Path.exists, itertools.accumulate(map(Path, parts), Path.joinpath))
        )
        folder = here[-1] if here else folder
        if len(here) == len(parts) or not folder.is_dir():
            return []
        name, *rest = parts[len(here) :]
        entries = _entries(folder, name, rest)
    except (OSError, ValueError):  # a folder that may not be read, a name that is too long
        return []
    return [str(folder.joinpath(other, *rest)) for other in _closest(name, entries)[:_SHOWN]]


def _entries(folder: Path, name: str, rest: Sequence[str]) -> list[str]:
    """What the folder has that may stand in the place of ``name``."""
    suffix = Path(name).suffix.lower()
    is_model = not suffix or bool(similar_words(suffix, MODELS, 1, 0.7))
    wanted = {suffix} | (MODELS if is_model else set())
    found = []
    with os.scandir(folder) as listed:
        for entry in itertools.islice(listed, _MOST):
            if entry.name.startswith(".") and not name.startswith("."):
                continue
            if entry.is_dir():
                fits = not rest or folder.joinpath(entry.name, *rest).exists()
            else:
                fits = not rest and Path(entry.name).suffix.lower() in wanted
            if fits:
                found.append(entry.name)
    return sorted(found)


def _closest(name: str, names: Iterable[str]) -> list[str]:
    """Those that continue the name or differ in few letters, the most similar first."""
    import difflib

    wanted = Path(name).stem.casefold()
    matcher = difflib.SequenceMatcher(None, b=wanted)  # which keeps what it finds out about b
    close = []
    for other in names:
        stem = Path(other).stem.casefold()
        matcher.set_seq1(stem)
        continues = stem.startswith(wanted)
        if continues or (matcher.quick_ratio() >= _ALIKE and matcher.ratio() >= _ALIKE):
            close.append((-matcher.ratio(), other))
    return [other for _, other in sorted(close)]
