"""Writes the table of MindSpore's primitives that have a conversion into docs/mindir.md.

python scripts/mindir_table.py           writes it
python scripts/mindir_table.py --check   fails where the page has another one
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "mindir.md"
BEGIN, END = "<!-- primitives -->", "<!-- end of primitives -->"


def table() -> str:
    """The families and what each converts, in alphabetical order."""
    sys.path.insert(0, str(ROOT))
    from sharding.importers.mindir.primitives import load
    from sharding.importers.mindir.primitives.base import PRIMITIVES
    from sharding.importers.mindir.structure import STRUCTURE

    load()
    families: dict[str, list[str]] = defaultdict(list)
    for name, primitive in PRIMITIVES.items():
        families[primitive.convert.__module__.rpartition(".")[2].replace("_", " ")].append(name)
    families["structure"] = list(STRUCTURE)
    rows = [
        f"| {family} | {' '.join(f'`{name}`' for name in sorted(names, key=str.lower))} |"
        for family, names in sorted(families.items())
    ]
    total = sum(map(len, families.values()))
    return "\n".join([f"{total} names:", "", "| family | primitives |", "| --- | --- |", *rows])


def page(text: str) -> str:
    """The page with the present table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> int:
    """Writes or checks the page."""
    old = PAGE.read_text("utf-8")
    new = page(old)
    if "--check" in sys.argv[1:]:
        return 0 if new == old else 1
    PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
