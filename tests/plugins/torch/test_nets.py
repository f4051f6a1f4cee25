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
from clgraft.plugins.torch.bench_models import torchvision  # noqa: E402
from clgraft.plugins.torch.explanation import Explanation  # noqa: E402
from tests.plugins.onnx.torch_nets import build  # noqa: E402
from tests.plugins.torch.smooth import smooth, smooth_functions  # noqa: E402

UNITS = 8  # relative to eager float32's own error: Winograd's method rounds more than the direct one
NETS = ["resnet18", "mobilenet_v3_small", "squeezenet1_0", "shufflenet_v2_x1_0"]


def distance(got, expected):
    """Return the norm of the difference relative to the expected norm."""
    return float((got.detach().double() - expected.detach()).norm() / expected.detach().norm().clamp(min=1e-30))


def small_transformer():
    """Return a vision transformer of two layers."""
    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 48}
    net = torchvision().models.VisionTransformer(**sizes, num_classes=7)
    torch.nn.init.normal_(net.heads.head.weight)
    return net


def small_convnext():
    """Return a net of depthwise convolutions, layer norms and dense layers, whose blocks may be dropped."""
    module = torchvision().models.convnext
    return module.ConvNeXt([module.CNBlockConfig(16, 24, 2), module.CNBlockConfig(24, None, 1)], 0.5, num_classes=7)


OWN = {"transformer": small_transformer, "convnext": small_convnext, "unet": lambda: build("unet")}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.exhaustive) for name in NETS] + list(OWN))
def test_training(name, caplog):
    caplog.set_level("WARNING")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(6)
    net = smooth((OWN[name]() if name in OWN else build(name)).train())
    eager, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    found = Explanation()
    compiled = torch.compile(net, backend=compiler(core.context(), found))
    size = 32 if name in OWN else 64
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(2))
    outputs = []
    with smooth_functions():
        for model, images in ((compiled, x), (eager, x), (exact, x.double())):
            outputs.append(model(images))
            outputs[-1].square().mean().backward()
    assert distance(outputs[0], outputs[2]) <= UNITS * distance(outputs[1], outputs[2]) + 1e-6
    errors = [
        median(distance(p.grad, q.grad) for p, q in zip(model.parameters(), exact.parameters()) if q.grad is not None)
        for model in (net, eager)
    ]
    assert errors[0] <= UNITS * errors[1] + 1e-6
    assert found.regions == 2 and set(found.kept.values()) <= {"it has values of torch.int64"}, found
    assert not torch._dynamo.utils.counters["graph_break"]


def test_blocks_that_are_dropped(caplog):
    """Stochastic depth: the random numbers are PyTorch's, and nothing else."""
    caplog.set_level("WARNING")
    torch._dynamo.reset()
    net, found = small_convnext().train(), Explanation()
    eager = copy.deepcopy(net)
    results = []
    for model in (torch.compile(net, backend=compiler(core.context(), found)), eager):
        torch.manual_seed(4)
        results.append(model(torch.ones(3, 3, 32, 32)))
        results[-1].sum().backward()
    assert distance(results[0], results[1].double()) < 1e-4
    assert set(found.kept) == {"aten.bernoulli.p", "aten.empty.memory_format"} and found.regions == 2
