"""Tensors whose elements lie in memory in another order than PyTorch sees them, such as channels last."""

import copy

import pytest

torch = pytest.importorskip("torch")

from clgraft import core  # noqa: E402
from clgraft.core.nn.shapes import inverse_order  # noqa: E402
from clgraft.plugins.torch import regions  # noqa: E402
from clgraft.plugins.torch.backend import compiler  # noqa: E402
from clgraft.plugins.torch.explanation import Explanation  # noqa: E402
from clgraft.plugins.torch.orders import in_memory, order_of  # noqa: E402
from tests.plugins.torch.test_backend import Images, difference  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


def last(tensor):
    return tensor.to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("tensor", "order"),
    [
        (torch.empty(2, 3, 4, 5), ()),
        (last(torch.empty(2, 3, 4, 5)), (0, 2, 3, 1)),
        (last(torch.empty(2, 3, 1, 5)), (2, 0, 3, 1)),  # an axis of one element may be anywhere
        (last(torch.empty(2, 1, 4, 5)), ()),
        (torch.empty(4, 3).t(), (1, 0)),
        (torch.empty(4, 3, 2).permute(2, 0, 1), (1, 2, 0)),
        (torch.empty(4, 6)[:, ::2], ()),
        (torch.empty(4, 6)[:, :3].t(), ()),
        (torch.empty(3, 1).expand(3, 4), ()),
        (last(torch.empty(0, 3, 4, 5)), ()),
    ],
)
def test_orders_in_memory(tensor, order):
    assert order_of(tensor) == order
    found = in_memory(tensor)
    assert found.is_contiguous()
    if order:
        assert found.data_ptr() == tensor.data_ptr() and found.permute(inverse_order(order)).stride() == tensor.stride()


def step(model, net, x, heads):
    results = model(x)
    return (*results, *torch.autograd.grad(results, [x, *net.parameters()], heads))


def check(ours, eager, exact):
    for got, expected, reference in zip(ours, eager, exact):
        strides = zip(got.shape, got.stride(), expected.stride())
        assert all(one == other for size, one, other in strides if size > 1)
        scale = max(float(reference.detach().abs().max()), 1e-3)
        assert float((got.detach().double() - reference.detach()).abs().max()) <= 2e-5 * scale


def problem():
    net, x = Images().to(memory_format=torch.channels_last), last(torch.randn(2, 5, 13, 12)).requires_grad_(True)
    heads = [last(torch.randn(2, 8, 13, 12)), last(torch.randn(2, 6, 3, 2)), torch.randn(2, 6)]
    exact, x64 = copy.deepcopy(net).double(), x.detach().double().requires_grad_(True)
    return net, x, heads, step(exact, exact, x64, [head.double() for head in heads])


def test_nothing_is_copied_at_the_border_of_a_region(bound, monkeypatch):
    if core.context().device.host_access == "staged":
        pytest.skip("the device has memory of its own")
    net, x, heads, exact = problem()
    monkeypatch.setattr(regions, "_with_strides", lambda *_: pytest.fail("a result was copied"))
    eager = step(net, net, x, heads)
    model = torch.compile(net, backend=compiler(core.context(), Explanation()))
    first = step(model, net, x, heads)
    check(first, eager, exact)
    forward, backward = bound
    weights = {net.first.weight.data_ptr(), net.third.weight.data_ptr()}
    assert {x.data_ptr(), *weights} <= forward and {x.data_ptr(), *weights} <= backward
    assert {head.data_ptr() for head in heads} <= backward
    assert {result.data_ptr() for result in first[:2]} <= forward
    again = step(model, net, x, heads)
    assert all(torch.equal(one, other) for one, other in zip(first, again))


@pytest.mark.parametrize("frozen", [False, True])
def test_tensors_in_channels_last_on_a_device_with_memory_of_its_own(staged, frozen):
    net, x, heads, exact = problem()
    eager = step(net, net, x, heads)
    model = torch.compile(net, backend=compiler(staged, Explanation(), frozen))
    for _ in range(2):
        check(step(model, net, x, heads), eager, exact)


def test_one_region_meets_several_orders():
    def function(a, b):
        return torch.relu(a @ b) + a.sum()

    model = torch.compile(function, backend=compiler(core.context(), Explanation()), dynamic=True)
    a, b = torch.randn(7, 9), torch.randn(9, 5)
    expected = function(a.double(), b.double())
    wide = torch.randn(7, 18)
    wide[:, ::2] = a
    turned = b.t().contiguous().t()
    for one, other in ((a, b), (a.t().contiguous().t(), b), (wide[:, ::2], turned)):
        assert difference(model(one, other), expected) < 1e-5


def test_frozen_weights_in_channels_last():
    net, x = Images().eval().to(memory_format=torch.channels_last), last(torch.randn(2, 5, 13, 12))
    model = torch.compile(net, backend=compiler(core.context(), Explanation(), True))
    for _ in range(2):
        with torch.no_grad():
            expected = copy.deepcopy(net).double()(x.double())
            assert all(difference(got, one) < 1e-5 for got, one in zip(model(x), expected))
            net.third.weight.mul_(2)
