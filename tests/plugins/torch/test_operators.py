"""PyTorch's operators as problems of the core: results and gradients compared with eager PyTorch in float64."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from clgraft import core  # noqa: E402
from clgraft.plugins.torch.backend import compiler  # noqa: E402
from clgraft.plugins.torch.explanation import Explanation  # noqa: E402

IMAGES, WIDE, MATRIX, HEADS = (2, 6, 9, 7), (3, 8, 5, 5), (5, 12), (2, 3, 9, 8)


def normal(*shape, seed=0):
    """Return normal random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Keep PyTorch's traces out of reports."""
    caplog.set_level("WARNING")


def layer_norm(x, w, b):
    return functional.layer_norm(x, x.shape[1:], w, b)


attention = functional.scaled_dot_product_attention


def multihead(x, w, b, projection):
    """Self-attention of `nn.MultiheadAttention` with two heads."""
    given = (x.transpose(0, 1),) * 3
    more = (12, 2, w, b, None, None, False, 0.0, projection, None)
    return functional.multi_head_attention_forward(*given, *more, need_weights=False)[0]


# name -> function of tensors, and the shapes of these
CASES = {
    "conv": (lambda x, w, b: functional.conv2d(x, w, b, 2, 1), (IMAGES, (4, 6, 3, 3), (4,))),
    "conv-1d-dilated": (lambda x, w: functional.conv1d(x, w, None, 1, 2, 2), ((2, 3, 17), (5, 3, 3))),
    "conv-3d": (lambda x, w: functional.conv3d(x, w), ((1, 2, 5, 6, 7), (3, 2, 2, 3, 3))),
    "conv-groups": (lambda x, w: functional.conv2d(x, w, None, 1, 1, 1, 3), (IMAGES, (6, 2, 3, 3))),
    "conv-depthwise": (lambda x, w: functional.conv2d(x, w, None, 1, 2, 2, 6), (IMAGES, (6, 1, 3, 3))),
    "conv-transposed": (
        lambda x, w, b: functional.conv_transpose2d(x, w, b, 2, 1, 1, 2),
        (IMAGES, (6, 2, 3, 3), (4,)),
    ),
    "conv-transposed-more": (
        lambda x, w, b: functional.conv_transpose2d(x, w, b, 2, 0, 1, 2),
        (IMAGES, (6, 2, 3, 3), (4,)),
    ),
    "batch-norm": (lambda x, w, b: functional.batch_norm(x, None, None, w, b, True), (WIDE, (8,), (8,))),
    "batch-norm-plain": (lambda x: functional.batch_norm(x, None, None, None, None, True), (WIDE,)),
    "batch-norm-of-rows": (lambda x, w, b: functional.batch_norm(x, None, None, w, b, True), (MATRIX, (12,), (12,))),
    "layer-norm": (layer_norm, (WIDE, (8, 5, 5), (8, 5, 5))),
    "layer-norm-plain": (lambda x: functional.layer_norm(x, (5,)), (WIDE,)),
    "group-norm": (lambda x, w, b: functional.group_norm(x, 4, w, b), (WIDE, (8,), (8,))),
    "linear": (functional.linear, (MATRIX, (7, 12), (7,))),
    "linear-of-images": (lambda x, w: functional.linear(x, w), ((2, 3, 4, 12), (7, 12))),
    "matrix": (lambda a, b: a @ b, (MATRIX, (12, 3))),
    "matrix-turned": (lambda a, b: a.t() @ b.t(), ((12, 5), (3, 12))),
    "matrix-added": (lambda x, a, b: torch.addmm(x, a, b, beta=0.5, alpha=2), ((5, 7), (5, 12), (12, 7))),
    "matrix-and-row-added": (lambda x, a, b: torch.addmm(x, a, b, beta=3), ((7,), (5, 12), (12, 7))),
    "matrices": (torch.bmm, ((3, 5, 12), (3, 12, 7))),
    "matrices-turned": (lambda a, b: a.transpose(1, 2) @ b.transpose(1, 2), ((3, 12, 5), (3, 7, 12))),
    "matrices-and-one": (lambda a, b: a @ b, ((2, 3, 5, 12), (12, 7))),
    "one-and-matrices": (lambda a, b: a @ b, ((5, 12), (2, 3, 12, 7))),
    "matrices-added": (lambda x, a, b: torch.baddbmm(x, a, b, beta=0.5, alpha=2), ((5, 7), (3, 5, 12), (3, 12, 7))),
    "vectors": (lambda a, x, y: (a @ x) * (x @ y), (MATRIX, (12,), (12,))),
    "attention": (functional.scaled_dot_product_attention, ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4))),
    "attention-causal": (lambda q, k, v: attention(q, k, v, is_causal=True), (HEADS,) * 3),
    "attention-scaled": (lambda q, k, v: attention(q, k, v, scale=0.3), (HEADS,) * 3),
    "attention-turned": (
        lambda q, k, v: attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2).reshape(2, 9, 24),
        ((2, 9, 3, 8),) * 3,
    ),
    "heads": (multihead, ((2, 9, 12), (36, 12), (36,), (12, 12))),
    "resize-nearest": (lambda x: functional.interpolate(x, scale_factor=2) * 2, (IMAGES,)),
    "resize-nearest-down": (lambda x: functional.interpolate(x, (4, 5)) * 2, (IMAGES,)),
    "resize-nearest-exact": (lambda x: functional.interpolate(x, (13, 5), mode="nearest-exact"), (IMAGES,)),
    "resize-bilinear": (lambda x: functional.interpolate(x, (18, 5), mode="bilinear") * 2, (IMAGES,)),
    "resize-bilinear-corners": (
        lambda x: functional.interpolate(x, scale_factor=3, mode="bilinear", align_corners=True),
        (IMAGES,),
    ),
    "resize-linear": (lambda x: functional.interpolate(x, 11, mode="linear"), ((2, 3, 7),)),
    "resize-trilinear": (lambda x: functional.interpolate(x, scale_factor=2, mode="trilinear"), ((1, 2, 3, 4, 5),)),
    "adaptive-pool-any": (lambda x: functional.adaptive_avg_pool2d(x, (4, 5)) * 2, (IMAGES,)),
    "adaptive-pool-up": (lambda x: functional.adaptive_avg_pool2d(x, (11, 3)), (IMAGES,)),
    "max-pool": (lambda x: functional.max_pool2d(x, 3, 2, 1), (IMAGES,)),
    "max-pool-ceil": (lambda x: functional.max_pool2d(x, (2, 3), 2, ceil_mode=True), (IMAGES,)),
    "average-pool": (lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (IMAGES,)),
    "average-pool-ceil": (lambda x: functional.avg_pool2d(x, 2, 2, 1, ceil_mode=True), (IMAGES,)),
    "max-pool-of-one": (lambda x: functional.max_pool2d(x, 3, 2, 1), ((6, 9, 7),)),
    "average-pool-of-one": (lambda x: functional.avg_pool2d(x, 3, 2, 1), ((6, 9, 7),)),
    "average-pool-divided": (lambda x: functional.avg_pool2d(x, 3, 2, 1, divisor_override=5) * 2, (IMAGES,)),
    "adaptive-pool-of-one": (lambda x: functional.adaptive_avg_pool2d(x, (3, 7)) * 2, ((6, 9, 7),)),
    "adaptive-pool-any-of-one": (lambda x: functional.adaptive_avg_pool2d(x, (4, 5)) * 2, ((6, 9, 7),)),
    "adaptive-max-pool": (lambda x: functional.adaptive_max_pool2d(x, (3, 1)), (IMAGES,)),
    "adaptive-max-pool-any": (lambda x: functional.adaptive_max_pool2d(x, (4, 5)) * 2, (IMAGES,)),
    "adaptive-max-pool-any-of-one": (lambda x: functional.adaptive_max_pool2d(x, (11, 5)) * 2, ((6, 9, 7),)),
    "adaptive-max-pool-1d": (lambda x: functional.adaptive_max_pool1d(x, 4) * 2, ((2, 3, 7),)),
    "adaptive-max-pool-3d": (lambda x: functional.adaptive_max_pool3d(x, (2, 3, 4)) * 2, ((2, 3, 4, 5, 6),)),
    "adaptive-pool": (lambda x: functional.adaptive_avg_pool2d(x, (3, 1)), (IMAGES,)),
    "global-pool": (lambda x: functional.adaptive_avg_pool2d(x, 1), (IMAGES,)),
    "softmax": (lambda x: functional.softmax(x, 1), (IMAGES,)),
    "log-softmax": (lambda x: functional.log_softmax(x, -1), (MATRIX,)),
    "relu": (functional.relu, (IMAGES,)),
    "relu6": (lambda x: functional.relu6(4 * x), (IMAGES,)),
    "leaky-relu": (lambda x: functional.leaky_relu(x, 0.2), (IMAGES,)),
    "elu": (lambda x: functional.elu(x, 0.7), (IMAGES,)),
    "selu": (functional.selu, (IMAGES,)),
    "celu": (lambda x: functional.celu(x, 0.7), (IMAGES,)),
    "sigmoid": (torch.sigmoid, (IMAGES,)),
    "tanh": (torch.tanh, (IMAGES,)),
    "silu": (functional.silu, (IMAGES,)),
    "gelu": (functional.gelu, (IMAGES,)),
    "gelu-tanh": (lambda x: functional.gelu(x, approximate="tanh"), (IMAGES,)),
    "hardswish": (lambda x: functional.hardswish(3 * x), (IMAGES,)),
    "hardsigmoid": (lambda x: functional.hardsigmoid(3 * x), (IMAGES,)),
    "arithmetic": (lambda a, b: (a + 2 * b) / (b * b + 1) - torch.exp(-a) * 0.5 + 3, (IMAGES, IMAGES)),
    "broadcast": (lambda a, b: a * b + b, (IMAGES, (6, 1, 1))),
    "broadcast-both": (lambda a, b: a - b, ((2, 1, 9, 1), (6, 1, 7))),
    "roots": (lambda x: torch.sqrt(x * x + 1) + torch.rsqrt(x * x + 2) + (x * x + 1).log(), (IMAGES,)),
    "powers": (lambda x: x**2 + x**3 + (x * x + 1) ** 1.7, (IMAGES,)),
    "sum": (lambda x: x.sum((0, 2)), (IMAGES,)),
    "sum-in-float32": (
        lambda x: x.sum(1, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32),
        (IMAGES,),
    ),
    "mean": (lambda x: x.mean((2, 3), keepdim=True) * x.mean(), (IMAGES,)),
    "cat": (lambda a, b: torch.cat([a, b, a], 1), (IMAGES, (2, 3, 9, 7))),
    "split": (lambda x: torch.cat([part * i for i, part in enumerate(x.split(4, 1), 2)], 1), (IMAGES,)),
    "chunks": (lambda x: x.chunk(2, 1)[1] * 3, (IMAGES,)),
    "slice": (lambda x: x[:, 1:5:2, ::3] * 2, (IMAGES,)),
    "select": (lambda x: x[:, 2] + x[:, -1], (IMAGES,)),
    "pad": (lambda x: functional.pad(x, (1, 2, 0, 3), value=0.5) * 2, (IMAGES,)),
    "crop-by-pad": (lambda x: functional.pad(x, (-1, 2)) * 2, (IMAGES,)),
    "permute": (lambda x: x.permute(0, 2, 3, 1) * 2, (IMAGES,)),
    "permute-and-add": (lambda a, b: a.permute(0, 2, 3, 1) + b, (IMAGES, (6,))),
    "shuffle": (lambda x: x.view(2, 2, 3, 9, 7).transpose(1, 2).reshape(IMAGES) * 2, (IMAGES,)),
    "expand": (lambda x: x[:, :, None].expand(5, 12, 3).reshape(5, 36) * 2, (MATRIX,)),
    "squeeze": (lambda x: x.unsqueeze(1).squeeze() * x, (MATRIX,)),
}


