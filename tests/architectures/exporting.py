"""What every builder of an architecture needs: fixed seeds, exporting, example inputs beside the model.

Builders run in a process of their own (`python -m tests.architectures.build`): torch and transformers take
seconds and hundreds of megabytes, which the tests should not carry.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPSET = 18
Feeds = dict[str, NDArray[Any]]
Axes = dict[int, str]


def export(
    module: Any,
    example: Sequence[Any],
    path: Path,
    inputs: Sequence[str],
    outputs: Sequence[str],
    dynamic: Sequence[Any],
    *,
    forward: Callable[..., Any] | None = None,
    opset: int = OPSET,
) -> None:
    """Export as users do: torch.onnx with dynamo, named dynamic axes, weights in external data.

    `dynamic` has the structure of `example`, with {axis: name} for every tensor. `forward` is what to
    export, where that is not simply the module: a function that calls the module or its parts.
    """
    import torch

    class Exported(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any) -> Any:
            return (forward or self.module)(*args)

    with torch.no_grad():
        torch.onnx.export(
            Exported().eval(),
            tuple(example),
            str(path),
            dynamo=True,
            opset_version=opset,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=(tuple(dynamic),),
            external_data=True,
            verbose=False,
        )


def randomise(module: Any, seed: int) -> Any:
    """Make every vector parameter (biases, normalisation weights) random: a bias added twice must show."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return module


def settle(module: Any, seed: int, *inputs: Any) -> Any:
    """Give BatchNorms random weights and the statistics of random inputs: values then stay near one."""
    import torch

    randomise(module, seed)
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = None  # statistics are then averages over all batches
    module.train()
    with torch.no_grad():
        for _ in range(2):
            module(*inputs)
    return module.eval()


def save_feeds(path: Path, *feeds: Feeds) -> None:
    """Keep example inputs beside the model, as feeds_0.npz and so on."""
    for number, arrays in enumerate(feeds):
        np.savez(path.parent / f"feeds_{number}.npz", **arrays)  # type: ignore[arg-type]  # its stub wants a bool


def tokens(vocabulary: int, batch: int, sequence: int, seed: int = 7) -> NDArray[np.int64]:
    """Random token numbers, int64 [batch, sequence]."""
    return np.random.default_rng(seed).integers(0, vocabulary, (batch, sequence), dtype=np.int64)


def padded(batch: int, sequence: int) -> NDArray[np.int64]:
    """An attention mask, int64 [batch, sequence]: each row has fewer tokens than the one before."""
    lengths = np.linspace(sequence, max(2, sequence // 2), batch).astype(np.int64)
    return (np.arange(sequence)[None] < lengths[:, None]).astype(np.int64)


def normal(*shape: int, seed: int = 8) -> NDArray[np.float32]:
    """Random float32 values of variance one."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
