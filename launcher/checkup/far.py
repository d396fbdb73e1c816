"""What a host of a rank table says of itself: the versions there, and what it lacks. Run there by ssh, as
``python -m launcher.checkup.far``; it prints one line of JSON.

Only what is quick: a table may have hundreds of hosts.
"""

from __future__ import annotations

import json
import sys
from typing import TypedDict

from launcher.checkup.base import REGISTRY, Asked, examine
from launcher.group.logs import versions

CHECKS = ("cores", "memory", "limits", "cache")


class Far(TypedDict):
    """``problems``: title, level, finding and advice of each finding that is not ok."""

    versions: dict[str, str]
    problems: list[tuple[str, str, str, str]]


def here() -> Far:
    """Of this host."""
    found = examine(Asked(), [REGISTRY[name] for name in CHECKS])
    return {
        "versions": {"Python": ".".join(map(str, sys.version_info[:2])), **versions()},
        "problems": [(title, one.level, one.what, one.advice) for title, one in found if one.level != "ok"],
    }


if __name__ == "__main__":
    print(json.dumps(here()))
