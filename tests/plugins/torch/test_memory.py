"""Where values of regions lie: on the device between forward and backward, or in memory that is used again."""

import copy
import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from clgraft import core  # noqa: E402
from clgraft.core.runtime.plan import Plan  # noqa: E402
from clgraft.plugins.torch import held, memory  # noqa: E402
from clgraft.plugins.torch.backend import compiler  # noqa: E402
from clgraft.plugins.torch.execution import RegionModule  # noqa: E402
from clgraft.plugins.torch.explanation import Explanation  # noqa: E402
from tests.plugins.torch.test_backend import difference, small_net  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


def compiled(model, context, frozen=False):
    return torch.compile(model, backend=compiler(context, Explanation(), frozen))


class Bus:
    """Counts bytes that cross a context's bus."""

    def __init__(self, context):
        self.context, self.last = context, context.counters()

    def moved(self):
        """Return bytes to the device and to the host since the last call."""
        before, self.last = self.last, self.context.counters()
        return tuple(self.last[name] - before[name] for name in ("bytes_to_device", "bytes_to_host"))


def nbytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.is_floating_point())


@pytest.mark.parametrize("frozen", [False, True])
def test_training_keeps_what_backward_reads_on_the_device(staged, frozen):
    """Forward sends images, parameters and statistics, backward only the loss' gradient: everything crosses once."""
    net = small_net()
    exact = copy.deepcopy(net).double()
    model, bus = compiled(net, staged, frozen), Bus(staged)
    parameters = nbytes(net.parameters())
    x = torch.randn(4, 3, 10, 12, requires_grad=True)
    for step in range(2):
        net.zero_grad(set_to_none=True)
        exact.zero_grad()
        y = model(x)
        to_device, to_host = bus.moved()
        assert to_host == nbytes([y, *net.buffers()])
        unchanged = parameters if frozen and step else 0
        assert to_device == nbytes([x, *net.buffers()]) + parameters - unchanged
        dy = torch.randn(y.shape)
        (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        bus.moved()
        y.backward(dy)
        assert bus.moved() == (nbytes([dy]), nbytes([x, *net.parameters()]))
        exact(x.detach().double()).backward(dy.double())
        gradients = [torch.cat([p.grad.flatten() for p in one.parameters()]) for one in (net, exact)]
        assert difference(*gradients) < 1e-5
    del y, dx
    gc.collect()
    assert not held._HELD


def test_two_forwards_before_their_backwards(staged):
    """Each backward reads what its own forward left, in any order; bits are those of runs in place."""
    net = small_net()
    results = []
    for context in (core.context(), staged):
        torch._dynamo.reset()
        model = compiled(copy.deepcopy(net), context)
        for order in ((0, 1), (1, 0)):
            generator = torch.Generator().manual_seed(5)
            inputs = [torch.randn(2, 3, 8, 8, generator=generator).requires_grad_() for _ in range(2)]
            outputs = [model(x) for x in inputs]
            for i in order:
                outputs[i].square().sum().backward()
            results.append([*(x.grad for x in inputs), *(p.grad for p in model.parameters())])
    count = len(results) // 2
    for ours, expected in zip(results[count:], results[:count]):
        assert all(torch.equal(a, b) for a, b in zip(ours, expected))


class Sorted(torch.nn.Module):
    """An operator that stays PyTorch's between two layers: two regions for each pass."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)

    def forward(self, x):
        return torch.tanh(self.second(torch.sort(torch.tanh(self.first(x)))[0]))


def test_regions_have_copies_of_their_own(staged):
    """Frozen parameters of two regions are different arrays; a change of one is sent."""
    net = Sorted()
    exact, model = copy.deepcopy(net).double(), compiled(net, staged, frozen=True)
    for step in range(3):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        for one, run, images in ((net, model, x), (exact, exact, x.double())):
            one.zero_grad()
            run(images).square().sum().backward()
            with torch.no_grad():
                one.second.weight.sub_(one.second.weight.grad)
        gradients = [torch.cat([p.grad.flatten() for p in one.parameters()]) for one in (net, exact)]
        assert difference(*gradients) < 1e-5


def test_a_backward_that_pytorch_runs_reads_values_of_the_device(staged, monkeypatch):
    model, x = compiled(lambda x, w: torch.tanh(x @ w) * w, staged), torch.randn(5, 5, requires_grad=True)
    w = torch.randn(5, 5, requires_grad=True)
    y = model(x, w)
    bus = Bus(staged)
    monkeypatch.setattr(RegionModule, "_compile", lambda *_: None)
    got = torch.autograd.grad(y.sum(), (x, w))
    assert bus.moved() == (0, 2 * nbytes([x]))
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, w)]
    for ours, theirs in zip(got, torch.autograd.grad((torch.tanh(exact[0] @ exact[1]) * exact[1]).sum(), exact)):
        assert difference(ours, theirs) < 1e-5


def test_operators_that_stay_pytorchs_read_values_of_the_device(staged):
    def function(x):
        y = torch.tanh(x * 2)
        return torch.sort(y)[0] * torch.special.i0(y) + y

    x = torch.randn(6, 7, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    y, expected = compiled(function, staged)(x), function(exact)
    dy = torch.randn(6, 7)
    y.backward(dy)
    expected.backward(dy.double())
    assert difference(y, expected) < 1e-6 and difference(x.grad, exact.grad) < 1e-5


def test_hooks_of_saved_tensors_see_their_elements(staged):
    x = torch.randn(4, 300, requires_grad=True)
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t.clone(), lambda t: t):
        y = compiled(lambda x: torch.tanh(x * 3).square().sum(), staged)(x)
    y.backward()
    exact = x.detach().double().requires_grad_()
    torch.tanh(exact * 3).square().sum().backward()
    assert seen and difference(x.grad, exact.grad) < 1e-5


def test_memory_is_used_again_when_its_tensor_is_gone():
    blocks = memory.Blocks()
    first = blocks.empty((300, 100), "float32")
    second = blocks.empty((100, 600), "bfloat16")
    addresses = {tensor.data_ptr() for tensor in (first, second)}
    assert len(addresses) == 2 and all(address % 64 == 0 for address in addresses)
    view = first.t()[5:]
    del first
    assert blocks.unused == 0, "a view needs the memory"
    del view
    assert blocks.unused == 120_000
    again = blocks.empty((120_000 // 8,), "float64")
    assert again.data_ptr() in addresses and blocks.unused == 0
    del again, second
    assert blocks.unused == 240_000
    other = blocks.empty((240_000,), "uint8")
    assert blocks.unused <= 240_000 and other.data_ptr() not in addresses
    small = blocks.empty((3,), "float32")
    del small
    assert blocks.unused <= 240_000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "staged"])
@pytest.mark.parametrize("frozen", [False, True])
def test_tensors_of_16_bits(staged, own, frozen, dtype):
    """Large enough for memory that is used again; parameters as constants, and values that stay on the device."""
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.SiLU(), torch.nn.AvgPool2d(2)).to(dtype)
    exact = copy.deepcopy(net).double()
    model = compiled(net, staged if own else core.context(), frozen)
    x = torch.randn(8, 3, 32, 32).to(dtype)
    unit = torch.finfo(dtype).eps
    for training in (True, False):
        with torch.set_grad_enabled(training):
            y, expected = model(x), exact(x.double())
        assert y.dtype == dtype and y.nbytes >= memory.SMALLEST
        assert difference(y.detach().double(), expected.detach()) < 4 * unit
        if training:
            dy = torch.randn(y.shape).to(dtype)
            y.backward(dy)
            expected.backward(dy.double())
            for ours, right in zip(net.parameters(), exact.parameters()):
                assert ours.grad.dtype == dtype and difference(ours.grad.double(), right.grad) < 8 * unit


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_arrays_in_the_memory_of_tensors(dtype):
    tensor = torch.tensor([1.5, -2, 3e-3]).to(dtype)
    array = memory.array_of(tensor)
    assert array.dtype.name == str(dtype).removeprefix("torch.") and array.ctypes.data == tensor.data_ptr()
    assert torch.equal(memory.tensor_of(array), tensor) and memory.tensor_of(array).data_ptr() == tensor.data_ptr()


def test_results_may_be_changed_in_place_and_kept():
    model = torch.compile(lambda x: x * 2, backend=compiler(core.context(), Explanation()))
    kept = []
    for step in range(4):
        x = torch.full((200, 400), float(step + 1), requires_grad=True)
        y = model(x)
        y.add_(1)
        y.sum().backward()
        assert np.all(x.grad.numpy() == 2)
        kept.append(y.detach())
    assert [float(y.mean()) for y in kept] == [3.0, 5.0, 7.0, 9.0]


def test_gradients_are_not_copied(monkeypatch):
    """PyTorch takes the tensors that a region returns as the parameters' gradients."""
    made = set()
    original = memory.Blocks.empty

    def remember(self, *arguments):
        tensor = original(self, *arguments)
        made.add(tensor.data_ptr())
        return tensor

    monkeypatch.setattr(memory.Blocks, "empty", remember)
    net = torch.nn.Sequential(torch.nn.Linear(200, 150), torch.nn.BatchNorm1d(150), torch.nn.Linear(150, 120))
    compiled(net, core.context())(torch.randn(6, 200)).square().sum().backward()
    assert all(p.grad.data_ptr() in made for p in net.parameters())


def test_tensors_are_used_in_place(bound):
    """The core reads images and parameters where they are, and writes what PyTorch returns."""
    net, x = small_net(), torch.randn(2, 3, 8, 8)
    y = compiled(net, core.context())(x)
    dy = torch.randn(y.shape)
    y.backward(dy)
    parameters = {p.data_ptr() for p in net.parameters()}
    gradients = {p.grad.data_ptr() for p in net.parameters()}
    forward, backward = bound
    assert forward >= parameters | {x.data_ptr(), y.data_ptr()}
    assert backward >= gradients | {dy.data_ptr()}


def test_values_that_stay_share_memory(staged):
    """More of them than a page of tensors stands for, of three dtypes; each is found and read back."""
    arrays, rng = held.Arrays(staged), np.random.default_rng(3)
    dtypes = ("float32", "float64", "float16")
    values = [rng.standard_normal((i % 7, i % 5 + 1)).astype(dtypes[i % 3]) for i in range(7000)]
    layout = held.Layout([(value.shape, str(value.dtype)) for value in values])
    lease = arrays.take(layout.nbytes)
    tensors = layout.hold(lease, [value.shape for value in values])
    for value, offset in zip(values, layout.offsets):
        if value.size:
            pointer = staged.ffi.cast("void *", value.ctypes.data)
            assert staged.lib.clg_array_write(lease.handle, offset, pointer, value.nbytes) == 0
    places = [held.held(tensor) for tensor in tensors if tensor.numel()]
    assert len({place.offset for place in places}) == len(places) and all(p.lease is lease for p in places)
    for tensor, value in zip(tensors, values):
        assert tensor.shape == value.shape and torch.isnan(tensor).all()
        if value.size:
            assert np.array_equal(held.fetch(tensor).numpy(), value)
    assert arrays.unused == 0
    del lease, places, tensor
    assert arrays.unused == 0, "the tensors need it"
    del tensors
    assert arrays.unused == layout.nbytes
    again = arrays.take(layout.nbytes)
    assert arrays.unused == 0
    other = arrays.take(64)
    del again, other
    arrays.release()
    assert arrays.unused == 0


def test_memory_that_nobody_uses_is_given_back_where_it_is_short(staged, monkeypatch):
    x = torch.randn(3, 40, requires_grad=True)
    model = compiled(lambda x: torch.tanh(torch.tanh(x * 3)).square().sum(), staged)
    model(x).backward()
    gc.collect()
    arrays = held.arrays_of(staged)
    kept = arrays.unused
    assert kept
    model(x).backward()  # with the same memory
    gc.collect()
    assert arrays.unused == kept
    failures = [True]
    run = Plan.run_bound

    def refuse(self, *arguments):
        if failures and arrays.unused:
            failures.clear()
            raise core.ExecutionError("no memory", staged.lib.CLG_OUT_OF_MEMORY)
        return run(self, *arguments)

    spare = arrays.take(1000)
    del spare
    monkeypatch.setattr(Plan, "run_bound", refuse)
    model(x).backward()
    assert not failures
    gc.collect()
    assert arrays.unused == kept
