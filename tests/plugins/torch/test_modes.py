"""Ways to use a compiled model: training and evaluation in turn, buffers, dropout, autocast, shapes that change."""

import copy
import random

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from clgraft import core  # noqa: E402
from clgraft.core.graph import CompiledGraph  # noqa: E402
from clgraft.plugins.torch.backend import compiler  # noqa: E402
from clgraft.plugins.torch.explanation import Explanation  # noqa: E402
from clgraft.plugins.torch.regions import take_regions  # noqa: E402
from tests.plugins.torch.test_backend import difference, small_net  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


def compiled(model, found=None, **more):
    return torch.compile(model, backend=compiler(core.context(), found or Explanation()), **more)


class Counting(nn.Module):
    """Buffers of each kind: statistics, a moving mean that is changed in place, a counter, a constant."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6, momentum=None)  # the mean of all batches
        self.linear = nn.Linear(6, 4)
        self.register_buffer("moving", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.full((4,), 0.5), persistent=False)

    def forward(self, x):
        y = self.linear(self.norm(x)) * self.scale
        if self.training:
            self.moving.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
            self.calls += 1
        return y - self.moving


def test_switches_between_training_and_evaluation():
    """Buffers follow those of eager PyTorch, and evaluation leaves them alone."""
    net = Counting()
    eager = copy.deepcopy(net).double()
    model = compiled(net)
    for step, training in enumerate((True, False, True, True, False)):
        net.train(training)
        eager.train(training)
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(step))
        y, expected = model(x), eager(x.double())
        assert difference(y, expected) < 1e-5
        if training:
            for parameters, result in ((net, y), (eager, expected)):
                parameters.zero_grad()
                result.square().sum().backward()
            assert difference(net.linear.weight.grad, eager.linear.weight.grad) < 1e-5
    assert int(net.calls) == 3 and int(net.norm.num_batches_tracked) == 3
    for ours, theirs in zip(net.buffers(), eager.buffers()):
        assert torch.allclose(ours.double(), theirs.double(), atol=1e-5)


class Dropping(nn.Module):
    """Two dropouts of equal shapes, whose masks must differ."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 40), nn.Dropout(0.4), nn.Linear(40, 40), nn.Dropout(0.4))

    def forward(self, x):
        return self.layers(x) * 2


def test_dropout_draws_what_eager_pytorch_draws():
    net = Dropping()
    eager, found = copy.deepcopy(net), Explanation()
    model = compiled(net, found)
    results = []
    for run in (model, eager, model):
        torch.manual_seed(11)
        y = run(torch.linspace(-1, 1, 48).reshape(6, 8))
        run.zero_grad()
        y.square().sum().backward()
        parameters = (net if run is model else eager).parameters()
        results.append([y.detach(), *(p.grad.clone() for p in parameters)])
    for ours, theirs, again in zip(*results):
        assert torch.equal(ours == 0, theirs == 0) and difference(ours, theirs) < 1e-5
        assert torch.equal(ours, again)
    assert set(found.kept) == {"aten.bernoulli.p", "aten.empty.memory_format"} and found.regions == 2
    torch.manual_seed(12)
    assert not torch.equal(model(torch.linspace(-1, 1, 48).reshape(6, 8)) == 0, results[0][0] == 0)


def test_what_is_dropped_in_place_waits_for_no_values():
    """The mask has the form of the values that it multiplies, but needs none of them: each pass is one region."""
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4, inplace=True))
    net.append(nn.Linear(5, 7))
    eager, found = copy.deepcopy(net), Explanation()
    results = []
    for run, model in ((compiled(net, found), net), (eager, eager)):
        torch.manual_seed(11)
        y = run(torch.linspace(-1, 1, 2 * 3 * 49).reshape(2, 3, 7, 7))
        y.square().sum().backward()
        results.append([y.detach(), *(p.grad for p in model.parameters())])
    for ours, theirs in zip(*results):
        assert difference(ours, theirs) < 1e-5
    assert found.regions == 2 and all("empty" in name or "bernoulli" in name for name in found.kept), found


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU6(), nn.ReLU6(inplace=True), nn.Hardtanh()])
def test_what_is_in_front_of_a_rectifier_is_not_kept(activation):
    """Backward reads the images, the convolutions' results and the rectifier's, each once, and no norm's."""
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), activation, nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))
    exact, kept = copy.deepcopy(net).double(), []
    model, x = compiled(net), 3 * torch.randn(4, 3, 8, 8)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        y = model(x)
    dy = torch.randn(y.shape)
    y.backward(dy)
    exact(x.double()).backward(dy.double())
    assert difference(net[0].weight.grad, exact[0].weight.grad) < 1e-4
    assert sum(size == 4 * 8 * 64 for size in kept) == 3


