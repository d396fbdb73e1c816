"""The rows of docs/coverage.md: written from what was measured, and read again."""

import re
from collections import Counter
from pathlib import Path

from tests.architectures import zoo
from tests.architectures.measure import Measured
from tests.models import ROOT

PAGE = ROOT / "docs" / "coverage.md"
HEAD = [
    "| model | strategy | ranks | split | a rank holds | collectives | a layer | bytes | state "
    "| error | planning |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
]
_STATE = re.compile(r"([0-9,]+) of ([0-9,]+)")


def row(name: str, result: Measured) -> str:
    """One line of the table."""
    counts = ", ".join(f"{count} {op}" for op, count in sorted(result.counts.items())) or "none"
    cells = [
        name,
        result.strategy,
        str(result.ranks),
        f"{100 * result.split_share:.1f} %" if result.strategy == "tensor" else "",
        f"{100 * result.rank_share:.1f} %",
        counts,
        per_layer(name, result),
        f"{sum(result.sent.values()):,}",
        f"{result.rank_state:,} of {result.state:,}" if result.state else "",
        f"{result.error:.0e}",
        f"{result.planning_seconds:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def per_layer(name: str, result: Measured) -> str:
    """Collectives of each transformer layer, and those outside of layers."""
    if zoo.layers(name) is None or result.strategy != "tensor":
        return ""
    inside, outside = inside_and_outside(name, result)
    return f"{inside}" + (f" + {outside}" if outside else "")


def inside_and_outside(name: str, result: Measured) -> tuple[int, int]:
    """Collectives of each layer, and those outside of layers, of an architecture that has layers."""
    layers, outside = zoo.layers(name), zoo.OUTSIDE.get(name, 0)
    assert layers is not None
    inside, rest = divmod(result.total - outside, layers)
    return inside, outside + rest


def read(page: Path = PAGE) -> dict[str, list[Measured]]:
    """The rows of the page by architecture, as exact as they are printed."""
    found: dict[str, list[Measured]] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 11 and cells[2].isdigit():
            found.setdefault(cells[0], []).append(_measured(cells))
    return found


def _measured(cells: list[str]) -> Measured:
    counts = Counter[str]()
    for item in cells[5].split(", ") if cells[5] != "none" else ():
        number, _, op = item.partition(" ")
        counts[op] = int(number)
    state = _STATE.search(cells[8])
    kept, whole = (int(number.replace(",", "")) for number in state.groups()) if state else (0, 0)
    return Measured(
        ranks=int(cells[2]),
        strategy=cells[1],
        split_share=float(cells[3].partition(" ")[0] or 0) / 100,
        rank_share=float(cells[4].partition(" ")[0]) / 100,
        planning_seconds=float(cells[10]),
        error=float(cells[9]),
        counts=counts,
        rank_state=kept,
        state=whole,
        sent=Counter({"all": int(cells[7].replace(",", ""))}),
    )
