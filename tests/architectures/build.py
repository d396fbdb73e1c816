"""Builds architectures: `python -m tests.architectures.build NAME=FILE.onnx ...`, bases before variants."""

import sys
from pathlib import Path

from tests.architectures import decoders, encoders, fused, generators, language, merged, variants, vision

MODULES = (language, fused, vision, encoders, decoders, merged, generators)
EXPORTED = {name: builder for module in MODULES for name, builder in module.BUILDERS.items()}


def main(targets: dict[str, Path]) -> None:
    """Build each name of `targets` at its path, if there is nothing; a variant's base is among them too."""
    for name, path in targets.items():
        if path.exists():
            continue
        if name in EXPORTED:
            import torch

            torch.manual_seed(0)
            EXPORTED[name](path)
        else:
            variants.build(name, targets[variants.BASES[name]], path)


if __name__ == "__main__":
    main({name: Path(path) for name, _, path in (item.partition("=") for item in sys.argv[1:])})
