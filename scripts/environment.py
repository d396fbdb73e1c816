#!/usr/bin/env python3
"""Writes the table of environment variables into docs/environment.md, from the code that reads them."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "environment.md"
BEGIN, END = "<!-- written by scripts/environment.py -->", "<!-- end -->"


def table() -> str:
    """The variables that a user may set, then those that shardrun sets for its ranks."""
    from ranks.common.settings import VARIABLES

    lines = ["| variable | meaning | values | default |", "| --- | --- | --- | --- |"]
    for item in VARIABLES:
        if not item.internal:
            values = ", ".join(f"`{name}`" for name in item.known()) or item.values
            lines.append(f"| `{item.name}` | {item.meaning} | {values} | {item.default} |")
    lines += ["", "Set by shardrun itself, for the ranks of one job:", ""]
    lines += ["| variable | meaning | values |", "| --- | --- | --- |"]
    lines += [f"| `{item.name}` | {item.meaning} | {item.values} |" for item in VARIABLES if item.internal]
    return "\n".join(lines)


def written(text: str) -> str:
    """The page with the table as it is now."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE}: the marks {BEGIN} and {END} are missing")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(written(PAGE.read_text()))
