"""ONNX Runtime sessions: options, threads, the shared arena, external data, and errors in plain words."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import onnxruntime as ort

from ranks.common import forks, settings
from ranks.devices import devices
from ranks.devices.providers import CPU
from ranks.errors import ModelError, ShardrunError
from ranks.sessions import arena, engines
from ranks.sessions.versions import too_new
from sharding.common import limits
from sharding.onnx_files.external import target_of
from sharding.onnx_files.protobuf import not_a_model

CHANGING = ("Pad_Fusion", "DoubleQDQPairsRemover")
"""Optimizers of ONNX Runtime that change what a model answers. Pad_Fusion makes zeros before a MaxPool its
own padding, which is minus infinity: where all else in a window is negative, another number is the largest.
DoubleQDQPairsRemover rounds once where a model rounds twice, to two scales.
"""
# On the CPU, SkipLayerNormalization is slower than the Adds and LayerNormalization that it replaces: its
# loops are scalar (8 % of BERT-base at sequence 128).
CPU_DISABLED = ("SkipLayerNormFusion",)


def left_out(provider: str) -> tuple[str, ...]:
    """The optimizers that sessions on this provider do without."""
    return (*CHANGING, *(CPU_DISABLED if provider == CPU else ()))


class WeightStore(Protocol):
    """Where sessions find weights that others hold, too: `ranks.weights.prepared.store`."""

    @property
    def providers(self) -> tuple[str, ...]:
        """What sessions run on that find their weights here."""

    def open(self, model: bytes | Path, config: SessionConfig, what: str) -> ort.InferenceSession:
        """A session whose weights lie in the store."""


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
    """What providers on a device must be told about the buffers (see `Memory.provider_options`)."""
    rank: int | None = None
    """Which rank this process is, where there are several."""
    entries: Mapping[str, str] = field(default_factory=dict)
    store: WeightStore | None = None
    """Where sessions on the CPU find their weights prepared, to share them with other sessions."""
    shared_files: frozenset[str] | None = None
    """Weights in these files of ``folder`` are worth the store; None: all are."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of files in ``folder`` that were just verified, by name: they need not be read again for it."""
    timeout: float | None = None
    """Seconds to wait for another process that prepares the same weights; None: ``SHARDRUN_TIMEOUT``."""


def default_threads(local_size: int = 1, environ: Mapping[str, str] = os.environ) -> int:
    """Threads per rank: ``SHARDRUN_THREADS``, else this process's cores shared by the ranks of this host."""
    if (asked := settings.threads(environ)) is not None:
        return asked
    return max(1, limits.share(max(1, local_size), bound=bool(settings.BOUND.text(environ))))


def create(model: bytes | Path, config: SessionConfig, what: str) -> ort.InferenceSession:
    """A session for a model's bytes or file; ``what`` names the model in errors.

    Raises `ModelError` with ONNX Runtime's reason, `DeviceError` where the first provider cannot serve: never
    falls back to the CPU in silence.
    """
    if isinstance(model, Path):
        model = target_of(model)
    _check_paths(model, config, what)
    if config.store is not None and config.providers[0] in config.store.providers:
        return config.store.open(model, config, what)
    return create_plain(model, config, what)


def create_plain(
    model: bytes | Path, config: SessionConfig, what: str, options: ort.SessionOptions | None = None
) -> ort.InferenceSession:
    """As `create`, but with weights of its own; ``options``: instead of `options_for` the config's."""
    providers = [(name, engines.apart(told, model, config)) for name, told in provider_options(config)]
    if CPU not in config.providers:
        providers.append((CPU, {}))
    _check_paths(model, config, what)
    if config.providers[0] in devices.DEVICES:
        devices.preload(devices.DEVICES[config.providers[0]].parts)
    _demand_threads(config.threads or limits.cores(), what)
    try:
        session = ort.InferenceSession(
            model if isinstance(model, bytes) else str(model),
            options or options_for(config),
            providers=providers,
            enable_fallback=0,
            disabled_optimizers=list(left_out(config.providers[0])),
        )
    except Exception as error:
        if config.providers[0] != CPU and devices.is_device_failure(error):
            raise devices.failure(config.providers[0], config.device_id, reason(error)) from None
        new = too_new(str(error))
        if new is not None:
            raise ModelError(f"{what} {new}") from None
        if "INVALID_PROTOBUF" in str(error):
            raise not_a_model(what, error) from None
        raise ModelError(f"ONNX Runtime {ort.__version__} refuses {what}: {reason(error)}") from None
    session._model_bytes = None  # kept to fall back on another provider, which is off here
    forks.never_freed(session, session._sess)
    if session.get_providers()[0] != config.providers[0]:
        raise devices.failure(config.providers[0], config.device_id, "ONNX Runtime did not start it")
    return session


