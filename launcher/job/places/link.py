"""How fast hosts are joined, as the command line, a job file or a file of ``shardrun doctor`` says it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from sharding.common.text import shortened

if TYPE_CHECKING:
    from sharding.slices.topology import Link

_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?(?:e[+-]?\d{1,2})?)"
_LINK = rf"{_NUMBER} ?([kKMGT]?)(bit|b|B)(?:/s|ps)?\s*,\s*{_NUMBER} ?(us|µs|ms|s)"
_MOST_LINK_BYTES = 4096


def parse_link(text: str) -> Link:
    """What joins hosts, from text such as ``1Gbit/s,0.2ms``, or from the file that ``shardrun doctor
    --save-link`` wrote. Raises `ConfigError`."""
    from sharding.slices.topology import Link

    if text.strip() and "," not in text:
        return _read_link(Path(text))
    found = re.fullmatch(_LINK, text.strip(), re.ASCII)
    if found is not None:
        unit = 1000 ** " KMGT".index(found[2].upper() or " ") / (1 if found[3] == "B" else 8)
        seconds = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}[found[5]]
        if (bandwidth := float(found[1]) * unit) > 0:
            return Link(bandwidth, float(found[4]) * seconds)
    raise ConfigError(
        "expected BANDWIDTH,LATENCY such as 1Gbit/s,0.2ms or 12GB/s,5us, with a bandwidth above 0, or the "
        f"file of `shardrun doctor --save-link`, found {shortened(text, 80)!r}"
    )


def _read_link(path: Path) -> Link:
    import json

    from sharding.slices.topology import Link

    try:
        if not path.is_file():
            state = "not a file" if path.exists() else "no such file"
            raise ConfigError(
                f"{path}: {state}; expected BANDWIDTH,LATENCY such as 1Gbit/s,0.2ms, or the file of "
                "`shardrun doctor --save-link`"
            )
        with path.open("rb") as file:
            said = json.loads(file.read(_MOST_LINK_BYTES))
        link = Link(float(said["bytes_per_second"]), float(said["latency_seconds"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as problem:
        why = getattr(problem, "strerror", None) or "not a link that `shardrun doctor --save-link` wrote"
        raise ConfigError(f"{path}: {why}") from None
    if not (0 < link.bandwidth < math.inf and 0 <= link.latency < math.inf):
        raise ConfigError(f"{path}: expected a bandwidth above 0 and a latency from 0 up, found {link}")
    return link


def link_text(link: Link) -> str:
    """What `parse_link` reads from a file."""
    import json

    return json.dumps({"bytes_per_second": link.bandwidth, "latency_seconds": link.latency}) + "\n"
