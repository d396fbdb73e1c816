"""The models of benchmarks/serving.py, and how other servers are started with them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from common import HERE, model_of

Feeds = dict[str, np.ndarray]


def tiny(path: Path) -> Feeds:
    """``y = relu(x @ w)`` of rows of 256 numbers, which are 1 KB."""
    import onnx

    weights = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    nodes = [("MatMul", "xw", "h"), ("Relu", "h", "y")]
    onnx.save(model_of(nodes, {"x": ["n", 256]}, {"y": ["n", 256]}, {"w": weights}), path)
    return {"x": (np.arange(256, dtype=np.float32)[None] % 4 + 1) / 4}


def mobilenet_v2(path: Path) -> Feeds:
    """The model of benchmarks/runner.py, on a picture of bytes."""
    import runner

    runner.mobilenet_v2(path)
    picture = np.random.default_rng(0).integers(0, 256, (1, 3, 224, 224))
    import onnx

    name = onnx.load(path, load_external_data=False).graph.input[0].name
    return {name: np.round(picture / 255, 3).astype(np.float32)}


def bert_base(path: Path) -> Feeds:
    """The model of benchmarks/latency.py, on 128 words."""
    from latency import feeds_of

    from tests import models

    shutil.copytree(models.get("bert_base").path.parent, path.parent, dirs_exist_ok=True)
    return feeds_of(128)


MODELS: Mapping[str, Callable[[Path], Feeds]] = {
    "tiny": tiny, "mobilenet_v2": mobilenet_v2, "bert_base": bert_base,
}  # fmt: skip


def worded(source: Path, target: Path) -> Path:
    """The folder of a language model whose every token has a text: tokenizers of models with random weights
    know few of their tokens, and servers send no event for a token without text."""
    target.mkdir()
    for file in source.iterdir():
        if file.name != "tokenizer.json":
            (target / file.name).symlink_to(file.resolve())
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    config = json.loads(
        (source / ("config.json" if (source / "config.json").exists() else "genai_config.json")).read_text()
    )
    size = config.get("vocab_size") or config["model"]["vocab_size"]
    words = tokenizer["model"]["vocab"]
    known = {*words.values(), *(one["id"] for one in tokenizer.get("added_tokens", ()))}
    words.update({f"<{number}>": number for number in range(size) if number not in known})
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    return target


@dataclass(frozen=True)
class Peer:
    """Another server. ``program``: what its environment in the folder of peers must have."""

    title: str
    program: str
    arguments: Callable[[str, Path, int, Path], Sequence[str]]
    ready: str
    kinds: Sequence[str]
    spins: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    def command(self, peers: Path, name: str, model: Path, ranks: int, folder: Path) -> list[str] | None:
        """What starts it; None where it is not there."""
        program = peers / self.program
        if not program.exists():
            return None
        return [str(program), *self.arguments(name, model, ranks, folder)]


def _plain(name: str, model: Path, ranks: int, folder: Path) -> list[str]:
    return [str(HERE / "serving_plain.py"), str(model), str(ranks), "PORT"]


def _triton(name: str, model: Path, ranks: int, folder: Path) -> list[str]:
    return [str(HERE / "serving_triton.py"), str(model), str(ranks), "PORT", name]


def _mlserver(name: str, model: Path, ranks: int, folder: Path) -> list[str]:
    """Writes its settings; its port it has from the environment."""
    place = folder / f"mlserver-{name}"
    place.mkdir()
    settings = {"debug": False, "host": "127.0.0.1", "parallel_workers": 0, "metrics_endpoint": None}
    (place / "settings.json").write_text(json.dumps(settings))
    told = {"path": str(model), "threads": ranks}
    (place / "model-settings.json").write_text(
        json.dumps(
            {
                "name": name, "implementation": "serving_mlserver.Session",
                "parameters": {"version": "1", "extra": told},
            }
        )
    )  # fmt: skip
    return ["start", str(place)]


PEERS: Sequence[Peer] = (
    Peer("FastAPI", "fastapi/bin/python", _plain, "/openapi.json", ["JSON", "binary"]),
    Peer(
        "MLServer", "mlserver/bin/mlserver", _mlserver, "/v2/models/NAME/ready", ["JSON"],
        env={"MLSERVER_HTTP_PORT": "PORT", "MLSERVER_GRPC_PORT": "0", "MLSERVER_METRICS_PORT": "0"},
    ),
    Peer("Triton", "triton/bin/python", _triton, "/v2/models/NAME/ready", ["JSON", "binary"]),
)  # fmt: skip


def vllm(python: Path, weights: Path, ranks: int, length: int) -> list[str]:
    """vLLM's server for a language model."""
    return [
        str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(weights),
        "--served-model-name", "language", "--dtype", "float32", "--tensor-parallel-size", str(ranks),
        "--max-model-len", str(length), "--max-num-seqs", "8", "--enforce-eager",
        "--no-enable-prefix-caching", "--disable-log-stats", "--uvicorn-log-level", "warning",
        "--host", "127.0.0.1", "--port", "PORT",
    ]  # fmt: skip


def vllm_env(ranks: int) -> dict[str, str]:
    """What it is told by its environment."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, range(ranks))),
        "HF_HUB_OFFLINE": "1", "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }  # fmt: skip
