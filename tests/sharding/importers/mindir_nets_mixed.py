"""Parts of models: attention, detection, routing, convolutions. Exported by `scripts/mindir_nets.py`."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from tests.sharding.importers.mindir_export import case, f, n


@case("convs_1d_3d", [[f(2, 4, 20), f(1, 2, 6, 8, 8)]])
class Convs1D3D(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv1d(4, 6, 3, 2, "same", has_bias=True)
        self.b = nn.Conv1d(4, 6, 5, 1, "pad", 2, dilation=1, group=2)
        self.c = nn.Conv3d(2, 4, 3, padding=1, pad_mode="pad", has_bias=True)
        self.p = nn.MaxPool3d(2, 2)
        self.ap = nn.AvgPool1d(3, 2)
        self.mp = nn.MaxPool1d(3, 2)
        self.bn = nn.BatchNorm3d(4)
        self.t = nn.Conv3dTranspose(4, 2, 2, 2, pad_mode="valid")

    def construct(self, x, v):
        y = self.bn(self.c(v))
        return (self.a(x), self.b(x), self.p(y), self.ap(x), self.mp(x), self.t(y))


@case("dyn_eye", [[f(3, 4), f(5, 4)], [f(3, 4), f(5, 4)]], [[None, 4], [None, None]])
class DynEye(nn.Cell):
    def construct(self, x, y):
        return (
            ops.full_like(x, 2),
            ops.zeros_like(y),
            ops.ones((x.shape[0], 3), ms.float32),
            ops.eye(x.shape[0]),
            ops.tril(ops.ones((y.shape[0], y.shape[0]), ms.float32)),
        )


@case("dyn_variance", [[f(3, 4), f(5, 4)], [f(3, 4), f(5, 4)]], [[None, 4], [None, None]])
class DynVariance(nn.Cell):
    def construct(self, x, y):
        return (x.mean(0), x.var(0), x.std(), x.mean(1, keep_dims=True))


@case("affine_grids", [[f(2, 2, 3), f(1, 3, 4)]])
class AffineGrids(nn.Cell):
    def construct(self, t, u):
        return (
            ops.affine_grid(t, (2, 1, 3, 5)),
            ops.affine_grid(t, (2, 1, 4, 4), True),
            ops.affine_grid(u, (1, 1, 2, 3, 4)),
            ops.affine_grid(t, (2, 1, 1, 5), True),
            ops.affine_grid(t, (2, 1, 1, 5)),
        )


@case(
    "decoder_cache",
    [[f(2, 1, 16), f(2, 4, 8, 4), f(2, 4, 8, 4), n(3)], [f(2, 1, 16), f(2, 4, 8, 4), f(2, 4, 8, 4), n(7)]],
)
class DecoderCache(nn.Cell):
    def __init__(self):
        super().__init__()
        self.q = nn.Dense(16, 16)
        self.k = nn.Dense(16, 16)
        self.v = nn.Dense(16, 16)
        self.ar = Tensor(np.arange(8).astype(np.int32))
        self.o = nn.Dense(16, 16)

    def construct(self, x, kc, vc, p):
        q = self.q(x).reshape(2, 1, 4, 4).transpose(0, 2, 1, 3)
        k = self.k(x).reshape(2, 1, 4, 4).transpose(0, 2, 1, 3)
        v = self.v(x).reshape(2, 1, 4, 4).transpose(0, 2, 1, 3)
        m = (self.ar == p).astype(ms.float32).reshape(1, 1, 8, 1)
        kc = kc * (1 - m) + k * m
        vc = vc * (1 - m) + v * m
        a = ops.matmul(q, kc.transpose(0, 1, 3, 2)) / 2.0
        a = a.masked_fill(self.ar > p, -1000000000.0)
        a = ops.softmax(a)
        y = ops.matmul(a, vc).transpose(0, 2, 1, 3).reshape(2, 1, 16)
        return (self.o(y), kc, vc)


@case(
    "cache_concat_dyn",
    [
        [f(2, 1, 16), f(2, 4, 3, 4), f(2, 4, 3, 4)],
        [f(2, 2, 16), f(2, 4, 9, 4), f(2, 4, 9, 4)],
        [f(1, 1, 16), f(1, 4, 0, 4), f(1, 4, 0, 4)],
    ],
    [[None, None, 16], [None, 4, None, 4], [None, 4, None, 4]],
)
class CacheConcatDyn(nn.Cell):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Dense(16, 48)
        self.o = nn.Dense(16, 16)

    def construct(self, x, kc, vc):
        B, T, _ = x.shape
        q, k, v = self.qkv(x).split(16, -1)
        q = q.reshape(B, T, 4, 4).transpose(0, 2, 1, 3)
        k = k.reshape(B, T, 4, 4).transpose(0, 2, 1, 3)
        v = v.reshape(B, T, 4, 4).transpose(0, 2, 1, 3)
        kc = ops.cat((kc, k), 2)
        vc = ops.cat((vc, v), 2)
        a = ops.softmax(ops.matmul(q, kc.swapaxes(-1, -2)) * 0.5, -1)
        return (self.o(ops.matmul(a, vc).transpose(0, 2, 1, 3).reshape(B, T, 16)), kc, vc)


@case("moe", [[f(5, 8)], [f(5, 8)]])
class Moe(nn.Cell):
    def __init__(self):
        super().__init__()
        self.g = nn.Dense(8, 4, has_bias=False)
        self.w1 = Parameter(Tensor(f(4, 8, 16)), name="w1")
        self.w2 = Parameter(Tensor(f(4, 16, 8)), name="w2")

    def construct(self, x):
        p = ops.softmax(self.g(x), -1)
        v, ix = ops.topk(p, 2)
        v = v / v.sum(-1, keepdims=True)
        m = ops.zeros_like(p)
        m = ops.tensor_scatter_elements(m, ix, v, 1)
        oh = ops.one_hot(ix, 4, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        m2 = (oh * v[..., None]).sum(1)
        h = ops.relu(ops.bmm(ops.broadcast_to(x, (4, 5, 8)), self.w1))
        y = ops.bmm(h, self.w2)
        out = (y * m.T[..., None]).sum(0)
        pos = ops.cumsum(oh.sum(1), 0)
        sel = self.w1[ix[:, 0]]
        z = ops.bmm(x[:, None], sel).squeeze(1)
        return (out, m2, ix, pos, z)


@case("det_decode", [[f(1, 12, 4, 4)]])
class DetDecode(nn.Cell):
    def __init__(self):
        super().__init__()
        self.an = Tensor(f(2, 2, lo=1, hi=4))

    def construct(self, x):
        y = x.reshape(1, 2, 6, 4, 4).transpose(0, 1, 3, 4, 2)
        gx, gy = ops.meshgrid(
            ops.arange(4).astype(ms.float32), ops.arange(4).astype(ms.float32), indexing="xy"
        )
        g = ops.stack((gx, gy), -1)
        xy = (ops.sigmoid(y[..., :2]) * 2 - 0.5 + g) * 8.0
        wh = (ops.sigmoid(y[..., 2:4]) * 2) ** 2 * self.an.reshape(1, 2, 1, 1, 2)
        b = ops.cat((xy - wh / 2, xy + wh / 2), -1).reshape(-1, 4)
        sc = (ops.sigmoid(y[..., 4:5]) * ops.sigmoid(y[..., 5:])).reshape(-1)
        v, ix = ops.topk(sc, 5)
        bb = b[ix]
        iou = ops.iou(bb, bb)
        ss, _ = ops.sort(sc, descending=True)
        lt = ops.maximum(bb[:, None, :2], bb[None, :, :2])
        rb = ops.minimum(bb[:, None, 2:], bb[None, :, 2:])
        wh2 = ops.clamp(rb - lt, min=0)
        inter = wh2[..., 0] * wh2[..., 1]
        return (bb, v, ix, iou, ss, inter)


@case("get_items", [[f(4, 5, 6), n([2, 0]), n(1)]])
class GetItems(nn.Cell):
    def construct(self, x, ix, k):
        return (
            x[1:],
            x[::2],
            x[:, 1:4:2],
            x[..., -1],
            x[-1],
            x[:, -3:-1],
            x[None],
            x[:, None, 2],
            x[..., None],
            x[1, ..., ::3],
            x[ix],
            x[:, ix],
            x[ix, ix],
            x[k],
            x[:, k],
            x[0][1][2],
            x[1:3, [0, 2]],
            x[:2],
            x[(0, 2),],
            x[...],
            x[:, :, -2:],
            x[ix][:, 1],
            x[ix, 1:3],
            x[..., ix],
            x[ix[0]],
            x[2:100],
        )
