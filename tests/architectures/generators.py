"""Language models as ONNX Runtime GenAI's model builder writes them, in float32: attention, rotation and
caches are one operator, and layers without attention keep states of fixed size.

To export them takes the package onnxruntime-genai, which is asked for nothing else; their graphs are kept.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.architectures.exporting import Feeds, randomise, save_feeds, tokens
from tests.architectures.language import LAYERS, SPREAD

WORDS, LONGEST = 2048, 256
COMMON: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": LONGEST,
    "initializer_range": SPREAD,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
"""A head has 16 numbers."""
Configure = Callable[[Any], Any]
"""The configuration of a model, of what is in the package transformers."""


def _builder(configure: Configure, seed: int) -> Callable[[Path], None]:
    def build(path: Path) -> None:
        import transformers
        from onnxruntime_genai.models.builder import create_model, parse_extra_options

        config = configure(transformers)
        kind = transformers.AutoModelForCausalLM
        if hasattr(config, "text_config"):
            kind = transformers.AutoModelForImageTextToText
        model = randomise(kind.from_config(config), seed).eval()
        with (
            tempfile.TemporaryDirectory(prefix="genai.") as scratch,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            given, made, cache = (str(Path(scratch) / name) for name in ("given", "made", "cache"))
            model.save_pretrained(given)
            _write_tokenizer(transformers, given)
            options = parse_extra_options("", given, made, "fp32", "cpu", cache, [])
            create_model("", given, made, "fp32", "cpu", cache, **options)
            said = json.loads((Path(made) / "genai_config.json").read_text(encoding="utf-8"))
            _move(Path(made) / "model.onnx", path)
        _save_feeds(path, said["model"]["decoder"]["head_size"])

    build.__doc__ = configure.__doc__
    return build


def _write_tokenizer(transformers: Any, folder: str) -> None:
    """The builder wants one, and reads nothing of it."""
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)


def _move(made: Path, path: Path) -> None:
    """The model, with its weights where other builders have them."""
    import onnx

    model = onnx.load(made)
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=1024)
    shutil.rmtree(made.parent)


def _save_feeds(path: Path, head_size: int) -> None:
    """Steps of one token with filled caches, and a prompt."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def feeds(batch: int, sequence: int, before: int) -> Feeds:
        random, made = np.random.default_rng(50), Feeds()
        lengths = {"batch_size": batch, "sequence_length": sequence, "past_sequence_length": before}
        lengths["kv_cache_dim"] = head_size
        for item in session.get_inputs():
            shape = [
                lengths.get(axis, before + sequence) if isinstance(axis, str) else axis for axis in item.shape
            ]
            if item.name == "input_ids":
                made[item.name] = tokens(WORDS, batch, sequence)
            elif item.type == "tensor(int64)" and "position" in item.name:
                made[item.name] = np.broadcast_to(np.arange(before, before + sequence), shape).copy()
            elif item.type == "tensor(int64)":
                made[item.name] = np.ones(shape, np.int64)
            else:
                values = random.standard_normal(shape) if before else np.zeros(shape)
                made[item.name] = values.astype(np.float32)
        return made

    save_feeds(path, feeds(2, 1, 14), feeds(1, 9, 0))


def nemotron(of: Any) -> Any:
    """Nemotron: a norm whose weights are one more, squared activations without a gate."""
    return of.NemotronConfig(**COMMON, head_dim=32)


def hunyuan(of: Any) -> Any:
    """HunYuan: heads of queries and keys are normalised after their rotation."""
    return of.HunYuanDenseV1Config(**COMMON, head_dim=16)


def lfm2(of: Any) -> Any:
    """LFM2: short convolutions, which keep their last inputs, around one layer of attention."""
    kinds = ["conv", "full_attention", "conv"]
    return of.Lfm2Config(**COMMON, block_auto_adjust_ff_dim=False, layer_types=kinds)


def granite_hybrid(of: Any) -> Any:
    """Granite 4 with layers of attention only: the builder writes no others. Logits are scaled."""
    return of.GraniteMoeHybridConfig(
        **COMMON,
        layer_types=["attention"] * LAYERS,
        num_local_experts=0,
        shared_intermediate_size=512,
        position_embedding_type="rope",
        logits_scaling=3.0,
        embedding_multiplier=2.0,
        residual_multiplier=0.5,
    )


def phi3_long(of: Any) -> Any:
    """Phi-3 with LongRoPE: an `If` on the length picks the table of rotations."""
    rope = {
        "rope_type": "longrope",
        "type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.1] * 8,
        "long_factor": [3.0] * 8,
        "original_max_position_embeddings": 64,
    }
    return of.Phi3Config(**COMMON, original_max_position_embeddings=64, rope_parameters=rope)


def mistral3(of: Any) -> Any:
    """The language model of Mistral 3, whose images are another model's."""
    return _of_text(of.Mistral3Config(), {"head_dim": 16, "sliding_window": None})


def qwen3_5(of: Any) -> Any:
    """Qwen3.5: gated linear attention, which keeps a state of fixed size, and a layer of gated attention."""
    more = {
        "head_dim": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    }
    return _of_text(of.Qwen3_5Config(), more)


def _of_text(config: Any, more: dict[str, Any]) -> Any:
    """The same with this language model, and a small model of images, which is not exported."""
    config.text_config = type(config.text_config)(**COMMON | more)
    small = {"depth": 1, "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2}
    small |= {"num_attention_heads": 2, "out_hidden_size": COMMON["hidden_size"]}
    for name, value in small.items():
        if hasattr(config.vision_config, name):
            setattr(config.vision_config, name, value)
    return config


CONFIGURED: dict[str, Configure] = {
    "nemotron": nemotron,
    "hunyuan": hunyuan,
    "lfm2": lfm2,
    "granite_hybrid": granite_hybrid,
    "phi3_long": phi3_long,
    "mistral3": mistral3,
    "qwen3_5": qwen3_5,
}
BUILDERS = {name: _builder(one, 60 + number) for number, (name, one) in enumerate(CONFIGURED.items())}
