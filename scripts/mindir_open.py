"""Networks whose inputs have open lengths or any number of axes: exported and run by MindSpore 2.10.

    python scripts/mindir_open.py OUT.zip [NAME ...]

A line of the table beside this file is a name, the ways in which it is exported (s: fixed lengths, d: open
ones, r: any number of axes), what makes the layer or primitive (``-`` for none), its use as ``op`` on ``x0``,
``x1``, ... or statements, the inputs of each example, and where not all are open, which lengths are
(None for an input of any number of axes).

OUT.zip then holds NAME.WAY.mindir for each way and NAME.npz (``s0_in_0``, ..., ``s0_out_0``, ...), without
outputs where MindSpore has no CPU kernel.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.mindir_cases import HEADER, flat, run_all, work
from scripts.mindir_op_cases import MAKERS, Make

TABLE = Path(__file__).with_name("mindir_open_cases.txt")


@dataclass(frozen=True)
class Case:
    """One network; each of ``examples`` is a list of inputs."""

    name: str
    ways: str
    op: str
    call: str
    examples: tuple[tuple[Make, ...], ...]
    lengths: list[list[int | None]] | None

    def arrays(self) -> list[list[Any]]:
        """The inputs of each example, the same each time."""
        random = np.random.RandomState(zlib.crc32(self.name.encode()))
        return [[make(random) for make in example] for example in self.examples]

    def text(self) -> str:
        """The network's source; MindSpore compiles a network from the text of its file."""
        names = ", ".join(f"x{i}" for i in range(len(self.examples[0])))
        call = self.call if "return " in self.call else f"return {self.call}"
        if self.op:
            call = call.replace("op(", "self.op(", 1) if "self.op" not in call else call
        lines = [line for part in call.split("; ") for line in part.split("\\n")]
        body = "\n".join(f"        {line}" for line in lines)
        return (
            f"{HEADER}\nimport mindspore as ms\nimport numpy as np\nfrom mindspore import Parameter, mint\n"
            f"import mindspore.scipy as scipy\n\n"
            f"class Net(nn.Cell):\n    def __init__(self):\n        super().__init__()\n"
            f"        self.op = {self.op or 'None'}\n\n    def construct(self, {names}):\n{body}\n"
        )


def cases() -> list[Case]:
    """All of the table. Raises ValueError for a name that is there twice."""
    found: dict[str, Case] = {}
    for line in TABLE.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, ways, op, call, inputs, *lengths = line.split(" | ")
        if name in found:
            raise ValueError(f"{name} is there twice")
        examples = tuple(
            tuple(eval(item, dict(MAKERS)) for item in example.split("; ")) for example in inputs.split(" / ")
        )
        given = eval(lengths[0]) if lengths else None
        found[name] = Case(name, ways, "" if op == "-" else op, call, examples, given)
    return list(found.values())


def make(case: Case, folder: Path) -> None:
    """Runs and exports one case into the folder."""
    import mindspore as ms

    path = folder / f"case_{zlib.crc32(case.name.encode()):08x}.py"
    path.write_text(case.text())
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    net = module.Net()
    net.set_train(False)
    random = np.random.RandomState(zlib.crc32(case.name.encode()))
    for parameter in net.get_parameters():
        if parameter.dtype == ms.float32:
            parameter.set_data(ms.Tensor(random.uniform(0.2, 1.0, parameter.shape).astype(np.float32)))
    data = {}
    for number, arrays in enumerate(case.arrays()):
        data |= {f"s{number}_in_{place}": array for place, array in enumerate(arrays)}
        for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
            ms.set_context(mode=mode)
            try:
                outputs = flat(net(*map(ms.Tensor, arrays)))
            except Exception:  # what MindSpore raises for what it cannot do has no common class
                continue
            data |= {f"s{number}_out_{place}": array for place, array in enumerate(outputs)}
            break
    ms.set_context(mode=ms.GRAPH_MODE)
    first = [ms.Tensor(array) for array in case.arrays()[0]]
    for way in case.ways:
        other = module.Net()
        other.set_train(False)
        for old, new in zip(net.get_parameters(), other.get_parameters(), strict=True):
            new.set_data(old.value())
        given = first
        if way != "s":
            lengths = case.lengths or [[None] * tensor.ndim for tensor in first]
            shapes = lengths if way == "d" or case.lengths else [None] * len(first)
            given = [
                ms.Tensor(shape=shape, dtype=tensor.dtype) if shape is None or shape else tensor
                for shape, tensor in zip(shapes, first, strict=True)
            ]
            other.set_inputs(*given)
        file = folder / f"{case.name}.{way}.mindir"
        ms.export(other, *given, file_name=str(file), file_format="MINDIR")
    np.savez(folder / f"{case.name}.npz", **data)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="the archive to write")
    parser.add_argument("names", nargs="*", help="cases (default: all)")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        import mindspore as ms

        ms.set_device("CPU")
        work(cases(), options.names, lambda case: make(case, options.output))
        return
    os.environ.setdefault("GLOG_v", "4")
    names = [case.name for case in cases() if not options.names or case.name in options.names]
    with tempfile.TemporaryDirectory() as temporary, zipfile.ZipFile(options.output, "w") as archive:
        folder = Path(temporary)
        for name, why in run_all([__file__, "--work", temporary], names).items():
            print(f"{name}: {why}")
        for file in sorted([*folder.glob("*.mindir"), *folder.glob("*.npz")]):
            archive.writestr(zipfile.ZipInfo(file.name), file.read_bytes(), zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    main()
