"""Whole nets of the model zoo: every gradient in float64, the rest of the zoo's swap, and files between processes."""

from __future__ import annotations

import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest

import clgraft.mxnet_ops as ops
from tests.mxnet_ops.operator_checks import random
from tests.mxnet_ops.zoo_comparison import NETS, compare_net, filled, image_size, make, worst

# a net of each family, with its number of images; all of them: zoo_comparison.py
TRAINED = {
    "alexnet": 2,
    "vgg11_bn": 2,
    "resnet18_v1": 2,
    "resnet50_v2": 2,
    "squeezenet1.1": 2,
    "densenet121": 1,
    "inceptionv3": 1,
    "mobilenet0.25": 2,
    "mobilenetv2_0.25": 2,
}
SINGLE = ["alexnet", "vgg11_bn", "resnet50_v2", "squeezenet1.1", "densenet121", "mobilenetv2_0.25"]
ROUNDING_GROWTH = 1e-10
DEPTH_ROUNDING = 1e-3  # of the largest output, after up to 200 layers
SWAPS = ({"regions": False}, {"regions": True})
UNITS = 8  # relative to MXNet's own error: Winograd's method rounds more than the direct one


@pytest.mark.parametrize("name", TRAINED)
def test_every_gradient_of_a_net_as_symbol_and_as_gluon_block(name):
    found = compare_net(name, TRAINED[name], wanted=("double", "double_block"))
    fixed = set(found.double) - set(found.double_block)
    assert all(name.endswith(("gamma", "beta")) for name in fixed), fixed
    for twin in (found.double, found.double_block):
        error, whose = max((error, name) for name, error in twin.items())
        assert error < ROUNDING_GROWTH, f"{whose}: {error:.1e}"


@pytest.mark.parametrize("name", SINGLE)
def test_every_gradient_in_single_precision_is_as_near_to_float64_as_mxnets(name):
    # where a rectifier's input is zero to rounding, a gradient jumps: a net without kinks shows rounding alone
    found = compare_net(name, TRAINED[name], wanted=("swapped",), smooth=True)
    for kind in ("output", "gradient"):
        (error, whose), (native, _) = worst(found.swapped, kind), worst(found.native, kind)
        assert error < UNITS * max(native, 1e-6), f"{whose}: {error:.1e}, native {native:.1e}"


@pytest.mark.parametrize("name", NETS)
def test_swap_of_a_net_keeps_names_and_shapes_and_leaves_nothing_that_computes(name):
    native = make(name)(mx.sym.var("data"))
    swapped, report = ops.swap_symbol(native)
    assert {row.operator for row in report.kept} <= {"Flatten", "Reshape", "identity"}
    assert swapped.list_arguments() == native.list_arguments()
    assert swapped.list_auxiliary_states() == native.list_auxiliary_states()
    assert swapped.list_outputs() == native.list_outputs()
    shape = (2, 3, image_size(name), image_size(name))
    assert swapped.infer_shape(data=shape) == native.infer_shape(data=shape)


@pytest.mark.parametrize("name", [name for name in NETS if name not in TRAINED])
def test_every_other_net_of_the_zoo_binds_and_runs(name):
    native = make(name)(mx.sym.var("data"))
    arrays, states = filled(native, (1, 3, image_size(name), image_size(name)), 3)
    outputs = []
    for symbol in (native, *(ops.swap_symbol(native, **options)[0] for options in SWAPS)):
        given, kept = ({k: mx.nd.array(v) for k, v in found.items()} for found in (arrays, states))
        executor = symbol.bind(mx.cpu(), given, None, "null", kept)
        outputs.append(executor.forward(is_train=False)[0].asnumpy())
    assert np.ptp(outputs[0]) > 0
    for output in outputs[1:]:
        assert np.abs(output - outputs[0]).max() <= DEPTH_ROUNDING * np.abs(outputs[0]).max()


LOAD = """
import sys
{first}
import mxnet as mx
import numpy as np
symbol, arguments, states = mx.model.load_checkpoint(sys.argv[1], 1)
x = mx.nd.array(np.load(sys.argv[1] + ".npy"))
executor = symbol.bind(mx.cpu(), {{**arguments, "data": x}}, None, "null", states)
np.save(sys.argv[1] + "-found.npy", executor.forward(is_train=False)[0].asnumpy())
"""


def test_a_saved_swap_loads_in_a_process_that_knows_clgraft_and_is_a_clear_error_in_another(tmp_path, rng):
    x = random(rng, 2, 3, 32, 32)
    net = make("mobilenet0.25")
    net.initialize(mx.init.Xavier())
    expected = net(mx.nd.array(x)).asnumpy()
    net.hybridize()
    net(mx.nd.array(x))
    prefix = str(tmp_path / "net")
    net.export(prefix, 1)
    ops.swap_symbol(mx.sym.load(prefix + "-symbol.json"))[0].save(prefix + "-symbol.json")
    np.save(prefix + ".npy", x)

    def load(first: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", LOAD.format(first=first), prefix]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    knows = load("import clgraft.mxnet_ops")
    assert knows.returncode == 0, knows.stderr
    found = np.load(prefix + "-found.npy")
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    # on Python 3.12 MXNet needs the aliases, which are no operators
    other = load(
        "import clgraft.core" if sys.version_info < (3, 12) else "import clgraft.mxnet_ops.engine.numpy_compat"
    )
    if sys.version_info < (3, 12):
        assert other.returncode > 0, "expected an error, no crash"
        assert "ocl_" in other.stderr, other.stderr
