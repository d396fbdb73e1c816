"""What the networks of `scripts/mindir_nets.py` share: their table, inputs, answers of MindSpore."""

import mindspore as ms
import numpy as np
from mindspore import Tensor

rng = np.random.default_rng(0)
CASES = {}


def f(*shape, lo=None, hi=None):
    if lo is None:
        return rng.standard_normal(shape).astype(np.float32)
    return rng.uniform(lo, hi, shape).astype(np.float32)


def i(*shape, hi=10):
    return rng.integers(0, hi, shape).astype(np.int32)


def n(values):
    return np.array(values, np.int32)


def case(name, examples, open_shapes=None):
    def register(cell):
        CASES[name] = (cell, examples, open_shapes)
        return cell

    return register


def flat(item):
    if isinstance(item, (tuple, list)):
        return [array for part in item for array in flat(part)]
    return [item.asnumpy()]


def drawn(parameter):
    """Other values than the layers' own zeros and ones."""
    shape, name = parameter.shape, parameter.name
    if "gamma" in name or "variance" in name:
        return rng.uniform(0.5, 1.5, shape)
    if len(shape) < 2:
        return rng.uniform(-0.5, 0.5, shape)
    return rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))


def make(name, folder):
    cell, examples, open_shapes = CASES[name]
    net = cell()
    net.set_train(False)
    for parameter in net.get_parameters():
        parameter.set_data(Tensor(drawn(parameter).astype(np.float32)))
    given = [Tensor(array) for array in examples[0]]
    if open_shapes:
        given = [Tensor(shape=s, dtype=t.dtype) for s, t in zip(open_shapes, given, strict=True)]
        net.set_inputs(*given)
    data = {}
    for number, arrays in enumerate(examples):
        outputs = flat(net(*map(Tensor, arrays)))
        data |= {f"s{number}_in_{place}": array for place, array in enumerate(arrays)}
        data |= {f"s{number}_out_{place}": array for place, array in enumerate(outputs)}
    ms.export(net, *given, file_name=str(folder / f"{name}.mindir"), file_format="MINDIR")
    np.savez(folder / f"{name}.npz", **data)
