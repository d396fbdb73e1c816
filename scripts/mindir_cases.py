"""Networks of one primitive each: exported and run by MindSpore, for the tests of MindIR's conversion.

    python scripts/mindir_cases.py OUT.zip [NAME ...]

MindSpore must be installed: 2.0.0 writes version 1 files, 2.10 version 3. A primitive that it does not have
is named and left out. OUT.zip then holds NAME.mindir and NAME.npz (``in_0``, ..., ``out_0``, ...) for each
case, without outputs where MindSpore has no CPU kernel. With ``--dynamic``, inputs may have any lengths.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.mindir_op_cases import CASES, Case

HEADER = """
import mindspore
import mindspore.nn as nn
import mindspore.ops as ops
from mindspore import Tensor
from mindspore.ops import operations as P
from mindspore.ops.operations import array_ops, image_ops, math_ops, nn_ops, other_ops
try:
    from mindspore.ops import auto_generate as A
except ImportError:
    A = None
"""


WITHOUT_KERNEL = ("Kernel select failed", "not impl")
"""What the errors say where a network can be exported here but runs on another device only."""


def module_text(case: Case) -> str:
    """The network's source; MindSpore compiles a network from the text of its file."""
    names = ", ".join(f"x{i}" for i in range(len(case.inputs)))
    call = case.call.replace("op(", "self.op(", 1) if case.op else case.call
    return (
        f"{HEADER}\nclass Net(nn.Cell):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.op = {case.op or 'None'}\n\n"
        f"    def construct(self, {names}):\n        return {call}\n"
    )


def flat(item: Any) -> list[Any]:
    """The tensors of a nested result, as arrays."""
    if isinstance(item, (tuple, list)):
        return [array for inner in item for array in flat(inner)]
    return [item.asnumpy()]


def make(case: Case, folder: Path, dynamic: bool) -> None:
    """Runs and exports one case into the folder."""
    import mindspore as ms
    import numpy as np

    path = folder / f"case_{zlib.crc32(case.name.encode()):08x}.py"
    path.write_text(module_text(case))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    arrays = case.arrays()
    net = module.Net()
    net.set_train(False)
    tensors = [ms.Tensor(array) for array in arrays]
    outputs: list[Any] = []
    try:
        outputs = flat(net(*tensors))
    except Exception as error:
        if not any(text in str(error) for text in WITHOUT_KERNEL):
            raise
        net = module.Net()
        net.set_train(False)
    given = tensors
    if dynamic:
        given = [
            ms.Tensor(shape=[None] * array.ndim, dtype=tensor.dtype)
            for array, tensor in zip(arrays, tensors)  # noqa: B905 - 3.9
        ]
        other = module.Net()
        other.set_train(False)
        for old, new in zip(net.get_parameters(), other.get_parameters()):  # noqa: B905 - 3.9
            new.set_data(old.value())
        net = other
        net.set_inputs(*given)
    ms.export(net, *given, file_name=str(folder / f"{case.name}.mindir"), file_format="MINDIR")
    data = {f"in_{i}": array for i, array in enumerate(arrays)}
    data.update({f"out_{i}": array for i, array in enumerate(outputs)})
    np.savez(folder / f"{case.name}.npz", **data)


def work(cases: Sequence[Any], names: Sequence[str], make: Callable[[Any], None]) -> None:
    """The child: one line on stdout for each case before and after it."""
    for case in cases:
        if case.name not in names:
            continue
        print("start", case.name, flush=True)
        try:
            make(case)
            print("done", case.name, flush=True)
        except Exception as error:  # what MindSpore raises for what it cannot do has no common class
            print("failed", case.name, " ".join(str(error).split())[:300], flush=True)


def run_all(command: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Runs children, Python with ``command`` and names, until each case was tried; a crash costs its case.

    name -> why not
    """
    failed: dict[str, str] = {}
    left = list(names)
    while left:
        found = subprocess.run(
            [sys.executable, *command, *left],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False,
        )  # fmt: skip
        started = None
        for line in found.stdout.splitlines():
            kind, _, rest = line.partition(" ")
            name, _, why = rest.partition(" ")
            if kind == "start":
                started = name
            elif kind in {"done", "failed"} and name in left:
                left.remove(name)
                started = None
                if kind == "failed":
                    failed[name] = why
        if started in left:
            left.remove(started)
            failed[started] = f"crashed ({found.returncode})"
        elif left:
            failed.update(dict.fromkeys(left, f"never started ({found.returncode})"))
            break
    return failed


def pack(folder: Path, output: Path) -> int:
    """All files into one archive, with fixed dates so that equal files give equal archives."""
    names = sorted(path.name for path in folder.iterdir() if path.suffix in {".mindir", ".npz"})
    whole = [name for name in names if f"{name.rsplit('.', 1)[0]}.npz" in names]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in whole:
            archive.writestr(zipfile.ZipInfo(name), (folder / name).read_bytes(), zipfile.ZIP_DEFLATED)
    output.write_bytes(buffer.getvalue())
    return len(whole) // 2


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="the archive to write")
    parser.add_argument("names", nargs="*", help="cases (default: all)")
    parser.add_argument("--dynamic", action="store_true", help="inputs of any lengths")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        import mindspore as ms

        ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
        work(CASES, options.names, lambda case: make(case, options.output, options.dynamic))
        return
    names = [case.name for case in CASES if not options.names or case.name in options.names]
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("GLOG_v", "4")
        dynamic = ["--dynamic"] if options.dynamic else []
        failed = run_all([__file__, *dynamic, "--work", folder], names)
        for name, why in failed.items():
            print(f"{name}: {why}")
        print(f"{pack(Path(folder), options.output)} of {len(names)} cases in {options.output}")


if __name__ == "__main__":
    main()