@pytest.mark.parametrize(("activation", "word"), [(nn.ReLU(), "relu_keep_nan"), (nn.ReLU6(inplace=True), "clip")])
def test_a_rectifier_is_part_of_the_norm_in_front_of_it(activation, word, monkeypatch):
    """The core's passes know what the plugin writes: neither the norm's value nor its copy goes through memory."""
    problems = []
    handed = CompiledGraph._handed

    def remember(self, *arguments):
        found = handed(self, *arguments)
        problems.extend(text for text, _ in found.recipe.report.algorithms)
        return found

    monkeypatch.setattr(CompiledGraph, "_handed", remember)
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), activation, nn.Conv2d(8, 4, 1))
    exact, x = copy.deepcopy(net).double(), 3 * torch.randn(4, 3, 8, 8)
    model = compiled(net)
    y = model(x)
    assert difference(y, exact(x.double())) < 1e-5 and difference(net[1].running_var, exact[1].running_var) < 1e-6
    norms = [text.split() for text in problems if text.startswith("batchnorm forward_training")]
    assert len(norms) == 1 and word in norms[0]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_dropout_of_nothing_and_of_everything(share):
    x = torch.randn(5, 6, requires_grad=True)
    y = compiled(lambda x: functional.dropout(x * 2, share))(x)
    y.sum().backward()
    assert torch.equal(y, x.detach() * 2 * (1 - share)) and torch.equal(x.grad, torch.full((5, 6), 2 * (1 - share)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_runs_in_16_bits(dtype):
    """Everything is the device's, and errors are those of eager PyTorch; parameters of norms and losses are float32."""
    found = Explanation()
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Flatten(), nn.Linear(288, 5))
    x = torch.randn(16, 3, 8, 8)

    def function(net, x):
        with torch.autocast("cpu", dtype=dtype):
            y = net(x)
        return functional.softmax(y.float() * 2, 1)

    nets = [copy.deepcopy(net) for _ in range(3)]
    exact = nets[2].double()
    expected = functional.softmax(exact(x.double()) * 2, 1)
    got = compiled(lambda x: function(nets[0], x), found)(x)
    eager = function(nets[1], x)
    for y in (got, eager, expected):
        (y * torch.arange(5)).sum().backward()
    assert got.dtype == torch.float32 and difference(got, expected) <= 2 * difference(eager, expected) + 1e-6
    for ours, theirs, right in zip(*(one.parameters() for one in nets)):
        assert ours.grad.dtype == torch.float32
        assert difference(ours.grad, right.grad) <= 3 * difference(theirs.grad, right.grad) + 1e-6
    assert torch.allclose(nets[0][1].running_var, nets[1][1].running_var, rtol=1e-2)
    assert set(found.kept) == {"aten.add.Tensor"}, "the norm's number of batches alone"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_modules_of_16_bits(dtype):
    found = Explanation()
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.MaxPool2d(2)).to(dtype)
    x = torch.randn(4, 3, 8, 8)
    own, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    y, expected = compiled(own, found)(x.to(dtype)), exact(x.to(dtype).double())
    y.float().square().sum().backward()
    expected.square().sum().backward()
    unit = torch.finfo(dtype).eps
    assert y.dtype == dtype and difference(y.double(), expected) < 8 * unit
    for ours, right in zip(own.parameters(), exact.parameters()):
        assert ours.grad.dtype == dtype and difference(ours.grad.double(), right.grad) < 16 * unit
    assert not found.kept


def test_shapes_that_change_with_resizing_and_attention():
    def function(x, w):
        y = functional.interpolate(functional.conv2d(x, w), scale_factor=2, mode="bilinear")
        rows = y.flatten(2).transpose(1, 2)[:, None]
        return functional.scaled_dot_product_attention(rows, rows, rows) * 2

    found = Explanation()
    model = compiled(function, found, dynamic=True)
    for batch, height, width in ((2, 4, 5), (3, 3, 4)):
        inputs = [torch.randn(batch, 3, height, width), torch.randn(4, 3, 2, 2)]
        exact = [tensor.double().requires_grad_() for tensor in inputs]
        single = [tensor.requires_grad_() for tensor in inputs]
        y, expected = model(*single), function(*exact)
        y.square().sum().backward()
        expected.square().sum().backward()
        assert difference(y, expected) < 1e-5
        for ours, theirs in zip(single, exact):
            assert difference(ours.grad, theirs.grad) < 1e-4
    assert not any("resize" in name or "attention" in name for name in found.kept), found


