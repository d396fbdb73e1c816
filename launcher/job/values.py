"""What kinds of value an option may have: as the text of a flag, and as a job file says it."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from launcher.errors import ConfigError
from ranks.common.settings import SECONDS, parse_seconds
from sharding.common.bounds import LONGEST_TIMEOUT, MAX_LENGTH
from sharding.common.text import parse_size, parse_whole, shortened
from sharding.errors import SliceError

if TYPE_CHECKING:
    from sharding.slices.mesh import Mesh

MAX_TEXT = 4096
Value_co = TypeVar("Value_co", covariant=True)
"""The type of an option's values, which is that of its field."""
Word_co = TypeVar("Word_co", bound=str, covariant=True)
Name = TypeVar("Name")
Item = TypeVar("Item")


class Kind(Generic[Value_co]):
    """One kind of value; ``expected`` says in words what a job file may hold.

    ``choices``: the only texts that the flag takes; ``repeated``: the flag may be given several times.
    """

    choices: Sequence[str] | None = None
    repeated = False

    def __init__(self, expected: str) -> None:
        self._expected = expected

    @property
    def expected(self) -> str:
        return self._expected

    def parse(self, text: str) -> Value_co:
        """The value that a flag's text stands for. Raises `ConfigError`."""
        raise NotImplementedError

    def read(self, value: object, where: str, folder: Path) -> Value_co:
        """The value that a job file in ``folder`` gives at ``where``. Raises `ConfigError`."""
        return cast("Value_co", self._fitting(value, where))

    def _fitting(self, value: object, where: str) -> object:
        if not self.fits(value):
            raise _unfit(where, self.expected, value)
        return value

    def fits(self, value: object) -> bool:
        """Whether a value of a job file is of this kind: strictly, "2" is no number and 1 no truth value."""
        return is_text(value)

    def merged(self, before: object, given: object) -> Value_co:
        """The option's value where a job file says ``before``, and flags what is ``given``: what `parse` made
        of one, and the texts of all where it may be repeated."""
        return cast("Value_co", given)

    def arguments(self, flag: str, value: object) -> list[str]:
        """What a command line says to give this value, in whatever folder."""
        return [part for text in self._texts(value) for part in (flag, text)]

    def _texts(self, value: object) -> Iterable[str]:
        return [str(value)]


