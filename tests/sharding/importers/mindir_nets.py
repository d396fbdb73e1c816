"""Networks that MindSpore exports and runs: `python mindir_nets.py FOLDER`, by a Python that has mindspore.

The cases nested, early, for_range, while_break and dyn_rank in tests/data/mindir were made by it.
"""

import sys
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, context, export, nn, ops

context.set_context(mode=context.GRAPH_MODE, device_target="CPU")
rng = np.random.default_rng(0)


def drawn(*s):
    return Tensor(rng.standard_normal(s).astype(np.float32))


class WhileBreak(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(6, 6)

    def construct(self, x, n):
        i = n - n
        while i < n:
            x = ops.tanh(self.fc(x)) + x
            if x.sum() > 3.0:
                break
            i = i + 1
        return x * 2.0 + 1.0


class Nested(nn.Cell):
    def construct(self, x, n):
        i = n - n
        while i < n:
            j = n - n
            while j < i:
                x = ops.tanh(x) + 0.5
                j = j + 1
            if x.mean() > 0:
                x = x - 1.0
            elif x.sum() < -2.0:
                x = x * 0.5
            else:
                x = -x
            i = i + 1
        return x, i


class EarlyReturn(nn.Cell):
    def construct(self, x, n):
        if n > 3:
            return x + 1.0
        if n > 1:  # noqa: SIM108 - the branch is what is exported
            y = x * 2.0
        else:
            y = x - 2.0
        i = n - n
        while i < n:
            if y.sum() > 10.0:
                return y
            y = y * 1.5
            i = i + 1
        return -y


class ForRange(nn.Cell):
    def construct(self, x, n):
        s = x
        for k in range(3):
            if n > k:
                s = s + x * float(k + 1)
        while s.sum() < 50.0 and s.max() < 20.0:
            s = s * 2.0
            if s.min() < -5.0:
                continue
            s = s + 1.0
        return s


class DynRank(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Dense(8, 12)
        self.fc2 = nn.Dense(12, 3)

    def construct(self, x):
        return self.fc2(ops.relu(self.fc1(x)))


def number(n):
    return Tensor(np.array(n, np.int32))


CASES = {
    "while_break": (
        WhileBreak(),
        [[drawn(2, 6), number(0)], [drawn(2, 6), number(4)], [drawn(2, 6), number(40)]],
    ),
    "nested": (Nested(), [[drawn(2, 3), number(0)], [drawn(2, 3), number(4)]]),
    "early": (
        EarlyReturn(),
        [[drawn(2, 3), number(n)] for n in (0, 2, 3, 5)]
        + [[Tensor(rng.standard_normal((2, 3)).astype(np.float32) + 3), number(3)]],
    ),
    "for_range": (ForRange(), [[drawn(2, 3), number(n)] for n in (0, 2, 5)]),
    "dyn_rank": (DynRank(), [[drawn(4, 8)], [drawn(2, 3, 8)], [drawn(2, 2, 3, 8)]]),
}


def main(folder: Path) -> None:
    """Writes each network with its inputs and answers."""
    for name, (net, sets) in CASES.items():
        net.set_train(False)
        arrays = {}
        for number, inputs in enumerate(sets):
            outputs = net(*inputs)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            start = f"s{number}_" if number else ""
            arrays.update({f"{start}in_{i}": item.asnumpy() for i, item in enumerate(inputs)})
            arrays.update({f"{start}out_{i}": item.asnumpy() for i, item in enumerate(outputs)})
        place = folder / name
        place.mkdir(parents=True)
        np.savez(place / "io.npz", **arrays)
        example = sets[0]
        if name == "dyn_rank":
            example = [Tensor(shape=None, dtype=mindspore.float32)]
            net.set_inputs(*example)
        export(net, *example, file_name=str(place / "model"), file_format="MINDIR")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
