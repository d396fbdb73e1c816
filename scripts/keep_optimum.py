"""Exports small models with an encoder by optimum, and keeps their graphs in tests/data/graphs/optimum.zip.

    PYTHON scripts/keep_optimum.py

PYTHON is that of an environment of its own, with optimum-onnx, torch, transformers in the version that it
asks for, and onnx; the project needs none of it. Weights are random, and are not kept (see `tests.kept`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import kept  # noqa: E402  # the path above is needed first

ARCHIVE = kept.GRAPHS / "optimum.zip"
PARTS = {"encoder": "encoder_model.onnx", "decoder": "decoder_model_merged.onnx"}
WORDS = 300
"""Of each model, as `tests.launcher.generation.test_optimum` says it."""


def whisper(of: Any) -> Any:
    """Whisper: sound as 16 numbers for each of 3000 moments."""
    config = of.WhisperConfig(
        vocab_size=WORDS,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        num_mel_bins=16,
        max_target_positions=64,
        init_std=0.2,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=2,
        decoder_start_token_id=3,
        begin_suppress_tokens=None,
    )
    return of.WhisperForConditionalGeneration(config)


def captioner(of: Any) -> Any:
    """GPT-2 that looks at images of 32 times 32 through a ViT."""
    seen = of.ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        initializer_range=0.2,
    )
    said = of.GPT2Config(
        vocab_size=WORDS,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=128,
        bos_token_id=0,
        eos_token_id=2,
        initializer_range=0.2,
    )
    config = of.VisionEncoderDecoderConfig.from_encoder_decoder_configs(seen, said)
    return of.VisionEncoderDecoderModel(config=config)


MODELS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "whisper": (
        whisper,
        "automatic-speech-recognition-with-past",
        {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16, "nb_max_frames": 3000},
    ),
    "captioner": (
        captioner,
        "image-to-text-with-past",
        {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}},
    ),
}
"""What makes each, what optimum calls its task, and what comes before it."""


def exported(name: str, folder: Path) -> dict[str, kept.Kept]:
    """The parts of a model, by name."""
    import torch
    import transformers
    from optimum.exporters.onnx import main_export

    make, task, before = MODELS[name]
    torch.manual_seed(0)
    make(transformers).eval().save_pretrained(folder / "given")
    (folder / "given" / "preprocessor_config.json").write_text(json.dumps(before), encoding="utf-8")
    main_export(
        str(folder / "given"),
        folder / "made",
        task=task,
        do_validation=False,
        library_name="transformers",
    )
    return {f"{name}_{part}": kept.strip(folder / "made" / file) for part, file in PARTS.items()}


def main() -> None:
    """Writes the archive."""
    found: dict[str, kept.Kept] = {}
    for name in MODELS:
        with tempfile.TemporaryDirectory(prefix="optimum.") as scratch:
            found |= exported(name, Path(scratch))
    made_by = kept.recipe(Path(__file__))
    kept.keep(ARCHIVE, ((name, made_by, graph) for name, graph in found.items()))
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
