"""Nets of torchvision with random weights: forward and every gradient, by their distance from eager PyTorch in float64.

Rounding alone moves the kinks of rectifiers and maxima, where gradients jump: the nets have SiLU and averages instead.
The median over all parameters is compared with that of eager PyTorch in float32.
"""

import copy
import importlib.util
from statistics import median

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("torchvision") is None:  # its import needs operators that `build` declares
    pytest.skip("torchvision is not installed", allow_module_level=True)

from clgraft import core  # noqa: E402
from clgraft.plugins.torch.backend import compiler  # noqa: E402
from clgraft.plugins.torch.regions import Explanation  # noqa: E402
from tests.plugins.onnx.torch_nets import build  # noqa: E402

UNITS = 8  # relative to eager float32's own error: Winograd's method rounds more than the direct one
NETS = ["resnet18", "mobilenet_v3_small", "squeezenet1_0", "shufflenet_v2_x1_0"]


def distance(got, expected):
    """Return the norm of the difference relative to the expected norm."""
    return float((got.detach().double() - expected.detach()).norm() / expected.detach().norm().clamp(min=1e-30))


def smooth(net):
    """Take the kinks out of a net, in place, and what draws random numbers: two runs would have nothing in common."""
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, torch.nn.ReLU):
                setattr(module, name, torch.nn.SiLU())
            elif isinstance(child, torch.nn.MaxPool2d):
                average = torch.nn.AvgPool2d(child.kernel_size, child.stride, child.padding, child.ceil_mode)
                setattr(module, name, average)
            elif isinstance(child, torch.nn.Dropout):
                child.p = 0.0
    return net


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NETS)
def test_training(name, caplog):
    caplog.set_level("WARNING")
    torch._dynamo.reset()
    net = smooth(build(name).train())
    eager, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    found = Explanation()
    compiled = torch.compile(net, backend=compiler(core.context(), found))
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    outputs = []
    for model, images in ((compiled, x), (eager, x), (exact, x.double())):
        outputs.append(model(images))
        outputs[-1].square().mean().backward()
    assert distance(outputs[0], outputs[2]) <= UNITS * distance(outputs[1], outputs[2]) + 1e-6
    errors = [
        median(distance(p.grad, q.grad) for p, q in zip(model.parameters(), exact.parameters()) if q.grad is not None)
        for model in (net, eager)
    ]
    assert errors[0] <= UNITS * errors[1] + 1e-6
    assert found.regions and {reason for reason in found.kept.values()} <= {"it has values of torch.int64"}, found
