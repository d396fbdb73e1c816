"""Varied networks, exported and run by MindSpore 2.10, for the tests of MindIR's conversion.

    python scripts/mindir_nets.py OUT.zip [NAME ...]

writes NAME.mindir and NAME.npz (inputs and answers of some examples) for each network of
``tests/sharding/importers/mindir_nets_*.py``.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def main(output: Path, names: list[str]) -> None:
    """The command."""
    import mindspore as ms

    from tests.sharding.importers import (  # noqa: F401 - they fill the table
        mindir_nets_flow,
        mindir_nets_in_place,
        mindir_nets_mixed,
    )
    from tests.sharding.importers.mindir_export import CASES, make

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(output, "w") as archive:
        for name in names or CASES:
            make(name, Path(folder))
            for file in (f"{name}.mindir", f"{name}.npz"):
                data = (Path(folder) / file).read_bytes()
                archive.writestr(zipfile.ZipInfo(file), data, zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
