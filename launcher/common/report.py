"""What the command prints: tables, outputs as the MindSpore Lite tutorials print them, progress bars.

Tables and progress bars use rich on a terminal only; elsewhere tables are plain text and progress is silent.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ranks.common.progress import is_terminal, progress
from sharding.common.arrays import Array
from sharding.common.text import counted, human_bytes, one_line

__all__ = [
    "counted", "format_table", "human_bytes", "human_seconds", "is_terminal", "print_outputs", "print_table",
    "progress", "say", "warn_of", "warn_unsplit",
]  # fmt: skip

FIRST_VALUES = 50


def format_table(columns: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """A table as plain text; ``align`` has one of ``l`` and ``r`` per column."""
    lines = [list(columns), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    lines.insert(1, ["-" * width for width in widths])
    text = ""
    for line in lines:
        cells = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(line, widths, align, strict=True)
        ]
        text += "  ".join(cells).rstrip() + "\n"
    return text


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], align: str, *, title: str | None = None
) -> None:
    """Prints a table on standard output."""
    if title:
        print(one_line(title))
    if not is_terminal(sys.stdout):
        print(format_table(columns, rows, align), end="")
        return
    sys.stdout.flush()
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column, side in zip(columns, align, strict=True):
        table.add_column(column, justify="right" if side == "r" else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))  # Text: names of tensors are not rich's markup
    Console().print(table)


def warn_of(warning: str, model: Path) -> None:
    """Says a plan's warning on standard error, if there is one."""
    if warning:
        logging.getLogger(__name__).warning("%s: %s; see `shardrun inspect -v`", model, warning)


def warn_unsplit(folder: Path, model: Path) -> None:
    """Warns on standard error where a slice folder, made of this model, splits almost nothing."""
    from sharding.planning.unsplit import hardly_splits_slices
    from sharding.slices.manifest import read_manifest

    warn_of(hardly_splits_slices(read_manifest(folder)), model)


def say(text: str) -> None:
    """Prints one line on standard output; what it names may hold anything."""
    print(one_line(text))


def print_outputs(outputs: Mapping[str, Array]) -> None:
    """Prints every output array as MindSpore Lite's tutorials do: name, bytes, elements, first 50 values."""
    for name, array in outputs.items():
        size = f"data size is:{array.nbytes} tensor elements num is:{array.size}"
        print(
            f"tensor's name is:{one_line(name)} {size}\n"
            f"output data is: {''.join(str(value) + ' ' for value in array.reshape(-1)[:FIRST_VALUES])}"
        )


def human_seconds(seconds: float) -> str:
    """A duration with a fitting unit: 0.00123 is 1.23 ms."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
