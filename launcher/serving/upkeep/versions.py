"""Other versions of a model: files that lie where the server was told."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from launcher.errors import ConfigError
from launcher.serving.models import Model
from launcher.serving.refusals import RefusalError
from launcher.serving.tensor_model import TensorModel
from launcher.serving.text_model import TextModel
from ranks.common.tensors import TensorSpec

FIRST = "1"
PLACE = "{}"
"""Stands for the number of a version in the path of its file or folder."""
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class Versions:
    """Where the versions of a model lie. ``make``: the model of a path and a version."""

    name: str
    pattern: Path
    make: Callable[[Path, str], Model]

    def __call__(self, version: str) -> Model:
        """A version, which is not loaded yet. Raises `RefusalError` for one that is not there."""
        if _NUMBER.fullmatch(version) is None:
            raise RefusalError(
                HTTPStatus.BAD_REQUEST,
                f"version: expected a number from 1 to 999999999, found {version[:40]!r}",
            )
        path = Path(str(self.pattern).replace(PLACE, version))
        if not path.exists():
            raise RefusalError(
                HTTPStatus.NOT_FOUND, f"there is no version {version} of the model {self.name!r}"
            )
        return self.make(path, version)


def check_pattern(pattern: Path) -> None:
    """Raises `ConfigError` for a path that leaves no place for a number."""
    if str(pattern).count(PLACE) != 1:
        raise ConfigError(
            f"--versions {pattern}: expected a path with {PLACE} once, where the number of a version stands"
        )


def version_of(path: Path, pattern: Path | None) -> str:
    """The version that a path is by the pattern of all; else the first."""
    if pattern is None:
        return FIRST
    before, _, after = (re.escape(part) for part in str(pattern.absolute()).partition(PLACE))
    found = re.fullmatch(f"{before}({_NUMBER.pattern}){after}", str(path.absolute()))
    return found[1] if found else FIRST


def check_alike(found: Model, before: Model) -> None:
    """Raises `RefusalError` unless clients of a version may ask another one in the same way."""
    if isinstance(found, TextModel) and isinstance(before, TextModel):
        return
    if not (isinstance(found, TensorModel) and isinstance(before, TensorModel)):
        raise _unlike(found, "one generates texts, the other does not")
    if before.encoder is not None and found.encoder is None:
        raise _unlike(found, "it has no tokenizer beside it, by which that one has embeddings of texts")
    new, old = found.ready, before.ready
    for what, ours, theirs in (
        ("input", [*new.inputs, *new.optional_inputs], [*old.inputs, *old.optional_inputs]),
        ("output", new.outputs, old.outputs),
    ):
        mine = {spec.name: _kind(spec) for spec in ours}
        for spec in theirs:
            if mine.pop(spec.name, None) != _kind(spec):
                raise _unlike(found, f"it has no {what} {spec.name!r} that is {spec}")
    if more := sorted({spec.name for spec in new.inputs} - {spec.name for spec in old.inputs}):
        raise _unlike(found, f"it needs the input {more[0]!r} besides")


def _kind(spec: TensorSpec) -> object:
    return spec.dtype, spec.open_rank, tuple(axis if isinstance(axis, int) else None for axis in spec.shape)


def _unlike(found: Model, why: str) -> RefusalError:
    return RefusalError(
        HTTPStatus.CONFLICT,
        f"version {found.version} of the model {found.name!r} is not asked in the same way: {why}; serve it "
        "under another name",
    )
