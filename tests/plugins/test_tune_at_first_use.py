"""``CLGRAFT_TUNE=full`` inside the frameworks: the first process searches and says so, the next one only uses it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.folders import python_path

PLANTED = """
from tests.core import tuning_plants as plants
from clgraft.core import ConvProblem
from clgraft.core.planning.implementation import register
register(ConvProblem, (plants.implementation("slow", plants.slow), *plants.of_plants()))
"""
MXNET = """
import clgraft.mxnet_ops
import mxnet as mx
import numpy as np
net = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, pad=(1, 1), no_bias=True, name="c")
results = []
for symbol in (net, clgraft.mxnet_ops.swap_symbol(net)[0]):
    executor = symbol.simple_bind(mx.cpu(), data=(2, 3, 9, 11))
    rng = np.random.default_rng(0)
    for array in executor.arg_arrays:
        array[:] = rng.standard_normal(array.shape)
    executor.forward(is_train=True)
    executor.backward([mx.nd.ones_like(executor.outputs[0])])
    results.append([array.asnumpy() for array in (*executor.outputs, *executor.grad_arrays)])
"""
CAFFE = """
import caffe
import numpy as np
from clgraft.caffe_layers.swap import swap_net
text = '''
force_backward: true
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 11 } } }
layer { name: "c" type: "Convolution" bottom: "data" top: "c"
        convolution_param { num_output: 4 kernel_size: 3 pad: 1 bias_term: false } }
'''
results = []
for name, content in (("native", text), ("ours", swap_net(text)[0])):
    open(f"{name}.prototxt", "w").write(content)
    net = caffe.Net(f"{name}.prototxt", caffe.TEST)
    rng = np.random.default_rng(0)
    weights, data = net.params["c"][0], net.blobs["data"]
    for blob in (weights, data):
        blob.data[...] = rng.standard_normal(blob.data.shape)
    net.forward()
    net.blobs["c"].diff[...] = 1
    net.backward()
    results.append([net.blobs["c"].data.copy(), data.diff.copy(), weights.diff.copy()])
"""
REPORT = """
print(max(float(np.abs(ours - native).max()) for native, ours in zip(*results)))
from clgraft import core
for problem in core.context().problems():
    print(f"{problem}: {core.context().plan(problem).tuned}")
"""
PROGRAMS = {"mxnet": MXNET, "caffe": CAFFE}
DIRECTIONS = {"forward", "backward_data", "backward_filter"}


@pytest.mark.parametrize("framework", ["mxnet", "caffe"])
def test_the_first_use_searches(framework, tmp_path):
    if not importlib.util.find_spec(framework):
        pytest.skip(f"needs {framework}")
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    given = {"CLGRAFT_TUNE": "full", "CLGRAFT_CACHE": str(cache), "PYTHONPATH": python_path(), "GLOG_minloglevel": "2"}
    for searches in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", PLANTED + PROGRAMS[framework] + REPORT],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", **os.environ, **given},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        error, *plans = done.stdout.splitlines()
        assert float(error) < 1e-4 and not np.isnan(float(error))
        found = dict(line.split(": ") for line in plans if line.startswith("conv "))
        assert {text.split()[1] for text in found} == DIRECTIONS
        assert set(found.values()) == {"direct (user row)"}, found
        said = [line for line in done.stderr.splitlines() if line.startswith("[tuning] conv ")]
        assert len(said) == (len(DIRECTIONS) if searches else 0), done.stderr
        assert all("direct, " in line for line in said)
