"""Builds the model zoo of `tests.models`: `python -m tests.model_builders NAME FILE.onnx`.

Its own program because torch and transformers take seconds and hundreds of megabytes, which the tests should
not carry. Random models have a fixed seed, and every bias and normalisation weight is random too: a bias
added twice must show in the output.
"""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPSET = 18


def _export(
    module: Any,
    args: tuple[Any, ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    dynamic: dict[str, dict[int, str]],
) -> None:
    import torch

    dims = {
        name: {
            axis: torch.export.Dim(label, min=2 if label == "sequence" else 1) for axis, label in axes.items()
        }
        for name, axes in dynamic.items()
    }
    torch.onnx.export(
        module.eval(),
        args,
        str(path),
        dynamo=True,
        opset_version=OPSET,
        input_names=inputs,
        output_names=outputs,
        dynamic_shapes=tuple(dims[name] for name in inputs),
        external_data=True,
        verbose=False,
    )


def _randomise(module: Any, generator: Any) -> None:
    """Make every vector parameter (biases, normalisation weights) random, around its initial value."""
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def bert_base(path: Path) -> None:
    """BERT-base: 12 layers, 12 heads, hidden 768; input_ids and attention_mask to the last hidden state."""
    import torch
    from transformers import BertConfig, BertModel

    class LastHidden(torch.nn.Module):
        def __init__(self, bert: torch.nn.Module) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    # 0.05 instead of the usual 0.02: attention is then far from uniform, so that a wrong head or mask shows.
    config = BertConfig(initializer_range=0.05)
    config._attn_implementation = "eager"
    bert = BertModel(config, add_pooling_layer=False)
    _randomise(bert, torch.Generator().manual_seed(1))
    ids = torch.arange(2 * 8).reshape(2, 8)
    axes = {0: "batch", 1: "sequence"}
    names = ["input_ids", "attention_mask"]
    _export(
        LastHidden(bert),
        (ids, torch.ones_like(ids)),
        path,
        names,
        ["last_hidden_state"],
        dict.fromkeys(names, axes),
    )


def gpt2_lm(path: Path) -> None:
    """GPT-2 small with the language-model head, tied to the embedding of 50257 words."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    class Decoder(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=input_ids, use_cache=False).logits

    config = GPT2Config(initializer_range=0.05, use_cache=False)
    config._attn_implementation = "eager"
    model = GPT2LMHeadModel(config)
    _randomise(model, torch.Generator().manual_seed(2))
    ids = torch.arange(2 * 8).reshape(2, 8)
    axes = {"input_ids": {0: "batch", 1: "sequence"}}
    _export(Decoder(model), (ids,), path, ["input_ids"], ["logits"], axes)


def gpt2(path: Path) -> None:
    """GPT-2 small without its head: 12 layers, 12 heads, hidden 768; input_ids to the last hidden state.

    Cut out of `gpt2_lm`: an export of its own takes twenty seconds and differs by nothing but the head.
    """
    import onnx_ir as ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    from tests import models

    model = ir.load(models.get("gpt2_lm").path)
    (logits,) = model.graph.outputs
    head = logits.producer()
    assert head is not None and head.op_type == "MatMul"
    hidden = head.inputs[0]
    assert hidden is not None
    hidden.name = "last_hidden_state"
    model.graph.outputs[:] = [hidden]
    RemoveUnusedNodesPass()(model)
    ir.save(model, path, external_data=f"{path.name}.data")


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[Any]:
    from torch import nn

    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_in", nonlinearity="relu")
    return [conv, nn.BatchNorm2d(outputs)]


def _residual(body: Any, shortcut: Any, *, relu: bool) -> Any:
    import torch

    class Residual(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body
            self.shortcut = shortcut

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = self.body(x) + self.shortcut(x)
            return torch.relu(total) if relu else total

    return Residual()


def _settle(net: Any, generator: Any, shape: tuple[int, ...]) -> None:
    """Give the BatchNorms random weights and the statistics of random images: values then stay near one."""
    import torch

    _randomise(net, generator)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    net.train()
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(shape, generator=generator))
    net.eval()


def resnet18(path: Path) -> None:
    """A network of ResNet-18's layers (He et al. 2015, table 1), any batch and image size."""
    import torch
    from torch import nn

    def block(inputs: int, outputs: int, stride: int) -> Any:
        body = nn.Sequential(*_conv_bn(inputs, outputs, 3, stride), nn.ReLU(), *_conv_bn(outputs, outputs, 3))
        plain = inputs == outputs and stride == 1
        shortcut = nn.Identity() if plain else nn.Sequential(*_conv_bn(inputs, outputs, 1, stride))
        return _residual(body, shortcut, relu=True)

    layers = [*_conv_bn(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for outputs in (64, 128, 256, 512):
        layers += [block(inputs, outputs, 1 if outputs == inputs else 2), block(outputs, outputs, 1)]
        inputs = outputs
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    _settle(net, torch.Generator().manual_seed(3), (8, 3, 64, 64))
    axes = {0: "batch", 2: "height", 3: "width"}
    _export(net, (torch.randn(2, 3, 64, 96),), path, ["image"], ["scores"], {"image": axes})


def mobilenet_v2(path: Path) -> None:
    """A network of MobileNetV2's layers (Sandler et al. 2018, table 2), any batch; the older exporter."""
    import torch
    from torch import nn

    def block(inputs: int, outputs: int, stride: int, expansion: int) -> Any:
        hidden = inputs * expansion
        widen = [*_conv_bn(inputs, hidden, 1), nn.ReLU6()] if expansion != 1 else []
        depthwise = [*_conv_bn(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6()]
        body = nn.Sequential(*widen, *depthwise, *_conv_bn(hidden, outputs, 1))
        return _residual(body, nn.Identity(), relu=False) if stride == 1 and inputs == outputs else body

    layers = [*_conv_bn(3, 32, 3, 2), nn.ReLU6()]
    inputs = 32
    table = [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]
    for expansion, outputs, repeats, stride in table:
        for index in range(repeats):
            layers.append(block(inputs, outputs, stride if index == 0 else 1, expansion))
            inputs = outputs
    layers += [
        *_conv_bn(320, 1280, 1),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, 1000),
    ]
    net = nn.Sequential(*layers)
    _settle(net, torch.Generator().manual_seed(4), (8, 3, 64, 64))
    torch.onnx.export(
        net,
        (torch.randn(1, 3, 64, 64),),
        str(path),
        dynamo=False,
        opset_version=17,
        input_names=["image"],
        output_names=["scores"],
        dynamic_axes={"image": {0: "batch"}, "scores": {0: "batch"}},
        # Keeps the BatchNormalization nodes, which would otherwise be merged into the convolutions.
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
    )


def mlp(path: Path) -> None:
    """Four layers, 48 to 240 to 240 to 96 to 60, written node by node: Gemm and MatMul with Add."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(5)
    sizes = [48, 240, 240, 96, 60]
    nodes, weights = [], []
    value = "x"
    for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        weight = random.standard_normal((inputs, outputs), dtype=np.float32) / np.sqrt(np.float32(inputs))
        bias = random.standard_normal(outputs, dtype=np.float32)
        transposed = index == 2
        weights += [
            numpy_helper.from_array(np.ascontiguousarray(weight.T) if transposed else weight, f"w{index}"),
            numpy_helper.from_array(bias, f"b{index}"),
        ]
        linear = f"h{index}"
        if index % 2 == 0:
            nodes.append(
                helper.make_node("Gemm", [value, f"w{index}", f"b{index}"], [linear], transB=int(transposed))
            )
        else:
            nodes.append(helper.make_node("MatMul", [value, f"w{index}"], [f"m{index}"]))
            nodes.append(helper.make_node("Add", [f"m{index}", f"b{index}"], [linear]))
        value = "y" if index == len(sizes) - 2 else f"a{index}"
        nodes.append(helper.make_node(["Relu", "Tanh", "Relu", "Sigmoid"][index], [linear], [value]))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", sizes[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", sizes[-1]])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def minilm(path: Path) -> None:
    """The real sentence encoder of the main job."""
    from examples.minilm.export import export

    export(path)


BUILDERS: dict[str, Callable[[Path], None]] = {
    "minilm": minilm,
    "bert_base": bert_base,
    "gpt2": gpt2,
    "gpt2_lm": gpt2_lm,
    "resnet18": resnet18,
    "mobilenet_v2": mobilenet_v2,
    "mlp": mlp,
}


def main(name: str, path: Path) -> None:
    """Build one model at `path`."""
    if name not in {"mlp", "gpt2"}:
        import torch

        torch.manual_seed(0)
    BUILDERS[name](path)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
