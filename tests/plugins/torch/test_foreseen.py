"""Kernels of convolutions are built while PyTorch differentiates a model: they are those that its graphs need."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from clgraft import core  # noqa: E402
from clgraft.core.problem import parse  # noqa: E402
from clgraft.core.runtime import build_processes  # noqa: E402
from clgraft.plugins.torch.backend import compiler  # noqa: E402
from clgraft.plugins.torch.explanation import Explanation  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


class Net(nn.Module):
    """Convolutions of all kinds, some of which the plugin need not understand."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 7, stride=2, padding=3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
            nn.Conv2d(8, 6, (3, 1), padding=(1, 0), dilation=(1, 2)),
            nn.Conv2d(6, 6, 3, padding="same", groups=2),
        )
        self.line = nn.Conv1d(6, 4, 3, stride=2, padding=1)
        self.weight = nn.Parameter(torch.randn(5, 4, 1))

    def forward(self, x):
        y = self.line(self.layers(x).flatten(2))
        return functional.conv1d(input=y, weight=self.weight).sum((1, 2))


def foreseen(monkeypatch, model, *inputs, mixed=None):
    """Return the problems that are foreseen for a training step of a model, and those of its graphs."""
    expected, planned = [], []
    monkeypatch.setattr(core.Context, "expect", lambda _, problems: expected.extend(problems))
    choose = core.Context.choose
    monkeypatch.setattr(
        core.Context,
        "choose",
        lambda context, problem, *more: planned.append(problem) or choose(context, problem, *more),
    )
    torch.compile(model, backend=compiler(core.context(), Explanation(), mixed=mixed))(*inputs).sum().backward()
    return expected, [problem for problem in planned if problem.kind == "conv"]


def test_every_convolution_of_a_training_step_is_foreseen(monkeypatch):
    expected, planned = foreseen(monkeypatch, Net(), torch.randn(2, 3, 15, 13))
    named = {str(problem) for problem in expected}
    assert parse("conv forward n2 ic3 ih15 iw13 oc8 kh7 kw7 sh2 sw2 ph3 pw3 b1") in expected
    assert len(named) == len(expected)
    assert not any("backward_data" in name and "ic3 " in name for name in named)  # nobody wants the images' gradient
    same = " g2 n2 ic6 ih8 iw7 oc6 kh3"  # padding in words is left out
    missing = {str(problem) for problem in planned} - named
    assert missing and all(same in name for name in missing), missing


def test_sizes_that_change_are_not_foreseen(monkeypatch):
    images = torch.randn(3, 3, 15, 13)
    torch._dynamo.mark_dynamic(images, 0)
    assert foreseen(monkeypatch, Net(), images)[0] == []


def test_nothing_is_foreseen_of_inference_and_of_what_is_cast_later(monkeypatch):
    with torch.no_grad():
        expected = []
        monkeypatch.setattr(core.Context, "expect", lambda _, problems: expected.extend(problems))
        torch.compile(Net(), backend=compiler(core.context(), Explanation()))(torch.randn(2, 3, 15, 13))
    assert expected == []
    assert foreseen(monkeypatch, Net(), torch.randn(2, 3, 15, 13), mixed="float16")[0] == []


def test_a_step_computes_the_same_with_early_builds(monkeypatch, tmp_path):
    context = core.context()
    if context.toolchain.children is None or not context.device.is_cpu:
        pytest.skip("of CPUs whose kernels child processes build")
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(build_processes.VARIABLE, "2")
    began = []
    begin = build_processes.begin
    monkeypatch.setattr(build_processes, "begin", lambda *given: began.append(given[1]) or begin(*given))
    model, x = Net(), torch.randn(2, 3, 15, 13)
    torch.compile(model, backend=compiler(context, Explanation()))(x).sum().backward()
    found = {name: one.grad.clone() for name, one in model.named_parameters()}
    model.zero_grad()
    model(x).sum().backward()
    for name, one in model.named_parameters():
        torch.testing.assert_close(found[name], one.grad, rtol=2e-3, atol=2e-4)
    assert len(began) == 1 and "conv forward" in began[0]