def test_masks_and_rows_without_keys():
    """A float mask, a truth mask, and a row that may look at nothing, which is 0 in eager PyTorch."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 3, 5, 8, generator=generator) for _ in range(3))
    seen = torch.rand(2, 1, 5, 5, generator=generator) > 0.4
    seen[0, 0, 2] = False
    for mask in (torch.randn(5, 5, generator=generator), seen):
        exact = [tensor.double().requires_grad_() for tensor in (q, k, v)]
        single = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        model = compiled(lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, m) * 2)
        wide = mask if mask.dtype == torch.bool else mask.double()
        y, expected = model(*single, mask), functional.scaled_dot_product_attention(*exact, wide) * 2
        y.square().sum().backward()
        expected.square().sum().backward()
        assert difference(y, expected) < 1e-5
        for ours, theirs in zip(single, exact):
            assert difference(ours.grad, theirs.grad) < 1e-4


def test_views_by_strides_that_move_elements_read_the_traced_order():
    """Our results lie in order, PyTorch's perhaps not: operators that depend on strides get those that were traced."""
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)

    def function(x):
        y = functional.conv2d(x, torch.ones(6, 3, 1, 1).to(memory_format=torch.channels_last)) * 2
        return torch.as_strided(y, (5, 6), (6, 1), 3) + 1

    found = Explanation()
    assert difference(compiled(function, found)(x), function(x)) < 1e-6
    assert found.kept.get("aten.as_strided.default") == "its strides change the order of elements"


def test_changes_in_place_inside_of_a_model():
    """Views of intermediate values, slices that are written, results that are inputs."""

    def function(x, state):
        y = x * 2
        y[:, 1:3] = torch.tanh(x[:, :2])
        y.t()[0].add_(1)
        rows = y.view(-1)
        rows[::5].zero_()
        state.copy_(y.mean(0))
        return y, state

    pairs = [(torch.randn(4, 6, generator=torch.Generator().manual_seed(4)), torch.zeros(6)) for _ in range(2)]
    got, expected = compiled(function)(*pairs[0]), function(*pairs[1])
    assert torch.allclose(got[0], expected[0], atol=1e-6) and torch.allclose(got[1], expected[1], atol=1e-6)
    assert got[1].data_ptr() == pairs[0][1].data_ptr()


def test_optimizers_and_clipping_change_parameters_in_place():
    net = small_net()
    eager, model = copy.deepcopy(net).double(), compiled(net)
    optimizers = [torch.optim.AdamW(n.parameters(), lr=1e-2) for n in (net, eager)]
    for step in range(2):
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        for run, one, images, optimizer in ((model, net, x, optimizers[0]), (eager, eager, x.double(), optimizers[1])):
            optimizer.zero_grad()
            run(images).square().mean().backward()
            nn.utils.clip_grad_norm_(one.parameters(), 0.1)
            optimizer.step()
    errors = [difference(p, q) for p, q in zip(net.parameters(), eager.parameters())]
    assert sorted(errors)[len(errors) // 2] < 1e-3


def test_random_graphs_of_views():
    """Chains of views and arithmetic: each result has the elements that eager PyTorch gives it."""
    draw = random.Random(5)
    changes = (
        lambda x: x.transpose(0, 1),
        lambda x: x.unsqueeze(draw_axis).squeeze(draw_axis),
        lambda x: x.reshape(-1, x.shape[0]),
        lambda x: x.flip(0) if x.ndim > 3 else x * 3,
        lambda x: x[1:] + x[:-1],
        lambda x: torch.cat([x, x * 2], -1),
        lambda x: x.expand(2, *x.shape).sum(0),
    )
    chains = [[draw.choice(changes) for _ in range(4)] for _ in range(6)]
    draw_axis = 0

    def function(x):
        results = []
        for chain in chains:
            y = x
            for change in chain:
                y = change(y)
            results.append(y)
        return results

    x = torch.randn(6, 4, 5)
    for ours, theirs in zip(compiled(function)(x), function(x)):
        assert ours.shape == theirs.shape and torch.allclose(ours, theirs, atol=1e-5)


def test_a_graph_without_a_pair_returns_everything_to_its_caller():
    """Outside of training no result may stay on the device."""
    graph = torch.fx.symbolic_trace(lambda x: torch.ops.aten.tanh.default(x))
    x = torch.randn(3)
    for node in graph.graph.nodes:
        node.meta["val"] = x
    assert difference(take_regions(graph, core.context(), Explanation())(x), torch.tanh(x)) < 1e-6
