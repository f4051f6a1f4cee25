"""What stays PyTorch's: one call and not what is next to it, with a warning, an error where that is asked for."""

import contextlib
import copy
import importlib.util
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import clgraft.plugins.torch as plugin  # noqa: E402
from clgraft import core  # noqa: E402
from clgraft.core import log  # noqa: E402
from clgraft.core.errors import ArgumentError, BuildError, ProblemError  # noqa: E402
from clgraft.core.session.context import Context  # noqa: E402
from clgraft.plugins.torch.backend import clgraft, compiler  # noqa: E402
from clgraft.plugins.torch.execution import RegionModule  # noqa: E402
from clgraft.plugins.torch.explanation import Explanation  # noqa: E402
from clgraft.plugins.torch.lowering.builder import Builder  # noqa: E402
from clgraft.plugins.torch.lowering.values import NotLowered  # noqa: E402
from tests.plugins.torch.test_backend import difference, small_net  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def warnings(monkeypatch, caplog):
    """Return the warnings of the test, which hears those of earlier tests again."""
    monkeypatch.setattr(log, "_warned", set())

    def texts():
        return [record.getMessage() for record in caplog.records if record.name == "clgraft"]

    return texts


REFUSED = {  # a call that the core has no problem for, because of an argument
    "dilated pooling": (lambda x: functional.max_pool2d(x, 2, dilation=2), "max_pool2d", "got dilation [2, 2]"),
    "wide strides": (lambda x: functional.avg_pool2d(x, 2, 3, ceil_mode=True), "avg_pool2d", "ceil_mode"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_refused_argument_keeps_one_operator(name, warnings):
    call, target, reason = REFUSED[name]
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh())
    after = nn.Linear(8, 5)

    def function(x):
        return after(torch.tanh(call(net(x))).mean((2, 3)))

    found = Explanation()
    x = torch.randn(2, 3, 9, 9)
    y = torch.compile(function, backend=compiler(core.context(), found))(x)
    y.sum().backward()
    assert difference(y, function(x)) < 1e-5
    assert all(target in name for name in found.kept) and found.kept
    assert all(reason in why for why in found.kept.values())
    assert {"aten.convolution.default", "aten.tanh.default", "aten.addmm.default"} <= set(found.lowered)
    assert not any(target in name for name in found.lowered)
    assert any(target in text and reason in text for text in warnings())
    assert len(warnings()) == len(set(warnings()))


def test_indices_of_maxima_that_are_asked_for_stay_pytorchs():
    found = Explanation()

    def function(x):
        y, places = functional.max_pool2d(x * 2, 2, return_indices=True)
        return torch.tanh(y), places

    x = torch.randn(2, 3, 6, 6)
    (y, places), (expected, wanted) = torch.compile(function, backend=compiler(core.context(), found))(x), function(x)
    assert difference(y, expected) < 1e-6 and torch.equal(places, wanted)
    assert set(found.kept) == {"aten.max_pool2d_with_indices.default"} and "aten.tanh.default" in found.lowered


def test_what_only_a_whole_region_refuses_keeps_one_operator(monkeypatch):
    """The region is lowered as it will be compiled: a view that is no memory may be refused where memory is not."""
    permuted = Builder.stored

    def refuse(self, operand):
        if not operand.contiguous:
            raise NotLowered("[torch] got a view, expected none")
        return permuted(self, operand)

    monkeypatch.setattr(Builder, "stored", refuse)
    found = Explanation()

    def function(x):
        return functional.softmax(torch.tanh(x).permute(1, 0), 1) * 3

    x = torch.randn(5, 7)
    y = torch.compile(function, backend=compiler(core.context(), found))(x)
    assert difference(y, function(x)) < 1e-6
    assert found.kept == {"aten._softmax.default": "[torch] got a view, expected none"}
    assert {"aten.tanh.default", "aten.mul.Tensor"} <= set(found.lowered)


def test_wrong_settings_raise(monkeypatch):
    monkeypatch.setenv("CLGRAFT_TUNE", "foo")
    x = torch.randn(11, 13)
    with pytest.raises(ArgumentError, match="CLGRAFT_TUNE='foo'"):
        torch.compile(lambda x: torch.tanh(x) * 7, backend=clgraft)(x)
    with pytest.raises(ArgumentError, match="CLGRAFT_TUNE='foo'"):
        plugin.explain(nn.Linear(13, 3), x)


@pytest.fixture
def broken(monkeypatch):
    """Let no graph be compiled."""

    def refuse(*arguments, **keywords):
        raise BuildError("[build] got a kernel that does not build, expected another")

    monkeypatch.setattr(Context, "compile", refuse)


def test_a_region_that_is_not_built_falls_back_with_a_warning(broken, warnings):
    net, found = small_net().eval(), Explanation()
    compiled = torch.compile(net, backend=compiler(core.context(), found))
    with torch.no_grad():
        for batch in (2, 3):
            x = torch.randn(batch, 3, 8, 8)
            assert difference(compiled(x), net(x)) < 1e-5
    assert len(warnings()) == 1 and "got a kernel that does not build" in warnings()[0]
    assert "aten.convolution.default" in warnings()[0]
    assert not found.lowered and not found.regions and any("region" in name for name in found.kept)
    assert str(found).startswith("0 operators in 0 regions") and "got a kernel that does not build" in str(found)


def test_strict_raises_what_a_device_refuses(broken):
    x = torch.randn(4, 5)
    with pytest.raises(BuildError, match="got a kernel that does not build"):
        torch.compile(lambda x: torch.tanh(x) * 5, backend=clgraft, options={"strict": True})(x)


@pytest.mark.parametrize("training", [False, True])
def test_strict_raises_with_all_that_stays(training):
    def function(x):
        return torch.cumsum(functional.max_pool2d(torch.tanh(x), 2, dilation=2), 0)

    x = torch.randn(2, 3, 9, 9, requires_grad=training)
    with pytest.raises(Exception, match="expected none with strict") as raised:
        torch.compile(function, backend=clgraft, options={"strict": True})(x)
    text = str(raised.value)
    assert "aten.cumsum.default (no problem of the core computes it)" in text
    assert "aten.max_pool2d_with_indices.default" in text and "got dilation [2, 2]" in text
    assert ("max_pool2d_backward" in text) == training


def test_strict_accepts_counters_and_random_numbers():
    """Batch norm counts its batches in whole numbers, and dropout draws PyTorch's random numbers."""
    net = small_net(dropout=0.5)
    y = torch.compile(net, backend=clgraft, options={"strict": True})(torch.randn(4, 3, 8, 8))
    y.sum().backward()
    assert net[1].num_batches_tracked == 1 and net[0].weight.grad.abs().sum() > 0


def test_counters_and_random_numbers_are_no_reason_to_warn(warnings):
    torch.compile(small_net(dropout=0.5), backend=clgraft)(torch.randn(4, 3, 8, 8)).sum().backward()
    assert not warnings()


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_explain_says_why_nothing_runs(kind):
    found = plugin.explain(kind(4, 5), torch.randn(3, 2, 4))
    if found.graphs:
        pytest.skip("this PyTorch traces recurrent layers")
    assert not found.lowered and found.breaks
    assert "PyTorch has traced nothing" in str(found) and kind.__name__ in str(found) and "Hint" not in str(found)


def test_explain_reports_graph_breaks():
    def function(x):
        y = torch.tanh(x)
        torch._dynamo.graph_break()
        return y.exp()

    found = plugin.explain(function, torch.randn(3, 4))
    assert found.graphs == 2 and found.regions == 2 and sum(found.breaks.values()) == 1
    assert "graph break" in str(found)
    assert not plugin.explain(torch.tanh, torch.randn(3, 4)).breaks


def test_shapes_that_a_region_refuses_later_are_computed_by_pytorch(monkeypatch, warnings):
    """Sizes may change after the regions have been formed."""
    found = Explanation()
    compiled = torch.compile(lambda x: torch.tanh(x) * 2, backend=compiler(core.context(), found), dynamic=True)
    compiled(torch.randn(3, 4))
    pointwise = Builder.pointwise

    def refuse(self, text, operands, *more, **others):
        if operands[0].shape[0] == 5:
            raise ProblemError("[torch] got 5 rows, expected others")
        return pointwise(self, text, operands, *more, **others)

    monkeypatch.setattr(Builder, "pointwise", refuse)
    x = torch.randn(5, 4)
    assert difference(compiled(x), torch.tanh(x) * 2) < 1e-6
    assert len(warnings()) == 1 and "got 5 rows" in warnings()[0]
    assert found.regions == 1 and len(found.lowered) == 2


class HalfNorm(nn.Module):
    """A batch norm of float32 between layers that autocast computes in float16."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Linear(8, 5)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.float16):
            y = functional.relu(self.norm(self.first(x)))
            return self.second(y.mean((2, 3))).float()


@pytest.mark.parametrize("training", [False, True])
def test_autocast_in_float16_runs_with_norms_in_float32(training, warnings):
    net = HalfNorm().train(training)
    eager, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    x = torch.randn(4, 3, 8, 8)
    compiled = torch.compile(net, backend=clgraft, options={"strict": True})
    try:
        theirs = eager(x)
    except RuntimeError as error:
        pytest.skip(f"this PyTorch computes no float16 here: {error}")
    y = compiled(x)
    assert y.dtype == theirs.dtype == torch.float32 and not warnings()
    wide = exact.second(functional.relu(exact.norm(exact.first(x.double()))).mean((2, 3)))
    assert difference(y, wide) <= 2 * difference(theirs, wide) + 2e-3
    if training:
        y.square().sum().backward()
        wide.square().sum().backward()
        for ours, reference in zip(net.parameters(), exact.parameters()):
            if ours is not net.first.bias:  # a batch norm follows: its gradient is rounding alone
                assert ours.grad.dtype == torch.float32 and difference(ours.grad, reference.grad) < 2e-2
        assert difference(net.norm.running_var, exact.norm.running_var) < 2e-3


TYPES = {
    "to": (lambda x, y: x.half() * 2, torch.float16),
    "and-back": (lambda x, y: (x.half() * y.half()).float() + x, torch.float32),
    "mixed": (lambda x, y: x.half() * y, torch.float32),
    "mixed-join": (lambda x, y: torch.cat([x.half(), y], 1), torch.float32),
    "sum": (lambda x, y: (x.half() * 2).sum(1, dtype=torch.float32), torch.float32),
    "mean": (lambda x, y: (x.half() * 2).mean(1, dtype=torch.float32), torch.float32),
    "softmax": (lambda x, y: functional.softmax(x.half() * 2, 1, dtype=torch.float32), torch.float32),
}


@pytest.mark.parametrize("name", TYPES)
def test_dtypes_change_inside_of_regions(name):
    function, dtype = TYPES[name]
    x, y = torch.randn(5, 12), torch.randn(5, 12)
    found = Explanation()
    got = torch.compile(function, backend=compiler(core.context(), found))(x, y)
    assert not found.kept and found.lowered, found
    assert got.dtype == dtype and difference(got, function(x, y)) < 1e-3


class Meeting(OrderedDict):
    """Programs that two threads look up at the same time, if nothing keeps them from that."""

    def __init__(self, programs):
        super().__init__(programs)
        self.barrier = threading.Barrier(2)

    def get(self, key, default=None):
        found = super().get(key, default)
        with contextlib.suppress(threading.BrokenBarrierError):
            self.barrier.wait(timeout=2)
        return found


def test_frozen_weights_that_change_while_threads_infer(monkeypatch):
    regions, create = [], RegionModule.__init__

    def remember(self, *arguments):
        create(self, *arguments)
        regions.append(self)

    monkeypatch.setattr(RegionModule, "__init__", remember)
    net = small_net().eval()
    x = torch.randn(2, 3, 8, 8)
    compiled = torch.compile(net, backend=clgraft, options={"frozen": True})
    results, errors = [], []

    def infer():
        try:
            with torch.no_grad():
                results.append(compiled(x))
        except Exception as error:
            errors.append(error)

    infer()
    (region,) = regions
    with torch.no_grad():
        net[9].bias.add_(1)
    region._programs = Meeting(region._programs)
    threads = [threading.Thread(target=infer) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert all(difference(y, results[0] + 1) < 1e-5 for y in results[1:]) and len(results) == 3


FIRST_USE = """
import sys, threading
from importlib.metadata import EntryPoint
import torch
from torch._dynamo.backends import registry
registry._lazy_import()
registry._BACKENDS["clgraft"] = EntryPoint("clgraft", sys.argv[1], "torch_dynamo_backends")
start, errors, x = threading.Barrier(4), [], torch.ones(3)
def use():
    start.wait()
    try:
        y = torch.compile(lambda x: torch.tanh(x) * 2, backend="clgraft")(x)
        assert torch.allclose(y, torch.tanh(x) * 2)
    except BaseException as error:
        errors.append(repr(error))
threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not errors, errors
"""


def test_the_first_use_in_four_threads():
    """The backend's name is registered once, by the entry point that the package declares."""
    project = Path(__file__).resolve().parents[3] / "pyproject.toml"
    section = project.read_text().split("[project.entry-points.torch_dynamo_backends]\n")[1]
    (entry,) = [line.split('"')[1] for line in section.splitlines()[:1]]
    assert importlib.util.find_spec(entry.partition(":")[0])
    done = subprocess.run([sys.executable, "-c", FIRST_USE, entry], capture_output=True, text=True)
    assert not done.returncode, done.stderr
