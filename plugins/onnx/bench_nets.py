"""Nets in ONNX Runtime or OpenVINO on the CPU: those whose structure is in the onnx package, with random weights."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from clgraft.plugins.command_line.bench import floors
from clgraft.plugins.command_line.bench.peers import net_batches
from clgraft.plugins.command_line.bench.results import Measurement
from clgraft.plugins.command_line.bench.timing import compare
from clgraft.plugins.onnx.bench_runtimes import RUNTIMES
from clgraft.plugins.onnx.session import Session

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NETS = {
    "resnet50": "light_resnet50",
    "vgg19": "light_vgg19",
    "densenet121": "light_densenet121",
    "squeezenet": "light_squeezenet",
    "inception_v2": "light_inception_v2",
    "shufflenet": "light_shufflenet",
}


def measure(
    names: Sequence[str],
    batches: Sequence[int],
    seconds: float = 20.0,
    least: int = 5,
    peer: str = "onnxruntime",
    directions: Collection[str] = ("inference",),
) -> Iterator[Measurement]:
    """Measure nets, a row at a time: inference, for each batch size.

    Parameters
    ----------
    names : sequence of str
        Of `NETS`.
    batches : sequence of int
    seconds : float
        For each row.
    least : int
        The least number of steps.
    peer : str
        Of `bench_runtimes.RUNTIMES`.
    directions : collection of str
        Without ``inference`` there is nothing to measure.

    Raises
    ------
    PluginError
        If a name is not in `NETS`.
    """
    for name, batch in net_batches(names if "inference" in directions else (), batches, NETS):
        calls = _calls(net(name, batch), peer)
        times = compare(calls, seconds, least)
        a, b = times["native"], times["clgraft"]
        text = f"{name} batch {batch}"
        figures = (a.median, b.median, a.spread, b.spread)
        yield Measurement("nets", text, text, "net", "inference", peer, *figures, floor=floors.of(calls["clgraft"]))
        del calls
        gc.collect()


def _calls(model: onnx.ModelProto, peer: str) -> dict[str, Callable[[], Any]]:
    """Return both sides' runs of a model, which have run once."""
    ours, theirs = Session(model), RUNTIMES[peer](model)
    (port,) = ours.inputs
    given = {port.name: np.random.default_rng(3).standard_normal(port.shape).astype(np.float32)}
    calls: dict[str, Callable[[], Any]] = {
        "native": lambda: theirs(given),
        "clgraft": lambda: ours.run(given),
    }
    for call in calls.values():
        call()
    return calls


def net(name: str, batch: int) -> onnx.ModelProto:
    """Return a net of the onnx package for a batch size, with random weights of the usual sizes."""
    model = onnx.load(FOLDER / f"{NETS[name]}.onnx")
    rng = np.random.default_rng(1)
    graph = model.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weights, nodes = [], []
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shape = tuple(shapes[node.input[0]])
            fan_in = max(int(np.prod(shape[1:])), 1)
            values = rng.standard_normal(shape) * np.sqrt(2 / fan_in) if len(shape) > 1 else rng.uniform(0.5, 1, shape)
            weights.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
        else:
            nodes.append(node)
    made = {tensor.name for tensor in weights}
    read = {given for node in nodes for given in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read and tensor.name not in made]
    names = {tensor.name for tensor in graph.initializer}
    inputs = []
    for info in graph.input:
        if info.name not in names:
            info.type.tensor_type.shape.dim[0].dim_value = batch
            inputs.append(info)
    for i, tensor in enumerate(kept):  # the shape in front of a classifier
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.int64 and array.size > 1:
            kept[i] = numpy_helper.from_array(np.array([0, *_rest(array)], np.int64), tensor.name)
    outputs = [helper.make_tensor_value_info(info.name, onnx.TensorProto.FLOAT, None) for info in graph.output]
    new = helper.make_graph(nodes, graph.name, inputs, outputs, [*weights, *kept])
    return helper.make_model(new, opset_imports=list(model.opset_import), ir_version=8)


def _rest(shape: np.ndarray) -> list[int]:
    return [int(size) for size in shape[1:]]
