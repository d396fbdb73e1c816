"""Networks whose tensors are changed in place. Exported by `scripts/mindir_nets.py`."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from tests.sharding.importers.mindir_export import case, f, i, n


class Sub(nn.Cell):
    def construct(self, a, b):
        a += b
        return a * 2


@case("in_place_while", [[f(3, 4), n(0)], [f(3, 4), n(3)]])
class InPlaceWhile(nn.Cell):
    def construct(self, x, n):
        i = ops.zeros((), ms.int32)
        y = x * 2
        while i < n:
            y += x
            i += 1
        return (y, i)


@case("in_place_method_while", [[f(3, 4), n(0)], [f(3, 4), n(3)]])
class InPlaceMethodWhile(nn.Cell):
    def construct(self, x, n):
        i = n - n
        y = x * 2
        while i < n:
            y.add_(x)
            i = i + 1
        return y


@case("in_place_if", [[f(3, 4), n(0)], [f(3, 4), n(3)]])
class InPlaceIf(nn.Cell):
    def construct(self, x, n):
        y = x * 2
        if n > 1:
            y.mul_(3.0)
        else:
            y -= x
        return y + x


@case("in_place_resnet", [[f(1, 3, 8, 8)]])
class InPlaceResnet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 3, 3)
        self.b = nn.Conv2d(3, 3, 3, has_bias=True)

    def construct(self, x):
        idn = x
        out = ops.relu(self.a(x))
        out = self.b(out)
        out += idn
        out = ops.relu(out)
        out += 1
        out *= idn
        return out


@case("in_place_view", [[f(3, 4)]])
class InPlaceView(nn.Cell):
    def construct(self, x):
        z = x * 1
        w = z.view(4, 3)
        w.add_(1.0)
        return (z, w)


@case("in_place_alias", [[f(3, 4)]])
class InPlaceAlias(nn.Cell):
    def construct(self, x):
        z = x * 1
        w = z
        b = z + 1
        w += 2
        c = z * 3
        return (z, w, b, c)


@case("in_place_call", [[f(3, 4), f(4)]])
class InPlaceCall(nn.Cell):
    def __init__(self):
        super().__init__()
        self.s = Sub()

    def construct(self, x, y):
        z = x * 1
        w = self.s(z, y)
        return (z, w, self.s(z, y))


@case("in_place_for_list", [[f(3, 4), f(3, 4)]])
class InPlaceForList(nn.Cell):
    def construct(self, x, y):
        acc = ops.zeros_like(x)
        o = []
        for k in range(3):
            acc += x * float(k)
            o.append(acc * 1)
        x -= y
        return (o, acc, x)


@case("in_place_break", [[f(3, 4), n(5)], [f(3, 4) * 10, n(5)]])
class InPlaceBreak(nn.Cell):
    def construct(self, x, n):
        s = ops.zeros((), ms.float32)
        k = n * 0
        while k < n:
            s += x.sum()
            if s > 8:
                break
            k += 1
            x += 0.1
        return (s, k, x)


@case("in_place_int", [[i(3, 4), i(3, 4)]])
class InPlaceInt(nn.Cell):
    def construct(self, x, y):
        a = x * 1
        a += y
        a -= 1
        a *= y
        a //= 3
        b = a * 1
        b %= 4
        b |= y
        b &= 3
        b ^= 1
        c = y * 1
        c **= 2
        d = x.astype(ms.float32)
        d /= 3
        return (a, b, c, d)


@case("in_place_assign", [[f(3, 4)]])
class InPlaceAssign(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(f(3, 4)), name="w")
        self.m = Parameter(Tensor(f(4)), name="m", requires_grad=False)

    def construct(self, x):
        y = self.w * 1
        y += self.m
        x = x + self.w
        x += self.m
        return (x, y)


@case("in_place_setitem_loop", [[f(4, 3)]])
class InPlaceSetitemLoop(nn.Cell):
    def construct(self, x):
        y = ops.zeros((4, 3), ms.float32)
        for k in range(4):
            y[k] = x[3 - k] * k
        y[1:3] += 1
        y[:, 0] *= 2
        return y


@case("in_place_view2", [[f(3, 4)]])
class InPlaceView2(nn.Cell):
    def construct(self, x):
        z = x * 1
        w = z.swapaxes(0, 1)
        w += 1.0
        v = z[0]
        v += 2
        return (z, w, v)


@case("set_items", [[f(4, 5), f(5), n([1, 3]), n(2)]])
class SetItems(nn.Cell):
    def construct(self, x, y, ix, k):
        a = x * 1
        a[1:] = y
        b = x * 1
        b[0, 2] = 5.0
        c = x * 1
        c[ix] = y
        d = x * 1
        d[:, 1:3] = 0
        e = x * 1
        e[e > 0] = -1.0
        g = x * 1
        g[..., -1] += 2
        h = x * 1
        h[::2, ::2] = 7
        r = x * 1
        r[k] = y
        m = x * 1
        m[ix, ix] = 1.5
        p = x * 1
        p[:, ix] = x[:, :2]
        q = x * 1
        q[-1] = y * 2
        return (a, b, c, d, e, g, h, r, m, p, q)


@case("in_place_scalars", [[f(4, 5), f(5), n([1, 3]), n(2)], [f(4, 5), f(5), n([1, 3]), n(2)]])
class InPlaceScalars(nn.Cell):
    def construct(self, x, y, ix, k):
        q = x * 1
        q *= 2
        q -= 1
        q /= 3
        return q


@case("in_place_copy", [[f(4, 5), f(5), n([1, 3]), n(2)], [f(4, 5), f(5), n([1, 3]), n(2)]])
class InPlaceCopy(nn.Cell):
    def construct(self, x, y, ix, k):
        z = x * 1
        z.copy_(y)
        return z


@case("in_place_method", [[f(4, 5), f(5), n([1, 3]), n(2)], [f(4, 5), f(5), n([1, 3]), n(2)]])
class InPlaceMethod(nn.Cell):
    def construct(self, x, y, ix, k):
        z = x * 1
        z.add_(y)
        return z


@case("in_place_swap", [[f(3, 4), f(3, 4), n(k)] for k in (0, 1, 2, 5)])
class InPlaceSwap(nn.Cell):
    def construct(self, x, y, n):
        a = x * 2
        b = y * 2
        i = n * 0
        while i < n:
            a, b = b, a
            a += b
            i += 1
        return (a, b)
