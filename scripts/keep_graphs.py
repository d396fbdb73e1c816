"""Exports the tests' models again and keeps their graphs in tests/data/graphs.

    python scripts/keep_graphs.py                      # all of them, about four minutes
    python scripts/keep_graphs.py architectures/bert   # only this one: the others stay as they are kept
    python scripts/keep_graphs.py --check models       # writes nothing; ends with 1 where one differs

Needs what exports the models (the extra `demo`), in the versions of requirements.lock.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import kept, models  # noqa: E402  # the path above is needed first
from tests.architectures import build, zoo  # noqa: E402


@dataclass(frozen=True)
class Zoo:
    """Models whose graphs are kept in one archive."""

    archive: Path
    names: Sequence[str]
    recipe: Callable[[str], str]
    export: Callable[[dict[str, Path]], None]
    given: Callable[[str], kept.Given] = lambda name: {}

    def fresh(self, names: Sequence[str]) -> dict[str, kept.Kept]:
        """These models, exported now."""
        with tempfile.TemporaryDirectory(prefix="graphs.") as scratch:
            paths = {name: Path(scratch) / name / f"{name}.onnx" for name in names}
            for path in paths.values():
                path.parent.mkdir()
            self.export(paths)
            return {name: kept.strip(path, self.given(name)) for name, path in paths.items()}

    def keep(self, names: Sequence[str]) -> None:
        """Export these again; the others stay."""
        fresh, recipes = self.fresh(names), kept.names(self.archive)
        held = {name: kept.read(self.archive, name) for name in recipes if name in self.names}
        recipes |= {name: self.recipe(name) for name in names}
        every = held | fresh
        kept.keep(self.archive, ((name, recipes[name], every[name]) for name in self.names if name in every))

    def different(self, names: Sequence[str]) -> list[str]:
        """Those that are not kept as they are exported now."""
        known, fresh = kept.names(self.archive), self.fresh(names)
        return [
            name
            for name in names
            if name not in known or not kept.same(kept.read(self.archive, name), fresh[name])
        ]


def export_models(targets: dict[str, Path]) -> None:
    """Each in a process of its own."""
    for name, path in targets.items():
        models.run_builder(name, path)


ZOOS = {
    "architectures": Zoo(zoo.ARCHIVE, tuple(build.EXPORTED), zoo.recipe, zoo.run_builders),
    "models": Zoo(models.ARCHIVE, models.KEPT, models.recipe, export_models, models.given),
}


def main() -> int:
    """The exit code: 1 where a graph that is checked is not as it is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "models", nargs="*", metavar="ZOO[/NAME]", help="what to export; all if none is named"
    )
    parser.add_argument("--check", action="store_true", help="compare what is kept with a new export")
    arguments = parser.parse_args()
    every = {f"{kind}/{name}": (kind, name) for kind, one in ZOOS.items() for name in one.names}
    given = arguments.models or list(ZOOS)
    for item in given:
        if item not in every and item not in ZOOS:
            parser.error(f"unknown: {item}; expected {', '.join((*ZOOS, *every))}")
    different = []
    for kind, one in ZOOS.items():
        names = [name for name in one.names if kind in given or f"{kind}/{name}" in given]
        if not names:
            continue
        if arguments.check:
            different += [f"{kind}/{name}" for name in one.different(names)]
            continue
        if kept.versions(one.archive) != kept.installed() and set(names) != set(one.names):
            parser.error(f"{kind} were exported by {kept.versions(one.archive)}: export all of them")
        one.keep(names)
        print(f"{one.archive}: {one.archive.stat().st_size / 1e3:.0f} kB")
    if different:
        print(f"not as kept: {', '.join(different)}", file=sys.stderr)
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
