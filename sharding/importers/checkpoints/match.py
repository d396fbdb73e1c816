"""Which weight of a checkpoint is which of a network, and what does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sharding.common.arrays import DType
from sharding.common.text import counted, one_line, shortened
from sharding.errors import ModelError, OptionError
from sharding.importers.checkpoints.base import Checkpoint, Entry
from sharding.importers.checkpoints.rename import MAPS, Rule, rename_all

NOT_NEEDED = "num_batches_tracked"
"""A counter of torch's batch normalization, which inference does not read and others do not have."""
_SHOWN = 10


@dataclass(frozen=True)
class Target:
    """A weight that a network wants. Those of one ``tied`` group are one tensor under several names;
    what is not ``needed`` may be left as it is."""

    dtype: DType
    shape: tuple[int, ...]
    tied: object = None
    needed: bool = True


@dataclass
class Match:
    """``found``: the target's name -> the weight that it gets. The rest is by the names of the two sides."""

    found: dict[str, Entry] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshaped: list[str] = field(default_factory=list)
    converted: list[str] = field(default_factory=list)
    hint: str = ""

    def lines(self) -> list[str]:
        """The report, a line per kind of difference, the weights by name."""
        kinds = (
            ("missing in the checkpoint", self.missing),
            ("unexpected in the checkpoint", self.unexpected),
            ("of another shape or type", self.misshaped),
            ("converted to another type", self.converted),
        )
        return [f"{counted(len(names), 'weight')} {kind}: {_listed(names)}" for kind, names in kinds if names]

    def check(
        self, checkpoint: Checkpoint, *, allow_missing: bool = False, allow_unexpected: bool = False
    ) -> None:
        """Raises `ModelError` with the whole report unless everything fits, but for what is allowed."""
        wrong, flags = [], []
        if self.misshaped:
            wrong.append(f"{len(self.misshaped)} of another shape or type: {_listed(self.misshaped)}")
        if self.missing and not allow_missing:
            wrong.append(f"{len(self.missing)} missing: {_listed(self.missing)}")
            flags.append("--allow-missing")
        if self.unexpected and not allow_unexpected:
            wrong.append(f"{len(self.unexpected)} unexpected: {_listed(self.unexpected)}")
            flags.append("--allow-unexpected")
        if wrong:
            advice = self.hint or "give other names with --rename PATTERN=REPLACEMENT"
            allowed = f", or go on with {' '.join(flags)}" if flags and not self.misshaped else ""
            help_ = f" ({advice}{allowed})" if flags else ""  # names do not change shapes
            raise ModelError(f"{checkpoint.path} does not fit the network: {'; '.join(wrong)}{help_}.")
        if not self.found:
            raise ModelError(f"{checkpoint.path} has no weight of the network: no name is the same.")


def match(checkpoint: Checkpoint, targets: Mapping[str, Target], rules: Sequence[Rule] = ()) -> Match:
    """Finds each target's weight by name, once ``rules`` have renamed the checkpoint's.

    With the map ``mindspore`` names are the same on both sides if the map makes them the same, so that it
    works onto MindSpore's names too, and axes of length 1 do not count. Raises `OptionError` where two
    weights get one name.
    """
    loose = set(MAPS["mindspore"]) <= set(rules)
    wanted = _wanted(targets, loose)
    result = Match()
    for new, old in rename_all(checkpoint.entries, rules).items():
        name = new if new in targets else wanted.get(new)
        entry = checkpoint.entries[old]
        if name is None:
            if not new.endswith(NOT_NEEDED):
                result.unexpected.append(old if old == new else f"{old} (as {new})")
            continue
        target = targets[name]
        difference = _difference(entry, target, loose)
        if difference and name.endswith(NOT_NEEDED):
            continue  # converted to float16 with the rest of the checkpoint, say: nothing reads it
        if difference:
            result.misshaped.append(f"{name} {difference}")
            continue
        if entry.dtype != target.dtype:
            result.converted.append(f"{name} from {entry.dtype} to {target.dtype}")
        result.found[name] = Entry(name, entry.dtype, target.shape, entry.parts)
    _check_tied(checkpoint, targets, result)
    result.missing = _missing(targets, result)
    if result.missing or result.unexpected:
        result.hint = _hint(checkpoint, targets, rules, result)
    return result


