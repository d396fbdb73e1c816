"""The sentence encoder as one ONNX file: BERT layers, mean pooling over the real tokens, unit vectors.

A program of its own (`python -m examples.minilm.export FILE.onnx`): torch and transformers load only here.
"""

import sys
from pathlib import Path

from examples.minilm.weights import weights_folder

OPSET = 18


def export(path: Path, weights: Path | None = None) -> None:
    """Write the encoder to `path` (opset 18, weights inside the file, 90 MB).

    Inputs `input_ids`, `attention_mask`: int64 [batch, sequence]. Outputs `sentence_embedding`: float32
    [batch, 384], of length one; `token_embeddings`: float32 [batch, sequence, 384].
    """
    import torch
    from transformers import BertModel

    class Encoder(torch.nn.Module):
        def __init__(self, bert: torch.nn.Module) -> None:
            super().__init__()
            self.bert = bert

        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            tokens = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            weight = attention_mask.unsqueeze(-1).to(tokens.dtype)
            # Mean over the tokens that are not padding, then L2 norm: what the weights were trained with.
            mean = (tokens * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=1), tokens

    bert = BertModel.from_pretrained(
        weights or weights_folder(),
        local_files_only=True,
        add_pooling_layer=False,
        attn_implementation="eager",
    )
    ids = torch.tensor([[101, 7592, 2088, 102], [101, 7592, 102, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    dynamic = {0: torch.export.Dim("batch", min=1, max=4096), 1: torch.export.Dim("sequence", min=2, max=512)}
    torch.onnx.export(
        Encoder(bert).eval(),
        (ids, mask),
        str(path),
        dynamo=True,
        opset_version=OPSET,
        input_names=["input_ids", "attention_mask"],
        output_names=["sentence_embedding", "token_embeddings"],
        dynamic_shapes={"input_ids": dynamic, "attention_mask": dynamic},
        external_data=False,
        verbose=False,
    )


if __name__ == "__main__":
    export(Path(sys.argv[1]))
