"""`onnx_ir` is imported without sympy, and has it as soon as it needs it."""

import subprocess
import sys
from pathlib import Path

import onnx

ROOT = Path(__file__).parents[3]
SLICED = """
import sys
import sharding
sharding.slice_model("model.onnx", 2, "slices", allow_replicated=True)
assert "onnx_ir" in sys.modules
assert not {name for name in sys.modules if name.partition(".")[0] == "sympy"}

import onnx_ir
length = onnx_ir.SymbolicDim("rows")
assert "sympy" not in sys.modules
assert ((length + 1) * 2).evaluate({"rows": 4}) == 10
assert onnx_ir.SymbolicDim("max(rows, 3) + floor(rows / 2)").evaluate({"rows": 9}) == 13

import sympy
assert isinstance(sympy.Symbol("n") + 1, sympy.Expr) and sympy.Max(1, 2) == 2
assert onnx_ir.SymbolicDim(sympy.Symbol("n") + 1).value == "n + 1"
try:
    onnx_ir.SymbolicDim(1.5)
except TypeError:
    print("as ever")
"""
INIT = """
import threading
import program

thread = threading.Thread(target=program.other)
thread.start()
thread.join()
import sympy
largest = sympy.Max
"""
"""In the place of `onnx_ir`: another thread imports sympy just when this import has begun."""
THREADS = """
import sys
from sharding.onnx_files.graph_library import import_graph_library
import program

import_graph_library()
assert program.found == [True]
import onnx_ir, sympy
assert onnx_ir.largest(2, 1) == 2
assert type(sys.modules["sympy"]) is type(sys) and sympy.Integer(1) + 1 == 2
print("as ever")
"""
OTHER = """
import importlib.util
import sys
found = []

def other():
    assert "sympy" in sys.modules and "sympy.core" not in sys.modules
    assert importlib.util.find_spec("sympy").origin
    import sympy
    from sympy import Symbol
    import sympy.core.numbers

    class Own(sympy.Function):
        pass

    found.append((Symbol("n") + 1).subs("n", 2) == 3 and issubclass(Own, sympy.Basic))
"""
FIRST = """
import sys
import sympy
from sharding.onnx_files.graph_library import import_graph_library
import_graph_library()
import onnx_ir
assert onnx_ir._core.sympy is sympy is sys.modules["sympy"]
print("as ever")
"""
FAILING = """
import sys
from sharding.onnx_files.graph_library import import_graph_library
sys.modules["onnx_ir._core"] = None
try:
    import_graph_library()
except ImportError:
    assert "sympy" not in sys.modules
    import sympy
    assert sympy.Integer(1) + 1 == 2
    print("as ever")
"""


def _run(program: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}"],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == "as ever\n", done.stderr


def test_slicing_needs_no_sympy_and_onnx_ir_finds_it_later(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[rows, 4] x, float[rows, 4] z) => (float[N, 4] y)
        <float[4, 4] w = {1,2,3,4, 5,6,7,8, 1,2,3,4, 5,6,7,8}>
        { a = MatMul(x, w) b = Concat<axis = 0>(a, z) s = Shape(b) c = Reshape(b, s) y = Relu(c) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    _run(SLICED, tmp_path)
    assert (tmp_path / "slices" / "manifest.json").is_file()


def test_another_thread_gets_the_real_one_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "onnx_ir").mkdir()
    (tmp_path / "onnx_ir" / "__init__.py").write_text(INIT)
    (tmp_path / "program.py").write_text(OTHER)
    _run(THREADS, tmp_path)


def test_what_was_imported_before_stays(tmp_path: Path) -> None:
    _run(FIRST, tmp_path)


def test_nothing_stays_of_an_import_that_fails(tmp_path: Path) -> None:
    _run(FAILING, tmp_path)
