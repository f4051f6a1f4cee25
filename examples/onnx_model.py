"""Run an ONNX model on an OpenCL device, and compare it with the reference of the onnx package.

`python examples/onnx_model.py [model.onnx] [--device gpu]`. Without a file it makes a small net. It prints the outputs,
what the graph needs and how long a run takes, and fails if the results differ by more than rounding.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from clgraft.plugins.onnx import Session

RUNS = 5
LIMIT = 1e-4


def small_net() -> onnx.ModelProto:
    """Return two convolutions, a pooling and a dense layer with a softmax."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (16, 3, 3, 3), "b0": (16,), "w1": (32, 16, 3, 3), "b1": (32,), "w2": (10, 32), "b2": (10,)}
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) * 0.2).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("MaxPool", ["r0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p0", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("GlobalAveragePool", ["r1"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["z"], transB=1),
        helper.make_node("Softmax", ["z"], ["y"], axis=1),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 3, 32, 32])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 10])
    graph = helper.make_graph(nodes, "small net", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> int:
    """Run the model on both and say whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a model whose inputs have fixed shapes and real numbers")
    parser.add_argument("--device", help="as CLGRAFT_DEVICE; by default what that holds, else the best device")
    options = parser.parse_args()

    model = onnx.load(options.model) if options.model else small_net()
    session = Session(model, options.device)
    rng = np.random.default_rng(1)
    inputs = {port.name: rng.standard_normal(port.shape).astype(port.dtype) for port in session.inputs}

    outputs = session.run(inputs)  # the first run plans and compiles
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        session.run(inputs)
        times.append(time.perf_counter() - begin)
    print(session.report())
    print(f"a run takes {1e3 * statistics.median(times):.3f} ms, the median of {RUNS}")

    worst = 0.0
    for port, expected in zip(session.outputs, ReferenceEvaluator(model).run(None, inputs)):
        ours = outputs[port.name]
        error = float(np.max(np.abs(ours - expected)) / max(np.max(np.abs(expected)), 1e-30)) if ours.size else 0.0
        print(f"{port.name}: {ours.dtype.name} {list(ours.shape)}, {error:.1e} from onnx's reference")
        worst = max(worst, error)
    print("they agree" if worst < LIMIT else "they do not agree")
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
