"""Regions keep the order in which a symbol lists its arguments; nets of Gluon bind by name and need none."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from clgraft.mxnet_ops import swap_block, swap_symbol
from tests.mxnet_ops.operator_checks import assert_close, compare, random

sym = mx.sym


def layer(x, name: str):
    x = sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=4, no_bias=True, name=f"{name}_conv")
    return sym.Activation(sym.BatchNorm(x, fix_gamma=False, name=f"{name}_norm"), act_type="relu", name=f"{name}_relu")


def left(x, name: str):
    """Return what leaves for MXNet's own operator, with a parameter after it."""
    return layer(sym.arctan(x, name=f"{name}_own"), name)


def two_heads():
    """Return a net whose first output leaves for an operator of MXNet's, beside a sibling that does not."""
    base = layer(layer(sym.var("data"), "a"), "b")
    return sym.Group([left(base, "main"), layer(layer(base, "side"), "more")])


def late_sibling():
    """Return a net that sums a branch that leaves and one that does not."""
    base = layer(sym.var("data"), "a")
    return sym.elemwise_add(left(base, "main"), layer(layer(base, "side"), "more"), name="sum")


def two_levels():
    base, found = layer(sym.var("data"), "a"), []
    for level in range(2):
        found.append(left(base, f"out{level}"))
        base = layer(layer(base, f"down{level}"), f"deep{level}")
    return sym.Group([*found, base])


NETS = [two_heads, late_sibling, two_levels]


def region_count(symbol: mx.sym.Symbol) -> int:
    nodes = json.loads(symbol.tojson())["nodes"]
    return sum(node.get("attrs", {}).get("op_type") == "ocl_region" for node in nodes)


@pytest.mark.parametrize("make", NETS)
def test_symbols_keep_the_order(make, rng):
    native = make()
    swapped, report = swap_symbol(native, regions=True)
    for names in ("list_arguments", "list_auxiliary_states", "list_outputs"):
        assert getattr(swapped, names)() == getattr(native, names)()
    # a region is divided, not given up
    assert region_count(swapped) == len(report.regions) >= 2
    lines = [row.reason for row in report.kept if row.operator == "ocl_region"]
    assert lines and all(len(line) < 120 and "\n" not in line for line in lines)
    shapes, _, states = native.infer_shape(data=(2, 4, 5, 6))
    arrays = {n: 0.3 * random(rng, *shape, dtype="float64") for n, shape in zip(native.list_arguments(), shapes)}
    own = {name: np.ones(shape) for name, shape in zip(native.list_auxiliary_states(), states)}
    compare(swapped, native, arrays, rng, dtype="float64", auxiliary=own, requests=["write", "add"])


class Net(gluon.HybridBlock):
    """A net of two outputs, of which one leaves."""

    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.base, self.side, self.main = (nn.HybridSequential(prefix=f"{name}_") for name in ("a", "b", "c"))
            for part in (self.base, self.side, self.main):
                part.add(nn.Conv2D(4, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))

    def hybrid_forward(self, F, x):
        x = self.base(x)
        return self.main(F.arctan(x)), self.side(x)


def test_nets_of_gluon_need_no_order(rng, tmp_path):
    data, found = random(rng, 2, 3, 5, 6), []
    for swap in (False, True):
        mx.random.seed(5)
        net = Net()
        net.initialize(mx.init.Xavier())
        report = swap_block(net) if swap else None
        net.hybridize()
        x = mx.nd.array(data)
        x.attach_grad()
        with autograd.record():
            one, other = net(x)
            total = (one * 2 + other).sum()
        total.backward()
        found.append([one.asnumpy(), other.asnumpy(), x.grad.asnumpy()])
        found[-1] += [p.grad().asnumpy() for p in net.collect_params().values() if p.grad_req != "null"]
    assert sorted(len(inside) for inside in report.regions.values()) == [3, 6], report
    for got, expected in zip(found[1], found[0]):
        assert_close(got, expected)
    net.export(str(tmp_path / "net"))
    files = [str(tmp_path / name) for name in ("net-symbol.json", "net-0000.params")]
    again = gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    assert_close(again(mx.nd.array(data))[0].asnumpy(), net(mx.nd.array(data))[0].asnumpy())