class Whole(Kind[int]):
    """A whole number from ``low`` to ``high``."""

    def __init__(self, low: int, high: int, expected: str = "") -> None:
        super().__init__(expected or f"a whole number from {low} to {high}")
        self.low, self.high = low, high

    def parse(self, text: str) -> int:
        value = parse_whole(text, self.low, self.high)
        if value is None:
            raise ConfigError(
                f"expected a whole number from {self.low} to {self.high}, found {shortened(text, 80)!r}"
            )
        return value

    def fits(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high


class Number(Kind[float]):
    """A number from ``low`` to ``high``; without ``low`` itself where it is ``above`` it."""

    def __init__(self, low: float, high: float, *, above: bool = False) -> None:
        super().__init__(
            f"a number {'above' if above else 'from'} {low:g} {'up ' if above else ''}to {high:g}"
        )
        self.low, self.high, self._above = low, high, above

    def parse(self, text: str) -> float:
        try:
            value = float(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            value = math.nan
        if not self.fits(value):
            raise ConfigError(f"expected {self.expected}, found {text[:40]!r}")
        return value

    def fits(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and not (self._above and value == self.low)


class Seconds(Number):
    """A number of seconds above zero."""

    def __init__(self) -> None:
        super().__init__(0, LONGEST_TIMEOUT, above=True)
        self._expected = SECONDS

    def parse(self, text: str) -> float:
        value = parse_seconds(text)
        if value is None:
            raise ConfigError(f"expected {SECONDS}, found {text!r}")
        return value

    def read(self, value: object, where: str, folder: Path) -> float:
        return float(super().read(value, where, folder))


class Several(Kind[tuple[Item, ...]]):
    """Values of the kind ``each``, of which a flag gives one."""

    repeated = True

    def __init__(self, each: Kind[Item], expected: str) -> None:
        super().__init__(expected)
        self._each = each

    def fits(self, value: object) -> bool:
        return isinstance(value, list | tuple) and all(map(self._each.fits, value))

    def read(self, value: object, where: str, folder: Path) -> tuple[Item, ...]:
        return tuple(super().read(value, where, folder))

    def merged(self, before: object, given: object) -> tuple[Item, ...]:
        return tuple(self._each.parse(text) for text in _texts_of(given))


class Text(Kind[str]):
    """Any text that is not empty."""

    def parse(self, text: str) -> str:
        if not self.fits(text):
            raise ConfigError(f"expected {self.expected}, found {text[:40]!r}")
        return text

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and 0 < len(value) <= MAX_TEXT


class Switch(Kind[bool]):
    """On where its flag is given."""

    def __init__(self) -> None:
        super().__init__("true or false")

    def arguments(self, flag: str, value: object) -> list[str]:
        return [flag] if value else []

    def fits(self, value: object) -> bool:
        return isinstance(value, bool)


class Choice(Kind[Word_co]):
    """One of a few texts."""

    def __init__(self, choices: Sequence[Word_co], expected: str = "") -> None:
        super().__init__(expected)
        self.choices: Sequence[Word_co] = choices

    @property
    def expected(self) -> str:
        # Said when it is asked for: other packages may bring choices.
        return self._expected or f"one of {', '.join(self.choices)}"

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and value in self.choices

    def read(self, value: object, where: str, folder: Path) -> Word_co:
        if isinstance(value, bool):  # YAML's true is one; as a choice it is a text like the others
            value = str(value).lower() if self.fits(str(value).lower()) else value
        return super().read(value, where, folder)


class LateChoice(Choice[str]):
    """A choice of which a job file may hold any text: what else it says tells which ones there are."""

    def fits(self, value: object) -> bool:
        return is_text(value)


class File(Kind[Path]):
    """A path; in a job file it is relative to the file's own folder."""

    def read(self, value: object, where: str, folder: Path) -> Path:
        return folder / str(self._fitting(value, where))

    def _texts(self, value: object) -> list[str]:
        return [absolute(str(value))]

    parse = staticmethod(Path)


class Written(Kind[Value_co]):
    """What a function reads from a text; a job file may say it by a ``number`` too."""

    def __init__(self, parse: Callable[[str], Value_co], expected: str, number: Whole | None = None) -> None:
        super().__init__(expected)
        self._parse, self._number = parse, number

    def parse(self, text: str) -> Value_co:
        return self._parse(text)

    def read(self, value: object, where: str, folder: Path) -> Value_co:
        if self._number is None or not self._number.fits(value):
            self._fitting(value, where)
        try:
            return self.parse(str(value))
        except ConfigError as problem:
            raise ConfigError(f"{where}: {problem}") from None


class Words(Written[tuple[str, ...]]):
    """Arguments of another program, as one text, which may begin with a hyphen."""


class Pairs(Kind[dict[Name, Item]]):
    """A mapping of names to values of the kind ``each``, of which a flag gives one; flags win name by name.

    ``parse_all`` reads the texts of all flags; ``names``: the kind of the names, where they are no texts.
    """

    repeated = True

    def __init__(
        self,
        parse_all: Callable[[Iterable[str]], Mapping[Name, Item]],
        each: Kind[Item],
        expected: str,
        names: Kind[Name] | None = None,
    ) -> None:
        super().__init__(expected)
        self._parse_all, self._each, self._names = parse_all, each, names

    def read(self, value: object, where: str, folder: Path) -> dict[Name, Item]:
        if not isinstance(value, dict):
            raise _unfit(where, self.expected, value)
        if self._names is None:
            return cast("dict[Name, Item]", _read_mapping(value, where, folder, self._each))
        found: dict[Name, Item] = {}
        for name, item in value.items():
            key = self._named(name, self._names, where)
            if key in found:
                raise ConfigError(f"{where}: the name {key} is given twice")
            found[key] = self._each.read(item, f"{where}.{name}", folder)
        return found

    def _named(self, name: object, names: Kind[Name], where: str) -> Name:
        """A name: documents write each as a text."""
        if is_text(name):
            with contextlib.suppress(ConfigError):
                return names.parse(str(name))
        raise _unfit(where, f"{names.expected} as each name", name)

    def fits(self, value: object) -> bool:
        return isinstance(value, Mapping) and all(map(self._each.fits, value.values()))

    def merged(self, before: object, given: object) -> dict[Name, Item]:
        return {**cast("Mapping[Name, Item]", before), **self._parse_all(_texts_of(given))}

    def _texts(self, value: object) -> list[str]:
        return [f"{name}={item}" for name, item in cast("Mapping[Name, Item]", value).items()]


class Files(Kind[tuple[str, ...]]):
    """Texts as of ``--input``: ``FILE`` or ``NAME=FILE``; a job file may give a mapping instead."""

    repeated = True
    _each = File("the path of a file")

    def read(self, value: object, where: str, folder: Path) -> tuple[str, ...]:
        if isinstance(value, dict):
            files = _read_mapping(value, where, folder, self._each)
            return tuple(f"{name}={file}" for name, file in files.items())
        if not isinstance(value, list):
            raise _unfit(where, self.expected, value)
        texts = []
        for index, text in enumerate(value):
            whole = self._each.read(text, f"{where}[{index}]", folder)
            name, equals, file = text.rpartition("=")
            # A whole path may hold an equals sign too.
            texts.append(str(whole) if not equals or whole.exists() else f"{name}={folder / file}")
        return tuple(texts)

    def merged(self, before: object, given: object) -> tuple[str, ...]:
        return tuple(_texts_of(given))

    def _texts(self, value: object) -> list[str]:
        found = []
        for text in _texts_of(value):
            name, equals, file = text.rpartition("=")
            whole = not equals or Path(text).exists()
            found.append(absolute(text) if whole else f"{name}={absolute(file)}")
        return found


def absolute(path: str | Path) -> str:
    """The path from the root; links stay as they are."""
    return os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps "..", and resolve follows links


def is_text(value: object) -> bool:
    """Whether a value of a job file is a text that can be a name or a path."""
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT and "\0" not in value


def _texts_of(given: object) -> Iterable[str]:
    """The texts of a flag that may be given several times."""
    return cast("Iterable[str]", given)


def _read_mapping(value: Mapping[str, object], where: str, folder: Path, each: Kind[Item]) -> dict[str, Item]:
    for name in value:
        if not is_text(name):
            raise _unfit(where, f"names of 1 to {MAX_TEXT} characters as keys", name)
    return {name: each.read(item, f"{where}.{name}", folder) for name, item in value.items()}


def _unfit(where: str, expected: str, value: object) -> ConfigError:
    from launcher.common.documents import quote

    return ConfigError(f"{where}: expected {expected}, found {quote(value)}")


def parse_bytes(text: str) -> int:
    """A number of bytes from text such as ``24GB`` or ``512 MiB``; raises `ConfigError`."""
    size = parse_size(text)
    if size is None:
        raise ConfigError(f"expected bytes such as 24GB or 512MiB, above 0, found {text[:40]!r}")
    return size


def parse_mesh_text(text: str) -> Mesh:
    """A mesh from text such as ``data=2,tensor=4``; raises `ConfigError`."""
    from sharding.slices.mesh import parse_mesh

    try:
        return parse_mesh(text)
    except SliceError as error:
        raise ConfigError(str(error)) from None


def parse_dims(texts: Iterable[str]) -> dict[str, int]:
    """Lengths of symbolic dimensions from ``NAME=SIZE`` texts; raises `ConfigError`."""
    dims: dict[str, int] = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        length = parse_whole(size, 0, MAX_LENGTH)
        if not (equals and name) or length is None:
            raise ConfigError(f"--dim {text}: expected NAME=SIZE with a size from 0 to {MAX_LENGTH}")
        if name in dims:
            raise ConfigError(f"--dim {text}: {name!r} is given twice")
        dims[name] = length
    return dims


def parse_state(texts: Iterable[str]) -> dict[str, str]:
    """Outputs by the input that each is the next value of, from ``INPUT=OUTPUT`` texts; raises
    `ConfigError`."""
    pairs: dict[str, str] = {}
    for text in texts:
        taken, equals, made = text.partition("=")
        if not (equals and taken and made):
            raise ConfigError(f"--state {text}: expected INPUT=OUTPUT, the names of an input and an output")
        if pairs.setdefault(taken, made) != made:
            raise ConfigError(f"--state {text}: {taken!r} is given twice, with two outputs")
    return pairs
