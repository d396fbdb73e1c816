"""Rank models named by a pattern, as ONNX Runtime's own tools name them: ``rank_{}_model.onnx``.

A pattern is a path whose file name holds one field, ``{}``, ``{r}`` or ``{rank}``, in place of the rank's
number.
"""

from __future__ import annotations

import re
from pathlib import Path

from ranks.errors import ModelError, ShardError

_FIELD = re.compile(r"\{(?:r|rank)?\}")
_LISTED = 8  # files that an error names


def is_pattern(path: str | Path) -> bool:
    """Whether a path stands for one file per rank: its name has a field, and is that of no file."""
    path = Path(path)
    return _FIELD.search(path.name) is not None and not path.exists()


def expand(pattern: str | Path, rank: int) -> Path:
    """The file that a pattern names for one rank, whether it is there or not. Raises `ModelError` where the
    pattern does not have exactly one field."""
    before, after = _parts(Path(pattern))
    return Path(pattern).with_name(f"{before}{rank}{after}")


def files(pattern: str | Path) -> dict[int, Path]:
    """The files that are there, by rank in ascending order; numbers are written without leading zeros.

    Raises `ModelError` for a pattern without exactly one field, and for a folder that cannot be read.
    """
    path = Path(pattern)
    before, after = _parts(path)
    try:
        names = [item.name for item in path.parent.iterdir()]
    except OSError as error:
        raise ModelError(f"The folder {path.parent} of {path} cannot be read: {error.strerror}.") from None
    found = {}
    for name in names:
        number = name[len(before) : len(name) - len(after)]
        fits = len(name) > len(before) + len(after) and name.startswith(before) and name.endswith(after)
        if fits and re.fullmatch("0|[1-9][0-9]{0,5}", number, re.ASCII):
            found[int(number)] = path.with_name(name)
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
        names = ", ".join(path.name for path in list(found.values())[:_LISTED])
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        missing = next((number for number in range(world_size) if number not in found), None)
        why = f"rank {missing} has none" if missing is not None else f"start {len(found)} ranks"
        raise ShardError(
            f"This job has {world_size} rank{'s' if world_size != 1 else ''}, but the files that fit "
            f"{pattern} are {names}{more}: {why}."
        )
    return found[rank]


def _parts(path: Path) -> tuple[str, str]:
    """The file name before and after its field."""
    parts = _FIELD.split(path.name)
    if len(parts) != 2:
        raise ModelError(
            f"The pattern {path} must have one field {{}}, {{r}} or {{rank}} in its file name, where the "
            f"rank's number stands; it has {len(parts) - 1}."
        )
    return parts[0], parts[1]