def _demand_threads(count: int, what: str) -> None:
    """Raises `ShardrunError` where so many threads, this one among them, cannot be had at once: where ONNX
    Runtime starts some of a session's and no more, it waits for those for ever."""
    end, started = threading.Event(), []
    try:
        for _ in range(count - 1):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise ShardrunError(
            f"{what} cannot be loaded with {count} threads ({error}): {limits.shortage(error)}; or use fewer."
        ) from None
    finally:
        end.set()
        for thread in started:
            thread.join()


def _check_paths(model: bytes | Path, config: SessionConfig, what: str) -> None:
    """Raises `ModelError` where ONNX Runtime cannot be told a path: it takes UTF-8 only."""
    for path in (model, config.folder and config.folder.resolve()):
        try:
            _ = str(path).encode() if isinstance(path, Path) else b""
        except UnicodeEncodeError:
            shown = what.encode(errors="backslashreplace").decode()
            raise ModelError(
                f"ONNX Runtime takes only paths in UTF-8, but {shown} lies at {os.fsencode(path or b'')!r}: "
                "rename what is not."
            ) from None


_SOURCE_PLACE = re.compile(
    r"(?<!\S)(?=\S*/onnxruntime/)\S+\.(?:h|hpp|cc|cpp|cu):\d+ (?:.*? was false\. (?=\S))?"
)
"""Where in ONNX Runtime's source a check stands, and its condition where words follow."""
_PARAMETERS = re.compile(r"(?<=\w)\([^()]{20,}\)(?= .* was false\.?$)")
"""Those of the function in which a check stands, beside which its condition is lost."""
_LOOKED_AT, _SHOWN = 4000, 600
"""Characters of an error."""


def reason(error: Exception) -> str:
    """The sentence in an ONNX Runtime error, without the status code and source line before it."""
    text = " ".join(str(error).split())
    for mark in ("Status Message: ", "[ONNXRuntimeError] : "):
        if mark in text:
            text = text.split(mark, 1)[1]
    text = text[:_LOOKED_AT]  # names of a model's file may be as long as that
    text = _PARAMETERS.sub("()", _SOURCE_PLACE.sub("", devices.said(text)))
    more = limits.shortage(error)
    if more and limits.of_memory(error):
        more = devices.memory_advice() or more
    return text[:_SHOWN].rstrip(".") + (f"; {more}." if more else ".")


def run_error(error: Exception) -> ModelError:
    """Why a session could not run, in plain words."""
    why = reason(error)
    if any(word in why.lower() for word in ("cuda_graph", "cudagraph", "captur")):
        why = f"{why.rstrip('.')}; without SHARDRUN_CUDA_GRAPHS=1 (enable_cuda_graph) nothing is captured."
    return ModelError(f"ONNX Runtime could not run the model: {why}")


def options_for(config: SessionConfig) -> ort.SessionOptions:
    """ONNX Runtime's options for a session."""
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
        if config.providers[0] == CPU:
            arena.register()
            for key, value in arena.SHARED.items():
                options.add_session_config_entry(key, value)
        # Each session has its own threads; those of the last one must not spin while the next one works.
        options.add_session_config_entry("session.force_spinning_stop", "1")
    for key, value in config.entries.items():
        options.add_session_config_entry(key, value)
    return options


def provider_options(config: SessionConfig) -> list[tuple[str, dict[str, str]]]:
    """Each of the config's providers with all that it is told: all those of one session work on one device,
    and those that know streams on one stream."""
    given: Sequence[Mapping[str, str]] = config.provider_options
    told = []
    for index, name in enumerate(config.providers):
        options = dict(given[index]) if index < len(given) else {}
        if device := devices.DEVICES.get(name):
            options["device_id"] = str(config.device_id)
            for key, value in config.memory_options.items():
                if device.told is None or key in device.told:
                    options[key] = value
        told.append((name, options))
    return told


def at(config: SessionConfig, communicator: object) -> SessionConfig:
    """The config on the device that a communicator holds, where it holds one, as NCCL does."""
    index = getattr(getattr(communicator, "device", None), "index", None)
    return config if index is None else replace(config, device_id=index)
