"""A transformer layer as both of torch's exporters write it, at old and new opsets, with symbolic axes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharding
from tests.sharding import lockstep

torch = pytest.importorskip("torch", reason="torch exports the models of this test; pip install torch")


class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Embedding, one pre-norm attention block and one feed-forward block."""

    def __init__(self, width: int = 48, heads: int = 12, words: int = 60) -> None:
        super().__init__()
        self.heads = heads
        self.words = torch.nn.Embedding(words, width)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.projections = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(4))
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        batch, length, width = x.shape
        y = self.norms[0](x)
        q, k, v = (
            projection(y).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for projection in self.projections[:3]
        )
        weights = torch.softmax(q @ k.transpose(2, 3) / (width // self.heads) ** 0.5, -1)
        x = x + self.projections[3]((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


def _export(path: Path, dynamo: bool, opset: int) -> None:
    torch.manual_seed(0)
    ids = torch.arange(10).reshape(2, 5)
    names: dict[str, Any] = {"input_names": ["ids"], "output_names": ["y"], "opset_version": opset}
    if dynamo:
        axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", min=2)}
        torch.onnx.export(
            Layer().eval(), (ids,), path, dynamo=True, dynamic_shapes=(axes,), verbose=False, **names
        )
    else:
        axes = {"ids": {0: "batch", 1: "length"}}
        torch.onnx.export(Layer().eval(), (ids,), path, dynamo=False, dynamic_axes=axes, **names)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize(("dynamo", "opset"), [(False, 11), (False, 14), (False, 17), (True, 18), (True, 20)])
def test_transformer_layer(tmp_path: Path, dynamo: bool, opset: int) -> None:
    path = tmp_path / "model.onnx"
    _export(path, dynamo, opset)
    for ranks in (2, 3, 4):
        manifest = sharding.slice_model(path, ranks, tmp_path / "slices")
        # One sum after attention, one after the feed-forward block, and the embedding's hidden axis gathered.
        assert sorted(item.op for item in manifest.collectives) == ["AllGather", "AllReduce", "AllReduce"]
        assert manifest.whole == {}
        for shape in ((1, 7), (3, 4)):
            ids = np.random.default_rng(ranks).integers(0, 60, shape)
            lockstep.assert_same(tmp_path / "slices", path, {"ids": ids})
