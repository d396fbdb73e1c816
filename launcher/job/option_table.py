"""What is said of each option, beside the field of a class that has its value."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from launcher.job.values import Kind

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from launcher.job.values import Setting


@dataclass(frozen=True)
class Option:
    """What is said of an option besides its default."""

    kind: Kind
    group: str = ""
    help: str = ""
    metavar: str | None = None
    flag: str = ""
    """Default: the name with hyphens."""
    file: str = ""
    """It names a file that must be there: what it is."""
    slices: str = ""
    """The field of `sharding.demands.options.SliceOptions` that it sets; a switch turns its default round."""
    name: str = ""


def described(kind: Kind, *texts: str, default: Setting = None, **more: Setting) -> Setting:
    """A field of a class of options; ``texts`` and ``more`` are those of its `Option`."""
    metadata = {"option": Option(kind, *texts, **more)}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def table(options: type[DataclassInstance]) -> dict[str, Option]:
    """The options of a class by their names, which are those of its fields."""
    found = {}
    for item in fields(options):
        option: Option = item.metadata["option"]
        flag = option.flag or f"--{item.name.replace('_', '-')}"
        found[item.name] = replace(option, name=item.name, flag=flag)
    return found
