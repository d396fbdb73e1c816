"""What pip would install: the wheel's content, and the locked versions of what it needs."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from ranks.devices import devices
from ranks.devices.linked import needed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there, so it is installed

ROOT = Path(__file__).parents[2]
PACKAGES = ("launcher", "ranks", "sharding")


def _setuptools() -> str:
    try:
        return importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        return "0"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy (building leaves files in the tree) without a network."""
    if Version(_setuptools()) < Version("77"):
        pytest.skip("building needs setuptools 77 or newer in this environment; ./run.sh test installs it")
    source = tmp_path_factory.mktemp("package") / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in (*PACKAGES, "tests", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    target = source.parent / "wheel"
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(target), str(source)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = target.glob("*.whl")
    return path


def test_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {
        str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    } | {f"{package}/py.typed" for package in PACKAGES}
    expected.add("launcher/serving/page.html")
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_installed_command(wheel: Path, tmp_path: Path) -> None:
    """From an unpacked wheel and another folder, as after `pip install`: the command runs."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (metadata,) = tmp_path.glob("*.dist-info")
    assert "shardrun = launcher.cli:main" in (metadata / "entry_points.txt").read_text()
    program = (
        "import sys; sys.argv = ['shardrun', '--version']; from launcher.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["version"] in done.stdout


def _project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project: dict[str, Any] = tomllib.load(file)["project"]
    return project


def _pins() -> list[Requirement]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_every_requirement_is_locked_once(python: str, machine: str) -> None:
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": "linux",
        "platform_machine": machine,
    }
    project = _project()
    wanted = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    pins: dict[str, list[Requirement]] = {}
    for pin in _pins():
        if pin.marker is None or pin.marker.evaluate(environment):
            pins.setdefault(_canonical(pin.name), []).append(pin)
    assert all(len(found) == 1 for found in pins.values())
    for requirement in map(Requirement, wanted):
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        if requirement.name == project["name"]:  # another extra, whose requirements are among these
            assert requirement.extras <= project["optional-dependencies"].keys()
            continue
        (pin,) = pins[_canonical(requirement.name)]
        (exact,) = pin.specifier
        assert exact.operator == "=="
        assert requirement.specifier.contains(exact.version), f"{requirement} is locked to {exact.version}"


def test_the_extra_for_gpus_brings_what_onnxruntime_gpu_offers() -> None:
    (wanted,) = map(Requirement, _project()["optional-dependencies"]["gpu"])
    assert wanted.name == "onnxruntime-gpu" and wanted.extras == {"cuda", "cudnn"}
    try:
        offered = importlib.metadata.metadata("onnxruntime-gpu").get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("onnxruntime-gpu is not installed (it is for x86-64)")
    assert wanted.extras <= set(offered)


def test_the_page_on_gpus_names_the_versions_that_are_installed() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text("utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| 3.1")]
    named = {cells[1].split(",")[0].strip() for cells in rows}
    assert named == {
        str(next(iter(pin.specifier)).version) for pin in _pins() if pin.name == "onnxruntime-gpu"
    }
    for _, version, built, driver, _ in rows:
        if version.strip().startswith(onnxruntime.__version__):
            assert built.strip() == f"CUDA {onnxruntime.cuda_version}"
            wanted = devices.OLDEST_DRIVERS[int(onnxruntime.cuda_version.partition(".")[0])]
            assert driver.strip().startswith(str(wanted))


def test_the_page_on_gpus_names_what_the_provider_links_to() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text("utf-8")
    words = {"libcuda": "the driver", "libcublas": "cuBLAS", "libcublasLt": "cuBLASLt", "libcurand": "cuRAND"}
    words |= {"libcudart": "the CUDA runtime", "libcudnn": "cuDNN", "libcufft": "cuFFT"}
    provider = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    linked = {name.partition(".")[0] for name in needed(provider)} & words.keys()
    if not linked:
        pytest.skip("onnxruntime-gpu is not installed (it is for x86-64)")
    said = re.search(rf"{re.escape(onnxruntime.__version__)}: (the driver, [\w, ]+)\s+\(", page)
    if said is None:
        pytest.skip(f"the page has the list of the newest release, and this is {onnxruntime.__version__}")
    assert set(re.split(r", | and ", said[1])) == {words[name] for name in linked}
