"""Rank models named by a pattern: ``rank_{}_model.onnx`` as ONNX Runtime's own tools name them, or
``rank_{}/model.mindir`` as MindSpore exports them.

A pattern is a path with a field, ``{}``, ``{r}`` or ``{rank}``, in place of the rank's number, in the file's
name, a folder's, or both. Braces in the name of a folder that is there are part of its name.
"""

from __future__ import annotations

import re
from pathlib import Path

from ranks.errors import ModelError, ShardError

_FIELD = re.compile(r"\{(?:r|rank)?\}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}", re.ASCII)
_LISTED = 8  # files that an error names


def is_pattern(path: str | Path) -> bool:
    """Whether a path stands for one file per rank: it has a field, and no file has exactly this name."""
    text = str(path)
    if "{" not in text or _FIELD.search(text) is None:
        return False
    path = Path(path)
    return bool(_fields(path)[1]) and not path.exists()


def expand(pattern: str | Path, rank: int) -> Path:
    """The file that a pattern names for one rank, whether it is there or not. Raises `ModelError` where the
    pattern has no field, or two in one name."""
    folder, names = _parts(Path(pattern))
    return folder.joinpath(*(str(rank).join(name) for name in names))


def files(pattern: str | Path) -> dict[int, Path]:
    """The files that are there, by rank in ascending order; numbers are written without leading zeros.

    Raises `ModelError` for a path that is no pattern, and for a folder that cannot be read.
    """
    path = Path(pattern)
    folder, names = _parts(path)
    before, after = names[0]
    try:
        there = [item.name for item in folder.iterdir()]
    except OSError as error:
        raise ModelError(f"The folder {folder} of {path} cannot be read: {error.strerror}.") from None
    found = {}
    for name in there:
        number = name[len(before) : len(name) - len(after)]
        fits = len(name) > len(before) + len(after) and name.startswith(before) and name.endswith(after)
        if fits and _NUMBER.fullmatch(number):
            file = folder.joinpath(*(number.join(name) for name in names))
            if len(names) == 1 or file.exists():  # a folder may hold something else
                found[int(number)] = file
    return dict(sorted(found.items()))


def resolve(pattern: str | Path, rank: int, world_size: int) -> Path:
    """The file that this rank runs, once there is exactly one for each rank of the job.

    Raises `ModelError` where no file fits the pattern, `ShardError` where their ranks are not those of the
    job.
    """
    found = files(pattern)
    if not found:
        raise ModelError(f"No file fits {pattern}: expected one for each rank, as {expand(pattern, 0)}.")
    if list(found) != list(range(world_size)):
        folder = _fields(Path(pattern))[0]
        names = ", ".join(str(path.relative_to(folder)) for path in list(found.values())[:_LISTED])
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        missing = next((number for number in range(world_size) if number not in found), None)
        why = f"rank {missing} has none" if missing is not None else f"start {len(found)} ranks"
        raise ShardError(
            f"This job has {world_size} rank{'s' if world_size != 1 else ''}, but the files that fit "
            f"{pattern} are {names}{more}: {why}."
        )
    return found[rank]


def like(path: str | Path) -> Path | None:
    """The pattern that a rank's own file fits together with those of other ranks; None where there is none.

    The last number in its path that can be the rank's counts.
    """
    path = Path(path)
    text = str(path)
    for number in reversed(list(re.finditer(r"[0-9]+", text, re.ASCII))):
        pattern = Path(f"{text[: number.start()]}{{}}{text[number.end() :]}")
        try:
            found = files(pattern)
        except ModelError:
            continue
        if len(found) > 1 and list(found) == list(range(len(found))) and path in found.values():
            return pattern
    return None


def _fields(path: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder before the first part with a field, and the parts from there on; none where there is no
    field. Folders that are there have no fields, whatever their names."""
    folder = Path()
    for place, part in enumerate(path.parts):
        if _FIELD.search(part) and (place + 1 == len(path.parts) or not (folder / part).is_dir()):
            return folder, path.parts[place:]
        folder /= part
    return path, ()


def _parts(path: Path) -> tuple[Path, list[tuple[str, ...]]]:
    """The folder before the first field, and each part from there on as the texts before and after its
    field."""
    folder, names = _fields(path)
    parts = [tuple(_FIELD.split(name)) for name in names]
    most = max(map(len, parts), default=1) - 1
    if most != 1:
        raise ModelError(
            f"The pattern {path} must have one field {{}}, {{r}} or {{rank}} in the name of the file or of a "
            f"folder, where the rank's number stands; it has {most}."
        )
    return folder, parts