def compiled(function, found):
    """Return a function that runs on the device of the test."""
    torch._dynamo.reset()
    return torch.compile(function, backend=compiler(core.context(), found))


def error(got, expected):
    """Return the largest difference relative to the largest value."""
    assert got.shape == expected.shape
    got, expected = got.detach().double(), expected.detach()
    return float((got - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients(name):
    function, shapes = CASES[name]
    inputs = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    exact = [tensor.double().requires_grad_() for tensor in inputs]
    single = [tensor.clone().requires_grad_() for tensor in inputs]
    found = Explanation()
    expected = function(*exact)
    dy = normal(*expected.shape, seed=99) if expected.shape else torch.ones(())
    expected.backward(dy.double())
    y = compiled(function, found)(*single)
    y.backward(dy)
    assert error(y, expected) < 5e-6
    for ours, theirs in zip(single, exact):
        assert error(ours.grad, theirs.grad) < 2e-5
    assert not found.kept and found.lowered, found


def test_float64():
    x, w = normal(*IMAGES).double().requires_grad_(), normal(4, 6, 3, 3).double().requires_grad_()
    if not core.context().device.has_fp64:
        pytest.skip("the device has no float64")
    found = Explanation()
    y = compiled(lambda x, w: torch.tanh(functional.conv2d(x, w)), found)(x, w)
    gradients = torch.autograd.grad(y.sum(), (x, w))
    expected = torch.tanh(functional.conv2d(x, w))
    assert error(y, expected) < 1e-14 and not found.kept
    for ours, theirs in zip(gradients, torch.autograd.grad(expected.sum(), (x, w))):
        assert error(ours, theirs) < 1e-13


def test_maxima_of_equal_values_pass_their_gradient_to_the_first():
    x = torch.zeros(1, 1, 4, 4, requires_grad=True)
    compiled(lambda x: functional.max_pool2d(x, 2), Explanation())(x).sum().backward()
    expected = torch.zeros(4, 4)
    expected[::2, ::2] = 1
    assert torch.equal(x.grad[0, 0], expected)


def test_adapted_maxima_of_equal_values_pass_their_gradient_as_in_pytorch():
    x = torch.randint(0, 3, IMAGES, generator=torch.Generator().manual_seed(1)).float()
    gradients = []
    for function in (functional.adaptive_max_pool2d, compiled(functional.adaptive_max_pool2d, Explanation())):
        given = x.clone().requires_grad_()
        (function(given, (4, 5)) * torch.arange(20.0).reshape(4, 5)).sum().backward()
        gradients.append(given.grad)
    assert torch.equal(*gradients)


def test_a_call_whose_adapted_indices_are_read_stays_pytorchs():
    def function(x):
        y, index = functional.adaptive_max_pool2d(torch.tanh(x), (4, 5), return_indices=True)
        return y, index

    x, found = normal(*IMAGES).requires_grad_(), Explanation()
    y, index = compiled(function, found)(x)
    again, expected = function(x)
    assert torch.equal(index, expected) and error(y, again.double()) < 5e-6
    (slope,), (right,) = (torch.autograd.grad(one.square().sum(), x) for one in (y, again))
    assert error(slope, right.double()) < 2e-5
    assert set(found.kept) == {"aten.adaptive_max_pool2d.default"}


POOLINGS = {
    "windows": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "whole": lambda x: functional.max_pool2d(x, x.shape[2:]),
    "adapted": lambda x: functional.adaptive_max_pool2d(x, (4, 5)),
    "equal": lambda x: functional.adaptive_max_pool2d(x, (3, 7)),
}


@pytest.mark.parametrize("name", POOLINGS)
def test_not_a_number_is_a_maximum(name):
    x = normal(*IMAGES)
    x[torch.rand(IMAGES, generator=torch.Generator().manual_seed(1)) < 0.1] = torch.nan
    found = Explanation()
    y = compiled(POOLINGS[name], found)(x)
    assert not found.kept and found.lowered, found
    assert torch.isnan(y).any()
    torch.testing.assert_close(y, POOLINGS[name](x), rtol=0, atol=0, equal_nan=True)


def test_not_a_number_passes_a_rectifier():
    x = torch.tensor([float("nan"), -1.0, 2.0])
    y = compiled(functional.relu, Explanation())(x)
    assert torch.isnan(y[0]) and y[1:].tolist() == [0.0, 2.0]


def test_softmax_of_rows_without_keys():
    """Rows of minus infinity alone become 0; a value that is not a number stays one."""
    x = normal(2, 5, 7)
    x[0, 1], x[1, 2, :3], x[1, 4, 5] = -torch.inf, -torch.inf, torch.nan
    found = Explanation()
    expected = torch.ops.aten._safe_softmax(x, -1)
    y = compiled(lambda x: torch.ops.aten._safe_softmax(x, -1), found)(x)
    assert not found.kept and found.lowered, found
    torch.testing.assert_close(y, expected, equal_nan=True)
    assert not y[0, 1].any() and torch.isnan(y[1, 4]).all()
