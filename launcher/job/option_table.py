"""What is said of each option, beside the field of a class that has its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, TypeVar, overload

from launcher.errors import ConfigError
from launcher.job.values import Kind, Several

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Held = TypeVar("Held", bound=DataclassInstance)
Value = TypeVar("Value")


@dataclass(frozen=True)
class Option:
    """What is said of an option besides its default."""

    kind: Kind[object]
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

    def merged(self, before: object, given: object) -> object:
        """The value where a job file says ``before``, and flags what is ``given``. Raises `ConfigError`."""
        try:
            return self.kind.merged(before, given)
        except ConfigError as problem:
            if not isinstance(self.kind, Several):  # others say their flag
                raise
            raise ConfigError(f"{self.flag}: {problem}") from None


@overload
def described(kind: Kind[Value], *texts: str, file: str = "", slices: str = "") -> Value | None: ...
@overload
def described(kind: Kind[Value], *texts: str, default: Value, file: str = "", slices: str = "") -> Value: ...
@overload
def described(
    kind: Kind[Value], *texts: str, make: Callable[[], Value], file: str = "", slices: str = ""
) -> Value: ...
def described(
    kind: Kind[Value],
    *texts: str,
    default: Value | None = None,
    make: Callable[[], Value] | None = None,
    file: str = "",
    slices: str = "",
) -> Value | None:
    """A field of a class of options; the rest is that of its `Option`. Its default is ``default``, or what
    ``make`` makes."""
    metadata = {"option": replace(Option(kind, *texts), file=file, slices=slices)}
    if make is not None:
        return field(default_factory=make, metadata=metadata)
    return field(default=default, metadata=metadata)


def table(options: type[DataclassInstance]) -> dict[str, Option]:
    """The options of a class by their names, which are those of its fields."""
    found = {}
    for item in fields(options):
        option: Option = item.metadata["option"]
        flag = option.flag or f"--{item.name.replace('_', '-')}"
        found[item.name] = replace(option, name=item.name, flag=flag)
    return found


def changed(held: Held, values: Mapping[str, object]) -> Held:
    """The same with other values of some fields, each of the type that its field has: a `Kind` has read it,
    or the class checks what it is given."""
    anew: Callable[..., Held] = replace
    return anew(held, **values)
