"""Networks with branches and loops. Exported by `scripts/mindir_nets.py`."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from tests.sharding.importers.mindir_export import case, f, i, n


class Blk(nn.Cell):
    def __init__(self):
        super().__init__()
        self.d = nn.Dense(4, 4)

    def construct(self, x, k):
        if k > 1:
            return self.d(x)
        return ops.relu(self.d(x))


@case("flow_loop_lstm", [[f(5, 2, 3), n(5)], [f(5, 2, 3), n(2)]])
class FlowLoopLstm(nn.Cell):
    def __init__(self):
        super().__init__()
        self.c = nn.LSTMCell(3, 4)
        self.o = nn.Dense(4, 2)

    def construct(self, x, n):
        h = ops.zeros((2, 4), ms.float32)
        c = ops.zeros((2, 4), ms.float32)
        t = n * 0
        y = ops.zeros((5, 2, 2), ms.float32)
        while t < n:
            h, c = self.c(x[t], (h, c))
            y[t] = self.o(h)
            t += 1
        return (y, h)


@case(
    "flow_dyn_multi",
    [[f(2, 5), f(2, 3), f(5, 4)], [f(1, 7), f(1, 6), f(7, 4)]],
    [[None, None], [None, None], [None, 4]],
)
class FlowDynMulti(nn.Cell):
    def construct(self, a, b, w):
        c = ops.cat((a, b), 1)
        d = ops.matmul(a, w)
        e = ops.expand_dims(a, 2) * ops.expand_dims(b, 1)
        g = ops.softmax(e.sum(2), -1)
        h = ops.pad(a, (0, b.shape[1]))
        k = c.reshape(-1, 1)
        p = ops.split(w, 1, 1)[1]
        m = ops.reduce_sum(ops.square(c), 1)
        t = ops.topk(a, 2)[0]
        o = ops.ones((a.shape[1], b.shape[1]), ms.float32)
        return (c, d, e, g, h, k, p, m, t, o, ops.concat((o, w), 1))


@case("flow_acc_dict", [[f(3, 4), n(2)]])
class FlowAccDict(nn.Cell):
    def construct(self, x, n):
        d = {"a": x, "b": x * 2}
        i = n * 0
        while i < n:
            d["a"] = d["a"] + d["b"]
            i = i + 1
        return (d["a"], d["b"])


@case("flow_nested_tuple", [[f(3, 4), n(0)], [f(3, 4), n(2)], [f(3, 4), n(5)]])
class FlowNestedTuple(nn.Cell):
    def construct(self, x, n):
        i = n * 0
        st = (x, x * 2)
        cnt = n * 0
        while i < n:
            a, b = st
            if a.sum() > 0:
                j = i * 0
                while j < 2:
                    a = a - b * 0.1
                    j = j + 1
                    if a.max() < 0:
                        break
            else:
                a = a + ops.abs(b)
            if i % 2 == 0:
                i = i + 1
                st = (a, b)
                continue
            cnt = cnt + 1
            st = (b, a)
            i = i + 1
        return (st, cnt)


@case("flow_in_if_while_ret", [[f(3, 4), n(0)], [f(3, 4), n(3)], [f(3, 4) * 5, n(9)]])
class FlowInIfWhileRet(nn.Cell):
    def construct(self, x, n):
        if n > 0:
            i = n * 0
            while i < n:
                x = x * 1.3
                if x.abs().max() > 4:
                    return (x, i)
                i = i + 1
            return (x + 1, i)
        return (x - 1, n)


@case("flow_shape_arith", [[f(4, 6, 2)], [f(1, 8, 2)], [f(3, 2, 2)]], [[None, None, 2]])
class FlowShapeArith(nn.Cell):
    def construct(self, x):
        B, T, C = x.shape
        h = T // 2
        y = x.reshape(B, h, 2, C).transpose(0, 2, 1, 3).reshape(B * 2, h * C)
        z = x[:, h:, :]
        w = x[:, :h]
        p = ops.zeros((B, T * 2 + 1), ms.float32)
        q = ops.cat((z, w), 1)
        r = ops.tile(x[:, :1], (1, T, 1))
        s = ops.broadcast_to(x[:, 0:1, 0:1], (B, T, C))
        u = ops.arange(T) * B
        v = ops.full((B, 1), T, dtype=ms.int64)
        return (y, z, w, p, q, r, s, u, v)


@case("flow_cell_twice", [[f(3, 4), n(1)], [f(3, 4), n(3)]])
class FlowCellTwice(nn.Cell):
    def __init__(self):
        super().__init__()
        self.b = Blk()
        self.l = nn.CellList([Blk(), Blk()])

    def construct(self, x, k):
        x = self.b(self.b(x, k), k + 1)
        for c in self.l:
            x = c(x, k) + x
        return x


@case("greedy_while", [[i(1, 3, hi=11), n(8)], [i(1, 3, hi=11), n(3)]])
class GreedyWhile(nn.Cell):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(11, 8)
        self.o = nn.Dense(8, 11)
        self.buf = Tensor(np.zeros((1, 10), np.int32))
        self.ar = Tensor(np.arange(10).astype(np.int32))

    def construct(self, p, N):
        b = ops.cat((p, ops.zeros((1, 7), ms.int32)), 1)
        k = ops.ones((), ms.int32) * 3
        while k < N:
            m = (self.ar < k).astype(ms.float32)
            x = (self.e(b) * m.reshape(1, 10, 1)).sum(1) / k.astype(ms.float32)
            t = ops.argmax(self.o(x), -1).astype(ms.int32)
            b = ops.where(self.ar == k, t, b)
            if t.sum() == 4:
                break
            k = k + 1
        return (b, k)


@case("loops_in_loop", [[f(3, 4), f(3, 4), n(0)], [f(3, 4), f(3, 4), n(3)], [f(3, 4) + 0.5, f(3, 4), n(2)]])
class LoopsInLoop(nn.Cell):
    def __init__(self):
        super().__init__()
        self.d = nn.Dense(4, 4)

    def g(self, a, k):
        if k > 1:
            return ops.tanh(a)
        return a * 0.8

    def construct(self, x, y, n):
        i = n * 0
        s = x.mean()
        z = x * 0.5
        x = x * 1
        y = y * 1
        j0 = n * 0
        while j0 < n and s < 20:
            j0 = j0 + 1
            z = x.abs() * 0.5
            j1 = n * 0
            while j1 < n and s < 20:
                j1 += 1
                if z.mean() > y.mean():
                    continue
                x = self.g(z, i)
            y = ops.softmax(z, 1) + y * 0.3
            j2 = n * 0
            while j2 < n:
                j2 += 1
                if i > n:
                    break
                x += y * 0.5
                x.add_(y)
                t = (x, s)
                x = t[0] * 0.9
        i = i + 1
        x = ops.where(y > z, y, y)
        j3 = n * 0
        while j3 < n:
            j3 = j3 + 1
            y = y.abs() * 0.5
            z, y = (y, z * 1)
            y, x = (x, y * 1)
            x = ops.clamp(z, -3, 3)
        y *= 0.9
        return (x, y, z, s, i)


@case(
    "breaks_and_continues",
    [[f(3, 4), f(3, 4), n(0)], [f(3, 4), f(3, 4), n(3)], [f(3, 4) + 0.5, f(3, 4), n(2)]],
)
class BreaksAndContinues(nn.Cell):
    def __init__(self):
        super().__init__()
        self.d = nn.Dense(4, 4)

    def g(self, a, k):
        if k > 1:
            return ops.tanh(a)
        return a * 0.8

    def construct(self, x, y, n):
        i = n * 0
        s = x.mean()
        z = x * 0.5
        x = x * 1
        y = y * 1
        s *= 0.5
        y = z[:, ::2].tile((1, 2))
        j0 = n * 0
        while j0 < 3:
            j0 = j0 + 1
            z, y = (y, z * 1)
            j1 = n * 0
            while j1 < 3 and s < 20:
                j1 = j1 + 1
                if z.sum() > 0:
                    break
                if i % 2 == 0:
                    if n == 3:
                        continue
                    s = y.mean() * 2
                    z[1] = y[0] * 0.5
                else:
                    y = ops.tanh(x)
                    if i % 2 == 0:
                        continue
                if i % 2 == 0:
                    continue
                z = y - s
            x, y = (y, x * 1)
        return (x, y, z, s, i)


@case(
    "set_items_in_branches",
    [[f(3, 4), f(3, 4), n(0)], [f(3, 4), f(3, 4), n(3)], [f(3, 4) + 0.5, f(3, 4), n(2)]],
)
class SetItemsInBranches(nn.Cell):
    def __init__(self):
        super().__init__()
        self.d = nn.Dense(4, 4)

    def g(self, a, k):
        return a * 0.5 + 1.0

    def construct(self, x, y, n):
        i = n * 0
        s = x.mean()
        z = x * 0.5
        x = x * 1
        y = y * 1
        s *= 0.5
        if i % 2 == 0:
            x, y = (y, x * 1)
            s = x.mean()
        else:
            x += y * 0.5
        x += 0.25
        y = z * 0.7 + y * 0.1
        j0 = n * 0
        while j0 < n - 1:
            j0 = j0 + 1
            y -= s
            y[1] = y[0] * 0.5
            y = y - y.mean()
        if y.mean() > z.mean():
            t = (x, s)
            x = t[0] * 0.9
            j1 = n * 0
            while j1 < n - 1:
                j1 = j1 + 1
                x[:, 1] = 0.5
            x[0, 3] = 1.0
            y = x - s
        elif n == 3:
            z, x = (x, z * 1)
            y[1] = y[0] * 0.5
            y[:, 1] = 0.5
        else:
            j2 = n * 0
            while j2 < n - 1 and s < 20:
                j2 = j2 + 1
                if not s > 0.5:
                    continue
                x += z * 0.5
                x = ops.softmax(z, 1) + z * 0.3
            j3 = n * 0
            while j3 < n - 1:
                j3 += 1
                z = y * 0.7 + y * 0.1
                z[:, 1] = 0.5
                if y.sum() > 0 and n > 1:
                    break
                z = ops.softmax(z, 1) + x * 0.3
        z = ops.tanh(y)
        return (x, y, z, s, i)


@case(
    "branches_and_loops", [[f(3, 4), f(3, 4), n(0)], [f(3, 4), f(3, 4), n(3)], [f(3, 4) + 0.5, f(3, 4), n(2)]]
)
class BranchesAndLoops(nn.Cell):
    def __init__(self):
        super().__init__()
        self.d = nn.Dense(4, 4)

    def g(self, a, k):
        if k > 1:
            return ops.tanh(a)
        return a * 0.8

    def construct(self, x, y, n):
        i = n * 0
        s = x.mean()
        z = x * 0.5
        x = x * 1
        y = y * 1
        j0 = n * 0
        while j0 < n - 1:
            j0 = j0 + 1
            j1 = n * 0
            while j1 < n - 1:
                j1 += 1
                x.mul_(0.5)
                z = z.abs() * 0.5
                s = x.mean()
            s = z.mean() + s * 0.5
            if s > 1.0:
                y, z = (z, y * 1)
            else:
                y = ops.where(y > x, y, x)
            x = ops.tanh(y)
        x, z = (z, x * 1)
        if n > 2:
            j2 = n * 0
            while j2 < n:
                j2 += 1
                s += z.max() * 0.1
                t = (x, s)
                x = t[0] * 0.9
                x = ops.clamp(z, -3, 3)
                s = z.mean() + s * 0.5
            y = self.g(x, i)
            x = self.g(y, i)
            y = z * 0.7 + y * 0.1
        i = i + 1
        x = self.g(x, i)
        return (x, y, z, s, i)
