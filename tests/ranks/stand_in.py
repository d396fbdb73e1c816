"""Libraries over which ONNX Runtime's CUDA and TensorRT providers load without a GPU: see stand_in_cuda.c.

They are made with the names and versions that the installed providers ask for, once per machine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import onnxruntime as ort
import pytest

from ranks.devices.linked import needed
from tests.copies import Copies
from tests.models import cache_folder
from tests.ranks import fake_cuda

SOURCE = Path(__file__).with_name("stand_in_cuda.c")
ROOT = Path(__file__).resolve().parents[2]
PROVIDERS = [
    Path(ort.__file__).resolve().parent / "capi" / f"libonnxruntime_providers_{name}.so"
    for name in ("cuda", "tensorrt")
]
_DRIVER = "libcuda.so.1"
_OURS = re.compile(r"lib(cu|nv)\w*\.so\.\d+")


@cache
def folder() -> Path:
    """The folder with the libraries, for LD_LIBRARY_PATH; skips the test where they cannot be made."""
    compiler, names = shutil.which(os.environ.get("CC", "cc")), shutil.which("nm")
    if compiler is None or names is None:
        pytest.skip("no C compiler (cc) and nm to make libraries that stand in for CUDA's")
    if not all(needed(provider) for provider in PROVIDERS):
        pytest.skip("this ONNX Runtime has no CUDA and TensorRT providers (the package onnxruntime-gpu has)")
    sources = b"".join(file.read_bytes() for file in (SOURCE, fake_cuda.SOURCE, Path(__file__)))
    key = hashlib.sha256(sources + f"{ort.__version__} {PROVIDERS[0].stat().st_size}".encode()).hexdigest()[
        :16
    ]
    target = cache_folder() / f"stand_in_{key}"
    if not target.exists():
        part = target.with_name(f"{target.name}.{os.getpid()}")
        part.mkdir()
        for library, wanted in _wanted(names).items():
            _make(compiler, part, library, wanted)
        try:
            part.rename(target)
        except OSError:  # another process was quicker
            shutil.rmtree(part)
    return target


def environment(**more: str) -> dict[str, str]:
    """What a process needs that is to find the libraries."""
    before = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    path = os.pathsep.join(dict.fromkeys(filter(None, [str(folder()), *before])))
    return {**os.environ, "LD_LIBRARY_PATH": path, "PYTHONPATH": str(ROOT), **more}


@cache
def copies(**more: str) -> Copies:
    """Copies of a process that sees the libraries and has imported what programs over them need."""
    return Copies(["onnx", "ml_dtypes", "ranks.*", *_torch()], environment(**more), shared=True)


def _torch() -> list[str]:
    """A build of torch for CUDA would load CUDA's own libraries before ONNX Runtime loads any."""
    found = importlib.util.find_spec("torch")
    place = found.submodule_search_locations if found else None
    return [] if not place or list(Path(place[0], "lib").glob("libtorch_cuda*")) else ["torch.distributed"]


def run(program: str, *arguments: str, timeout: float = 120, **more: str) -> subprocess.CompletedProcess[str]:
    """What a program of Python says in a process that sees the stand-in."""
    return copies().run(["-c", program, *arguments], environment(**more), ROOT, timeout)


def counter() -> str:
    """A library for LD_PRELOAD that counts calls of the CUDA runtime, and whose graphs can be captured."""
    folder()  # skips where nothing stands in
    return fake_cuda.compiled(SOURCE.with_name("count_cuda.c"))


def _wanted(nm: str) -> dict[str, dict[str, str]]:
    """By library, the functions that the providers ask it for, each with its version or ""."""
    found: dict[str, dict[str, str]] = {}
    for provider in PROVIDERS:
        for library in needed(provider):
            if _OURS.fullmatch(library):
                found.setdefault(library, {})
    found.setdefault(_DRIVER, {})  # which older providers load by name
    unversioned = {
        "cu": _DRIVER,
        "createNvOnnx": next(name for name in found if name.startswith("libnvonnxparser")),
        "": next(name for name in found if name.startswith("libnvinfer")),
    }
    for provider in PROVIDERS:
        listed = subprocess.run(
            [nm, "-D", "-u", provider], capture_output=True, text=True, check=True, timeout=60
        )
        for line in listed.stdout.splitlines():
            kind, name = line.split()
            name, _, version = name.partition("@")
            version = version.lstrip("@")
            if kind != "U" or name == "Provider_GetHost" or (version and version not in found):
                continue  # weak, ONNX Runtime's, or the C library's
            library = version or next(to for start, to in unversioned.items() if name.startswith(start))
            found[library][name] = version
    return found


def _make(compiler: str, place: Path, library: str, wanted: dict[str, str]) -> None:
    kind = library.removeprefix("lib").split(".")[0].upper()
    own = fake_cuda.SOURCE if library == _DRIVER else SOURCE
    there = set(re.findall(r"\b(\w+)\([^;{]*\) \{", own.read_text()))
    rest = [name for name in wanted if name not in there]
    source = place / f"{library}.c"
    source.write_text(
        "".join(
            f'const char *{name}(void) {{ return "stand-in"; }}\n'
            if re.search("String|Name$", name)
            else f"long {name}(void) {{ return 0; }}\n"
            for name in rest
        )
    )
    options = ["-w", "-O1", "-fPIC", "-shared", f"-D{kind}", f"-Wl,-soname,{library}"]
    if any(wanted.values()):
        versions = place / f"{library}.map"
        versions.write_text(f"{library} {{ global: *; }};\n")
        options.append(f"-Wl,--version-script={versions}")
    subprocess.run([compiler, *options, "-o", place / library, own, source], check=True, timeout=60)
