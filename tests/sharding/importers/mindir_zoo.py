"""Small networks of MindSpore's model zoo: `python mindir_zoo.py FOLDER`, by a Python that has mindspore 2.0.

The version 1 files of mobilenetv2_tiny and gpt_tiny in tests/data/mindir were made by it.
"""

import sys
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, context, export, nn, ops

context.set_context(mode=context.GRAPH_MODE, device_target="CPU")
rng = np.random.default_rng(7)


def drawn(*shape, scale=1.0):
    return Tensor((rng.standard_normal(shape) * scale).astype(np.float32))


def convolution(inputs, outputs, kernel=3, stride=1, group=1):
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, group=group, has_bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    ]


class InvertedResidual(nn.Cell):
    def __init__(self, inputs, outputs, stride, expansion):
        super().__init__()
        hidden = inputs * expansion
        layers = [] if expansion == 1 else convolution(inputs, hidden, 1)
        layers += convolution(hidden, hidden, 3, stride, hidden)
        layers += [nn.Conv2d(hidden, outputs, 1), nn.BatchNorm2d(outputs)]
        self.conv = nn.SequentialCell(layers)
        self.residual = stride == 1 and inputs == outputs

    def construct(self, x):
        y = self.conv(x)
        if self.residual:
            y = x + y
        return y


class MobileNetV2(nn.Cell):
    def __init__(self):
        super().__init__()
        layers, channels = convolution(3, 8, 3, 2), 8
        for expansion, outputs, count, stride in ((1, 8, 1, 1), (6, 8, 2, 2), (6, 12, 2, 2), (6, 16, 1, 2)):
            for place in range(count):
                layers.append(InvertedResidual(channels, outputs, stride if place == 0 else 1, expansion))
                channels = outputs
        self.features = nn.SequentialCell(layers + convolution(channels, 32, 1))
        self.mean = ops.ReduceMean(False)
        self.head = nn.SequentialCell([nn.Dropout(p=0.2), nn.Dense(32, 7)])

    def construct(self, x):
        return self.head(self.mean(self.features(x), (2, 3)))


class Attention(nn.Cell):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Dense(width, width), nn.Dense(width, width), nn.Dense(width, width)
        self.o = nn.Dense(width, width)
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.weighted = ops.BatchMatMul()
        self.softmax = nn.Softmax(-1)
        self.mask = Tensor(np.triu(np.full((length, length), -10000.0, np.float32), 1))

    def split(self, x):
        b, t, c = x.shape
        return x.reshape((b, t, self.heads, c // self.heads)).transpose((0, 2, 1, 3))

    def construct(self, x):
        b, t, c = x.shape
        scores = self.scores(self.split(self.q(x)), self.split(self.k(x))) / (c // self.heads) ** 0.5
        found = self.weighted(self.softmax(scores + self.mask[:t, :t]), self.split(self.v(x)))
        return self.o(found.transpose((0, 2, 1, 3)).reshape((b, t, c)))


class Block(nn.Cell):
    def __init__(self, width, heads, length):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.attention = Attention(width, heads, length)
        self.up, self.down = nn.Dense(width, 2 * width, activation="gelu"), nn.Dense(2 * width, width)

    def construct(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.down(self.up(self.ln2(x)))


class Gpt(nn.Cell):
    def __init__(self, words=41, width=16, heads=2, layers=2, length=12):
        super().__init__()
        self.words, self.width = words, width
        self.token = nn.Embedding(words, width)
        self.position = Parameter(drawn(length, width, scale=0.3), name="position")
        self.blocks = nn.CellList([Block(width, heads, length) for _ in range(layers)])
        self.ln = nn.LayerNorm((width,))
        self.logits = ops.MatMul(transpose_b=True)
        self.top = ops.TopK(True)

    def construct(self, ids):
        b, t = ids.shape
        x = self.token(ids) + self.position[:t]
        for block in self.blocks:
            x = block(x)
        found = self.logits(self.ln(x).reshape((-1, self.width)), self.token.embedding_table)
        found = found.reshape((b, t, self.words))
        values, places = self.top(ops.softmax(found[:, -1], -1), 3)
        return found, values, places, found.argmax(-1)


def words(*shape):
    return Tensor(rng.integers(0, 41, shape).astype(np.int32))


CASES = {
    "mobilenetv2_tiny": (MobileNetV2, [[drawn(1, 3, 32, 32)], [drawn(1, 3, 32, 32)]]),
    "gpt_tiny": (Gpt, [[words(2, 12)], [words(2, 12)]]),
}


def main(folder: Path) -> None:
    """Writes each network with its inputs and answers."""
    for name, (made, sets) in CASES.items():
        net = made()
        net.set_train(False)
        for item in net.get_parameters():
            if item.dtype == mindspore.float32:
                array = rng.standard_normal(item.shape).astype(np.float32) * 0.4
                positive = "variance" in item.name or "gamma" in item.name
                item.set_data(Tensor(np.abs(array) + 0.5 if positive else array))
        arrays = {}
        for number, inputs in enumerate(sets):
            outputs = net(*inputs)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            arrays.update({f"s{number}_in_{i}": item.asnumpy() for i, item in enumerate(inputs)})
            arrays.update({f"s{number}_out_{i}": item.asnumpy() for i, item in enumerate(outputs)})
        place = folder / name
        place.mkdir(parents=True)
        np.savez(place / "io.npz", **arrays)
        export(net, *sets[0], file_name=str(place / "model_v1"), file_format="MINDIR")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
