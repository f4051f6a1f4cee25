"""`torch.compile(model, backend="clgraft")`: whole models in training and inference, and what stays PyTorch's."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import clgraft.plugins.torch as plugin  # noqa: E402
from clgraft import core  # noqa: E402
from clgraft.core.errors import ArgumentError, SelectorError  # noqa: E402
from clgraft.plugins.torch.backend import clgraft, compiler  # noqa: E402
from clgraft.plugins.torch.execution import MOST_CHANGES, RegionModule  # noqa: E402
from clgraft.plugins.torch.explanation import Explanation  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


class Block(nn.Module):
    """A residual block with a depthwise convolution."""

    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x):
        y = functional.softplus(self.norm(self.first(x))) if self.smooth else functional.relu(self.norm(self.first(x)))
        return x + self.second(y)

    smooth = False


def small_net(dropout=0.0):
    """Return a net with a layer of every common kind."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Block(8),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(8, 5),
    )


def difference(got, expected):
    """Return the norm of the difference relative to the expected norm."""
    return float((got.detach().double() - expected.detach().double()).norm() / expected.detach().double().norm())


def test_training_follows_eager_pytorch():
    net = small_net()
    eager = copy.deepcopy(net).double()
    compiled = torch.compile(net, backend=clgraft)
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.05, momentum=0.9) for n in (net, eager)]
    for step in range(3):
        x = torch.randn(4, 3, 10, 12, generator=torch.Generator().manual_seed(step))
        labels = torch.tensor([0, 1, 2, 3])
        losses = []
        for model, optimizer, images in zip((compiled, eager), optimizers, (x, x.double())):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        assert difference(*losses) < 1e-5
    for ours, theirs in zip(net.state_dict().values(), eager.state_dict().values()):
        assert difference(ours, theirs) < 1e-4 or (ours.dtype == torch.int64 and torch.equal(ours, theirs))


def test_inference_after_training_reads_the_running_statistics():
    net = small_net()
    compiled = torch.compile(net, backend=clgraft)
    x = torch.randn(4, 3, 10, 12)
    compiled(x)
    compiled.eval()
    with torch.no_grad():
        assert difference(compiled(x), copy.deepcopy(net).double().eval()(x.double())) < 1e-5
    assert net[1].num_batches_tracked == 1


def test_runs_have_the_same_bits():
    compiled = torch.compile(small_net().eval(), backend=clgraft)
    x = torch.randn(4, 3, 10, 12)
    with torch.no_grad():
        assert torch.equal(compiled(x), compiled(x))


def test_what_is_not_lowered_stays_pytorchs():
    def function(x):
        return torch.cumsum(torch.tanh(x) * 2, 0).exp() + torch.sort(x)[0]

    found = Explanation()
    x = torch.randn(5, 7)
    y = torch.compile(function, backend=compiler(core.context(), found))(x)
    assert difference(y, function(x.double())) < 1e-6
    assert set(found.kept) == {"aten.cumsum.default", "aten.sort.default"}
    assert found.regions and "aten.tanh.default" in found.lowered
    assert "aten.cumsum.default: no problem of the core computes it" in str(found)


def test_integers_and_truth_values_stay_pytorchs():
    found = Explanation()
    x = torch.randn(4, 6)
    function = torch.compile(lambda x: torch.where(x > 0, x * 3, -x), backend=compiler(core.context(), found))
    assert torch.equal(function(x), torch.where(x > 0, x * 3, -x))
    assert "values of torch.bool" in found.kept["aten.where.self"] or "no problem" in found.kept["aten.where.self"]


def test_changes_in_place_and_views_of_inputs():
    def function(x, y):
        x.add_(y * 2)
        y.t().mul_(3)
        return x.t(), x.view(-1)[:4], y

    pairs = [(torch.ones(3, 4), torch.arange(12.0).reshape(3, 4)) for _ in range(2)]
    got = torch.compile(function, backend=clgraft)(*pairs[0])
    expected = function(*pairs[1])
    for ours, theirs in zip((*got, *pairs[0]), (*expected, *pairs[1])):
        assert torch.equal(ours, theirs)


def test_several_outputs_some_of_them_inputs_or_equal():
    def function(x):
        y = torch.tanh(x)
        return x, y, y, {"sum": y.sum()}, 3

    x = torch.randn(4, 5)
    a, b, c, sums, number = torch.compile(function, backend=clgraft)(x)
    assert torch.equal(a, x) and torch.equal(b, c) and number == 3
    assert difference(b, torch.tanh(x)) < 1e-6 and difference(sums["sum"], torch.tanh(x).sum()) < 1e-5


