"""Nets in ONNX Runtime or OpenVINO on the CPU: those whose structure is in the onnx package, with random weights.

With ``CLGRAFT_PRECISION`` of 16 bits OpenVINO runs in that type, too, and the faster run counts. ONNX Runtime has
float32 alone.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from clgraft.core.planning.precision import FLOAT32, mixed_precision
from clgraft.plugins.command_line.bench import floors
from clgraft.plugins.command_line.bench.peers import net_batches
from clgraft.plugins.command_line.bench.results import Measurement
from clgraft.plugins.command_line.bench.timing import compare, fastest
from clgraft.plugins.onnx.bench_runtimes import MIXED, RUNTIMES
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
OURS = "clgraft"


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
        way, natives = fastest(times, [one for one in calls if one != OURS])
        a, b = times[way], times[OURS]
        text = f"{name} batch {batch}"
        figures = (a.median, b.median, a.spread, b.spread)
        floor = floors.of(calls[OURS])
        yield Measurement("nets", text, text, "net", "inference", peer, *figures, floor=floor, **natives)
        del calls
        gc.collect()


def _calls(model: onnx.ModelProto, peer: str) -> dict[str, Callable[[], Any]]:
    """Return both sides' runs of a model, which have run once; the peer's also in the type of 16 bits that is set."""
    ours, mixed = Session(model), mixed_precision()
    (port,) = ours.inputs
    given = {port.name: np.random.default_rng(3).standard_normal(port.shape).astype(np.float32)}
    runs = {FLOAT32: RUNTIMES[peer]}
    if mixed in MIXED.get(peer, ()):
        runs[mixed] = partial(RUNTIMES[peer], precision=mixed)
    calls: dict[str, Callable[[], Any]] = {way: partial(make(model), given) for way, make in runs.items()}
    calls[OURS] = lambda: ours.run(given)
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