def _wanted(targets: Mapping[str, Target], loose: bool) -> dict[str, str]:
    """Names as the built-in map has them -> the targets' own."""
    if not loose:
        return {}
    try:
        return rename_all(targets, MAPS["mindspore"])
    except OptionError:
        return {}  # a network that has both names


def _difference(entry: Entry, target: Target, loose: bool) -> str:
    have, want = entry.shape, target.shape
    if loose:
        have, want = (tuple(n for n in shape if n != 1) for shape in (have, want))
    if have != want:
        return f"(expected {list(target.shape)}, found {list(entry.shape)})"
    if entry.dtype != target.dtype and not (_is_float(entry.dtype) and _is_float(target.dtype)):
        return f"(expected {target.dtype}, found {entry.dtype})"
    return ""


def _is_float(dtype: DType) -> bool:
    return dtype.kind == "f" or "float" in dtype.name


def _check_tied(checkpoint: Checkpoint, targets: Mapping[str, Target], result: Match) -> None:
    """Raises `ModelError` where one tensor of the network would get different values."""
    first: dict[object, str] = {}
    for name, entry in result.found.items():
        tied = targets[name].tied
        other = name if tied is None else first.setdefault(tied, name)
        if other != name and not _same(entry, result.found[other]):
            raise ModelError(
                f"{checkpoint.path} has different values for {_listed([other])} and {_listed([name])}, which "
                "are one tensor in the network: give the one that is not meant another name with --rename, "
                "and --allow-unexpected."
            )


def _same(one: Entry, other: Entry) -> bool:
    return one.dtype == other.dtype and np.array_equal(
        one.array().reshape(-1).view(np.uint8), other.array().reshape(-1).view(np.uint8)
    )


def _missing(targets: Mapping[str, Target], result: Match) -> list[str]:
    tied = {targets[name].tied for name in result.found} - {None}
    wrong = {line.partition(" ")[0] for line in result.misshaped}
    return [
        name
        for name, target in targets.items()
        if target.needed
        and name not in result.found
        and name not in wrong
        and target.tied not in tied
        and not name.endswith(NOT_NEEDED)
    ]


def _hint(checkpoint: Checkpoint, targets: Mapping[str, Target], rules: Sequence[Rule], now: Match) -> str:
    """The option under which more names would fit, if there is one."""
    best, most = "", len(now.found)
    options: list[tuple[str, Sequence[Rule]]] = [(name, (*rules, *MAPS[name])) for name in MAPS]
    names = list(rename_all(checkpoint.entries, rules))
    for text, prefix, new in _prefixes(names, targets):
        options.append((text, (*rules, Rule(re.compile(f"^{re.escape(prefix)}"), new))))
    for text, candidate in options:
        loose = text == "mindspore"
        try:
            new_names = rename_all(checkpoint.entries, candidate)
        except OptionError:
            continue
        known = set(targets) | set(_wanted(targets, loose))
        fitting = sum(name in known for name in new_names)
        if fitting > most:
            best, most = text, fitting
    return f"with --rename '{best}' {most} of {len(checkpoint.entries)} names would fit" if best else ""


def _prefixes(names: Iterable[str], targets: Mapping[str, Target]) -> list[tuple[str, str, str]]:
    """Prefixes that one side has and the other has not: (option, prefix, its replacement)."""
    heads, tails = sorted(names)[:2000], sorted(targets)[:2000]
    found = []
    for head in heads[:1] + heads[-1:]:
        for tail in tails[:1] + tails[-1:]:
            if head.endswith(f".{tail}"):
                prefix = head[: -len(tail)]
                found.append((f"^{prefix.replace('.', chr(92) + '.')}=", prefix, ""))
            elif tail.endswith(f".{head}"):
                prefix = tail[: -len(head)]
                found.append((f"^={prefix}", "", prefix))
    return found


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(shortened(one_line(name), 120) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