def test_shapes_change():
    net = small_net()
    compiled = torch.compile(net, backend=clgraft, dynamic=True)
    for batch, height in ((2, 8), (5, 8), (3, 12), (2, 8)):
        x = torch.randn(batch, 3, height, 10)
        y = compiled(x)
        y.sum().backward()
        reference = copy.deepcopy(net).double()
        assert difference(y, reference.train()(x.double())) < 1e-5


def test_channels_last_and_other_strides():
    net = small_net().eval()
    x = torch.randn(2, 3, 8, 8)
    expected = copy.deepcopy(net).double()(x.double())
    compiled = torch.compile(net.to(memory_format=torch.channels_last), backend=clgraft)
    with torch.no_grad():
        assert difference(compiled(x.to(memory_format=torch.channels_last)), expected) < 1e-5
        assert difference(compiled(x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)), expected) < 1e-5


class Images(nn.Module):
    """Layers whose results are images, of which the caller sees two."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(5, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, stride=2, groups=8, bias=False)
        self.third = nn.Conv2d(8, 6, 1)

    def forward(self, x):
        early = functional.relu(self.norm(self.first(x)))
        y = self.third(functional.max_pool2d(self.second(early), 2))
        return early, y, y.mean((2, 3))


@pytest.mark.parametrize("last", [False, True])
def test_results_and_gradients_have_the_strides_of_eager_pytorch(last):
    order = torch.channels_last if last else torch.contiguous_format
    net = Images().to(memory_format=order)
    x = torch.randn(2, 5, 13, 12).to(memory_format=order).requires_grad_(True)
    heads = [torch.randn(2, 8, 13, 12).to(memory_format=order), torch.randn(2, 6, 3, 2), torch.randn(2, 6)]
    exact = copy.deepcopy(net).double()
    x64 = x.detach().double().requires_grad_(True)
    runs = []
    for model, images, outer in (
        (net, x, heads),
        (torch.compile(net, backend=clgraft), x, heads),
        (exact, x64, [head.double() for head in heads]),
    ):
        results = model(images)
        parameters = list((net if model is not exact else exact).parameters())
        runs.append((results, torch.autograd.grad(results, [images, *parameters], outer)))
    (eager, eager_gradients), (ours, gradients), (wide, wide_gradients) = runs
    assert ours[0].is_contiguous(memory_format=order)
    for got, expected, reference in zip((*ours, *gradients), (*eager, *eager_gradients), (*wide, *wide_gradients)):
        strides = zip(got.shape, got.stride(), expected.stride())  # along a single element they have no meaning
        assert all(one == other for size, one, other in strides if size > 1)
        scale = max(float(reference.detach().abs().max()), 1e-3)
        assert float((got.detach().double() - reference.detach()).abs().max()) <= 2e-5 * scale


def test_dropout_draws_pytorchs_random_numbers():
    net = small_net(dropout=0.5)
    compiled = torch.compile(net, backend=clgraft)
    x = torch.randn(8, 3, 8, 8)
    results = []
    for model in (compiled, copy.deepcopy(net)):
        torch.manual_seed(3)
        results.append(model(x))
    assert torch.equal(results[0] == 0, results[1] == 0) and difference(*results) < 1e-5


def test_empty_batches():
    compiled = torch.compile(lambda x, w: functional.relu(functional.conv2d(x, w)), backend=clgraft)
    assert compiled(torch.zeros(0, 3, 8, 8), torch.randn(4, 3, 3, 3)).shape == (0, 4, 6, 6)


def test_options():
    x = torch.randn(3, 4)
    device = core.context().cl_device.name
    y = torch.compile(torch.tanh, backend=clgraft, options={"device": device})(x)
    assert difference(y, torch.tanh(x)) < 1e-6
    for options, error in (({"device": "no such device"}, SelectorError), ({"speed": 9}, ArgumentError)):
        with pytest.raises(Exception) as raised:
            torch._dynamo.reset()
            torch.compile(torch.tanh, backend=clgraft, options=options)(x)
        assert isinstance(raised.value, error) or error.__name__ in str(raised.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frozen": "yes"}, "got option frozen='yes', expected True or False"),
        ({"strict": 1}, "got option strict=1, expected True or False"),
        ({"device": 0}, "got option device=0, expected a device selector such as 'gpu'"),
        ({"freeze": True}, "got options ['freeze'], expected some of ['precision', 'device', 'frozen', 'strict']; "),
    ],
)
def test_options_of_other_names_and_types_are_refused(options, words):
    torch._dynamo.reset()
    with pytest.raises(Exception) as raised:
        torch.compile(torch.tanh, backend=clgraft, options=options)(torch.randn(3, 4))
    assert words in str(raised.value)


def test_frozen_parameters_that_change(monkeypatch):
    """They are constants at first; if they change often, they have numbers of their contents instead, to be sent by."""
    net = small_net().eval()
    found, versions, compilations = Explanation(), [], []
    numbered, compiling = RegionModule._versions, RegionModule._compile

    def remember(self, *arguments):
        versions.append(numbered(self, *arguments))
        return versions[-1]

    monkeypatch.setattr(RegionModule, "_versions", remember)
    monkeypatch.setattr(RegionModule, "_compile", lambda *given: compilations.append(given[2]) or compiling(*given))
    with torch.no_grad():
        compiled = torch.compile(net, backend=compiler(core.context(), found, frozen=True))
        for step in range(MOST_CHANGES + 4):
            if step > 1:
                net[9].bias.add_(1)
            x = torch.randn(2, 3, 8, 8)
            assert difference(compiled(x), copy.deepcopy(net).double()(x.double())) < 1e-5
        compiled(x)
    assert [bool(contents) for contents in compilations] == [True] * (MOST_CHANGES + 1) + [False]
    parameters = len([*net.parameters()]) + len([b for b in net.buffers() if b.is_floating_point()])
    assert [len(numbers) for numbers in versions] == [0] * (MOST_CHANGES + 2) + [parameters] * 3
    assert sum(versions[-2][name] != number for name, number in versions[-3].items()) == 1
    assert versions[-1] == versions[-2]


def test_the_backend_has_a_name():
    assert "clgraft" in torch._dynamo.list_backends(exclude_tags=())
    assert difference(torch.compile(torch.tanh, backend="clgraft")(torch.ones(3)), torch.tanh(torch.ones(3))) < 1e-6


def test_explain():
    found = plugin.explain(small_net(), torch.randn(2, 3, 8, 8))
    assert found.regions == 2 and "aten.convolution_backward.default" in found.lowered
    assert set(found.kept) == {"aten.add.Tensor"}  # the number of batches, a whole number


def test_regions_keep_a_limited_number_of_shapes(monkeypatch):
    monkeypatch.setattr("clgraft.plugins.torch.execution.MOST_PROGRAMS", 2)
    compiled = torch.compile(lambda x: torch.tanh(x) * 2, backend=clgraft, dynamic=True)
    regions = []
    original = RegionModule.__init__

    def remember(self, *arguments):
        original(self, *arguments)
        regions.append(self)

    monkeypatch.setattr(RegionModule, "__init__", remember)
    for size in (3, 4, 5, 6):
        x = torch.randn(size, 7)
        assert np.allclose(compiled(x), torch.tanh(x) * 2, atol=1e-6)
    assert regions and all(len(region._programs) <= 2 for region in regions)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_precision_leaves_parameters_and_results(precision):
    """In training PyTorch's autocast has traced the model, and GradScaler finds infinite gradients."""
    torch.manual_seed(0)
    net, x = small_net(), torch.randn(4, 3, 8, 8)
    exact = copy.deepcopy(net).double()
    compiled = torch.compile(net, backend="clgraft", options={"precision": precision})
    off = {"float16": 2e-2, "bfloat16": 0.15}[precision]
    y, expected = compiled(x), exact(x.double())
    y.square().sum().backward()
    expected.square().sum().backward()
    assert y.dtype is torch.float32 and difference(y, expected) < off
    assert all(parameter.grad.dtype is torch.float32 for parameter in net.parameters())
    assert difference(net[-1].weight.grad, exact[-1].weight.grad) < 2 * off
    net.eval(), exact.eval()
    with torch.no_grad():
        assert difference(compiled(x), exact(x.double())) < off
    if precision == "float16":
        optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=2.0**30)
        before = net[0].weight.detach().clone()
        net.train()
        optimizer.zero_grad()
        scaler.scale(compiled(x).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(net[0].weight, before) and scaler.get_scale() == 2.0**29
    with pytest.raises(Exception, match="got 'half', expected one of"):
        torch.compile(net, backend="clgraft", options={"precision": "half"})(x)
