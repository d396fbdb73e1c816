"""What prepared weights depend on besides options: the model's content, ONNX Runtime, and the CPU."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from ranks.cache.folder import fingerprint, remembered_hash, size_of_files
from ranks.cache.weight_entry import FORMAT
from ranks.errors import ModelError
from ranks.sessions import session
from sharding.onnx_files.external import entries, locations

if TYPE_CHECKING:
    import onnx

    from ranks.sessions.session import SessionConfig

# Options of a session that do not change its graph or its packed weights.
_NEUTRAL = frozenset(
    {
        "session.use_env_allocators",
        "session.use_device_allocator_for_initializers",
        "session.force_spinning_stop",
    }
)


def key_of(model: bytes | Path, config: SessionConfig) -> str:
    """The name under which a model's prepared weights lie: equal for equal graphs, weights, options and
    machines.

    Raises `ModelError` where the model cannot be read.
    """
    entries = {key: value for key, value in config.entries.items() if key not in _NEUTRAL}
    parts = {
        "format": FORMAT,
        "model": content_of(model, config),
        "runtime": runtime(),
        "cpu": cpu_features(),
        "provider": config.providers[0],
        "without": session.left_out(config.providers[0]),
        "options": entries,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def content_of(model: bytes | Path, config: SessionConfig) -> str:
    """A hash of a model and its external data. Raises `ModelError` where they cannot be read."""
    try:
        if isinstance(model, Path):
            return fingerprint(model)
        digest = hashlib.sha256(model)
        for name in locations(_parsed(model)):
            if config.folder is None:
                raise ModelError(f"a model's weight lies in {name!r}, but nothing says in which folder.")
            known = config.hashes.get(name) or remembered_hash(config.folder / name)
            digest.update(f"{name} {known}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()
    except OSError as problem:
        raise ModelError(f"{problem.filename} cannot be read: {problem.strerror or problem}.") from None


def size_of(model: bytes | Path) -> int:
    """Bytes of a model's weights, as far as that is known without reading them; 0 where it cannot be read."""
    if isinstance(model, Path):
        return size_of_files(model)
    try:
        lengths = (text for key, text in entries(_parsed(model)) if key == "length")
        return len(model) + sum(int(text) for text in lengths if text.isascii() and text.isdigit())
    except ModelError:
        return 0


def runtime() -> str:
    """ONNX Runtime's version and build."""
    return f"{ort.__version__} {ort.get_build_info()}"


@functools.cache
def cpu_features() -> str:
    """A hash of what this CPU is and can: packed weights are laid out for its instructions."""
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part")
    found = [platform.machine()]
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in wanted:
                    found.append(f"{name.strip()}={value.strip()}")
                elif not line.strip():
                    break  # the first core speaks for all
    except OSError:
        found.append(platform.processor())
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def _parsed(model: bytes) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    from sharding.onnx_files.protobuf import MalformedError, without_weights

    message = onnx.ModelProto()
    try:
        message.ParseFromString(without_weights(memoryview(model)))
    except (MalformedError, DecodeError) as problem:
        raise ModelError(f"not a whole ONNX model: {problem}.") from None
    return message
