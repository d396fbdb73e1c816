"""Processes of ours beside a rank, which wait and do little else: they start in a third of the time that
Python takes.

Most of that time goes to `site` (what other packages have in their ``.pth`` files) and to what `ranks` and
its rooms import. So the module that waits is loaded from its folder, alone; what it does later may import the
rest.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# Neither the current folder, which may hold anything, nor for long the module's, whose neighbours have short
# names, is a place of modules.
_CODE = (
    "import sys; folder, root = sys.argv[1:3]; del sys.argv[1:3]; rest = [*filter(None, sys.path)]; "
    "sys.path[:] = [folder, *rest]; import {name}; sys.path[:] = [root, *rest]; {code}"
)


def command(module: str, code: str, *words: str) -> list[str]:
    """The command that imports a module, such as ``ranks.talk.witness``, by its last name, and then runs
    ``code``, with ``words`` as its arguments.

    The module is not in its package there. Until ``code`` calls `site.main`, packages of others are not
    found.
    """
    *rooms, name = module.split(".")
    start = _CODE.format(name=name, code=code)
    return [sys.executable, "-S", "-c", start, str(_ROOT.joinpath(*rooms)), str(_ROOT), *words]
