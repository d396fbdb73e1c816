"""Writes the table of MindSpore's primitives that have a conversion into docs/mindir.md.

python scripts/mindir_table.py           writes it
python scripts/mindir_table.py --check   fails where the page has another one

A primitive is marked as compared where a network that uses it was run by MindSpore for the tests.
"""

from __future__ import annotations

import sys
import zipfile
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "mindir.md"
BEGIN, END = "<!-- primitives -->", "<!-- end of primitives -->"
DATA = ROOT / "tests" / "data" / "mindir"
ARCHIVES = sorted(DATA.glob("ops_*.zip"))
"""Networks of one primitive each, an archive for each version of the format."""
OPEN = DATA / "open_v3.zip"
"""Networks whose inputs have open lengths."""
sys.path.insert(0, str(ROOT))


def _used(data: bytes) -> set[str]:
    """The primitives that a file uses."""
    from sharding.importers.mindir.schema import messages

    model = messages()["Model"]()
    model.ParseFromString(data)
    graphs = (model.graph, *model.functions)
    used = {node.op_type.removeprefix("REF::") for graph in graphs for node in graph.node}
    return {item.op_type for item in model.primitives if item.name in used}


def _answered(opened: zipfile.ZipFile, name: str) -> bool:
    """Whether MindSpore ran a network of an archive."""
    with opened.open(f"{name}.npz") as data, zipfile.ZipFile(data) as arrays:
        return not {"out_0.npy", "s0_out_0.npy"}.isdisjoint(arrays.namelist())


@lru_cache(maxsize=1)
def checked() -> frozenset[str]:
    """The primitives whose answers are compared with MindSpore's."""
    found: set[str] = set()
    for path in DATA.glob("*/*.mindir"):
        if "v0" not in path.name and "aes" not in path.name:
            found |= _used(path.read_bytes())
    for archive in ARCHIVES:
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                if name.endswith(".mindir") and _answered(opened, name.removesuffix(".mindir")):
                    found |= _used(opened.read(name))
    with zipfile.ZipFile(OPEN) as opened:
        for name in opened.namelist():
            if name.endswith(".mindir") and _answered(opened, name.split(".")[0]):
                found |= _used(opened.read(name))
    return frozenset(found)


def table() -> str:
    """The families and what each converts, in alphabetical order."""
    from sharding.importers.mindir.primitives import load
    from sharding.importers.mindir.primitives.base import PRIMITIVES
    from sharding.importers.mindir.tracing.structure import STRUCTURE

    load()
    families: dict[str, list[str]] = defaultdict(list)
    for name, primitive in PRIMITIVES.items():
        families[primitive.family.replace("_", " ")].append(name)
    families["structure"] = list(STRUCTURE)
    proven = checked()

    def shown(name: str) -> str:
        return f"**{name}**" if name in proven else name

    rows = [
        f"| {family} | {', '.join(shown(name) for name in sorted(names, key=str.lower))} |"
        for family, names in sorted(families.items())
    ]
    every = [name for names in families.values() for name in names]
    total, compared = len(every), sum(name in proven for name in every)
    return "\n".join(
        [
            f"{total} names, {len(STRUCTURE)} of them of the structure of networks, which compute nothing.",
            f"{compared} of all, in bold, are compared with answers that MindSpore computed;",
            "most of the others have no kernel for the CPU and are compared with the torch functions that",
            "MindSpore's documentation names, or follow that documentation.",
            "",
            "| family | primitives |",
            "| --- | --- |",
            *rows,
        ]
    )


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
