"""What prepared weights depend on besides options: the model's content, ONNX Runtime, and the CPU."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from pathlib import Path

import onnxruntime as ort

from ranks.cache.weight_entry import FORMAT
from ranks.devices.providers import CPU, CUDA
from ranks.models.content import content_hash
from ranks.sessions import session
from ranks.sessions.session import SessionConfig

_GRAPHS = {CPU: 2, CUDA: 4}
"""Which way prepared graphs are written for a provider: another makes other entries, and leaves those that
there are."""
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
        "graph": _GRAPHS.get(config.providers[0]),
        "model": content_hash(model, config.folder, config.hashes),
        "runtime": runtime(),
        "cpu": cpu_features(),
        "provider": config.providers[0],
        "without": session.left_out(config.providers[0]),
        "options": entries,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


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
