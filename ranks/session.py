"""ONNX Runtime sessions: options, threads, the shared arena, external data, and errors in plain words."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnxruntime as ort

from ranks import devices
from ranks.errors import ModelError, ShardrunError

CPU = "CPUExecutionProvider"
_ARENA_REGISTERED = False


@dataclass(frozen=True)
class SessionConfig:
    """What all sessions of one rank have in common. ``folder`` is where external data lie."""

    threads: int = 0
    providers: tuple[str, ...] = (CPU,)
    provider_options: tuple[Mapping[str, str], ...] = ()
    device_id: int = 0
    folder: Path | None = None
    many: bool = False
    """Whether the rank runs many sessions in turn, which then share an arena and give their threads back."""
    memory_options: Mapping[str, str] = field(default_factory=dict)
    """What the first provider must be told about the buffers (see `Memory.provider_options`)."""
    entries: Mapping[str, str] = field(default_factory=dict)


def default_threads(local_size: int = 1, environ: Mapping[str, str] = os.environ) -> int:
    """Threads per rank: ``SHARDRUN_THREADS``, else this process's cores shared by the ranks of this host."""
    text = environ.get("SHARDRUN_THREADS", "")
    if text:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1024):
            raise ShardrunError(f"SHARDRUN_THREADS must be a number from 1 to 1024, but is {text!r}.")
        return int(text)
    return max(1, available_cores() // max(1, local_size))


def available_cores() -> int:
    """Cores that this process may run on; the hardware threads of one core count once, as in ONNX Runtime."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            cores.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def create(model: bytes | Path, config: SessionConfig, what: str) -> ort.InferenceSession:
    """A session for a model's bytes or file; ``what`` names the model in errors.

    Raises `ModelError` with ONNX Runtime's reason, `DeviceError` where the first provider cannot serve: never
    falls back to the CPU in silence.
    """
    options = _options(config)
    providers = [
        (name, dict(_provider_options(config, index))) for index, name in enumerate(config.providers)
    ]
    if CPU not in config.providers:
        providers.append((CPU, {}))
    # On the CPU, SkipLayerNormalization is slower than the Adds and LayerNormalization that it replaces: its
    # loops are scalar (8 % of BERT-base at sequence 128).
    disabled = ["SkipLayerNormFusion"] if config.providers[0] == CPU else []
    try:
        session = ort.InferenceSession(
            model if isinstance(model, bytes) else str(model),
            options,
            providers=providers,
            enable_fallback=0,
            disabled_optimizers=disabled,
        )
    except Exception as error:
        if config.providers[0] != CPU and devices.is_device_failure(error):
            raise devices.failure(config.providers[0], config.device_id, reason(error)) from None
        raise ModelError(f"ONNX Runtime {ort.__version__} refuses {what}: {reason(error)}") from None
    if session.get_providers()[0] != config.providers[0]:
        raise devices.failure(config.providers[0], config.device_id, "ONNX Runtime did not start it")
    return session


def reason(error: Exception) -> str:
    """The sentence in an ONNX Runtime error, without the status code and source line before it."""
    text = " ".join(str(error).split())
    for mark in ("Status Message: ", "[ONNXRuntimeError] : "):
        if mark in text:
            text = text.split(mark, 1)[1]
    return text[:600].rstrip(".") + "."


def _options(config: SessionConfig) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what fails is raised; a warning from a library is no use to the user
    options.intra_op_num_threads = config.threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    if config.folder is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(config.folder.resolve())
        )
    if config.many:
        if config.providers[0] == CPU and _register_arena():
            options.add_session_config_entry("session.use_env_allocators", "1")
        # Each session has its own threads; those of the last one must not spin while the next one works.
        options.add_session_config_entry("session.force_spinning_stop", "1")
    for key, value in config.entries.items():
        options.add_session_config_entry(key, value)
    return options


def _register_arena() -> bool:
    """Makes one arena for all sessions of this process that ask for it."""
    global _ARENA_REGISTERED
    if not _ARENA_REGISTERED:
        info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
        with contextlib.suppress(
            Exception
        ):  # a program that uses ONNX Runtime itself may have made one already
            ort.create_and_register_allocator(info, None)
        _ARENA_REGISTERED = True
    return _ARENA_REGISTERED


def _provider_options(config: SessionConfig, index: int) -> Mapping[str, str]:
    given: Sequence[Mapping[str, str]] = config.provider_options
    options = dict(given[index]) if index < len(given) else {}
    if config.providers[index] in devices.DEVICES:
        options.setdefault("device_id", str(config.device_id))
    if index == 0:
        options.update(config.memory_options)
    return options
