"""Wrong models, made from valid ones: sizes, attributes, names, types, elements and places of tensors are changed.

``python -m tests.plugins.onnx.mutations SEED COUNT [MODEL.onnx ...]`` loads such models in this process, with limits on
its memory and on the time of each, and prints what was neither loaded nor refused in words.
"""

from __future__ import annotations

import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.plugins.onnx.models import model, node, small_net

NUMBERS = (-(2**63), -(2**62), -65, -3, -2, -1, 0, 1, 2, 3, 7, 64, 65, 1000, 10**6, 2**31, 2**40, 2**62, 2**63 - 1)
PLACES = ("", "\0", "a" * 5000, "../x", "/etc/hostname", ".", "weights", "no such file")
SECONDS, MEMORY = 20, 6 * 2**30  # of one model; of the process, most of it address space of the OpenCL runtime


def bases() -> list[onnx.ModelProto]:
    """Return valid models whose parts are mutated."""
    x = {"x": (np.float32, [2, 3, 8, 8])}
    y = {"y": (np.float32, None)}
    turn = helper.make_graph(
        [node("Add", "state w", "next"), node("Identity", "going", "goes"), node("Identity", "next", "seen")],
        "turn",
        [helper.make_tensor_value_info(n, t, []) for n, t in (("number", 7), ("going", 9), ("state", 1))],
        [helper.make_tensor_value_info(n, t, []) for n, t in (("goes", 9), ("next", 1), ("seen", 1))],
        [numpy_helper.from_array(np.array(2.0, np.float32), "w")],
    )
    counts = {"count": np.array(3, np.int64), "start": np.array(1.0, np.float32), "yes": np.array(True)}
    looped = [node("Loop", "count yes start", "last all", body=turn), node("Add", "x last", "y")]
    value = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "value")
    shape = numpy_helper.from_array(np.array([2, 3, 8, 8], np.int64), "shape")
    folded = [
        node("Constant", "", "c", value=value),
        node("Constant", "", "s", value=shape),
        node("ConstantOfShape", "s", "o"),
        node("Range", "zero three one", "r"),
        node("Gather", "c r", "g", axis=1),
        node("Tile", "g pair", "t"),
        node("OneHot", "r six ends", "h"),
        node("Pad", "t pads", "p"),
        node("Expand", "three s", "e"),
        node("Transpose", "c", "ct", perm=[1, 0]),
        node("MatMul", "c ct", "m"),
        node("Cast", "e", "f", to=1),
        node("Concat", "pair pair", "k", axis=0),
        node("Split", "k", "k1 k2", axis=0, num_outputs=2),
        node("Sum", "x o f", "y"),
        *(node("Identity", name, f"{name}_out") for name in ("h", "p", "m", "k1")),
    ]
    numbers: dict[str, Any] = {"zero": 0, "one": 1, "three": 3, "six": 6, "pair": [1, 2], "pads": [0, 1, 1, 0]}
    weights = {
        **{name: np.array(number, np.int64) for name, number in numbers.items()},
        "ends": np.array([0, 1], np.float32),
    }
    outputs = {**y, **dict.fromkeys(("h_out", "p_out", "m_out"), (np.float32, None)), "k1_out": (np.int64, None)}
    windows = [
        node("MaxPool", "x", "a", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], dilations=[1, 1]),
        node("AveragePool", "a", "b", kernel_shape=[2, 2], auto_pad="SAME_UPPER"),
        node("LpPool", "b", "c", kernel_shape=[2, 2], p=2),
        node("LRN", "c", "d", size=3),
        node("Resize", "d _ scales", "e", mode="linear"),
        node("Slice", "e starts ends axes steps", "f"),
        node("Reshape", "f flat", "g"),
        node("ScatterElements", "g index updates", "h", axis=1),
        node("GatherND", "h tuples", "i"),
        node("TopK", "i most", "j places"),
        node("RoiAlign", "x rois images", "k", output_height=2, output_width=3, sampling_ratio=2),
        node("ReduceSum", "k axes", "l", keepdims=0),
        node("DepthToSpace", "wide", "m", blocksize=2),
        node("LSTM", "steps kernel state", "n", hidden_size=2),
        node("DFT", "signal", "o"),
        node("Einsum", "g g", "y", equation="ij,kj->ik"),
        *(node("Identity", name, f"{name}_out") for name in ("j", "l", "m", "n", "o")),
    ]
    lists: dict[str, Any] = {"starts": [1, 0], "ends": [9, 4], "axes": [2, 3], "steps": [1, 2], "flat": [2, -1]}
    lists.update(index=[[0, 1], [1, 0]], tuples=[[0, 1], [1, -1]], most=[1], images=[0, 1])
    rng = np.random.default_rng(5)
    reals: dict[str, Any] = {
        **{"scales": np.array([1, 1, 2, 2]), "updates": np.ones((2, 2)), "rois": np.ones((2, 4)) * [0, 0, 4, 4]},
        **{"wide": np.ones((1, 4, 2, 2)), "steps": np.ones((3, 1, 4)), "kernel": np.ones((1, 8, 4))},
        **{"state": np.ones((1, 8, 2)), "signal": rng.standard_normal((1, 8, 1))},
    }
    windowed = {
        **{name: np.array(numbers, np.int64) for name, numbers in lists.items() if name != "steps"},
        **{name: np.asarray(array, np.float32) for name, array in reals.items()},
        "steps_of_slice": np.array(lists["steps"], np.int64),
    }
    windows[5].input[4] = "steps_of_slice"
    tails = dict.fromkeys((f"{name}_out" for name in "jlmno"), (np.float32, None))
    return [
        small_net(2),
        model(looped, x, y, counts),
        model(folded, x, outputs, weights, opset=18),
        model(windows, x, {**y, **tails}, windowed, opset=17),
    ]


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for inner in graph.node:
        for attribute in inner.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _tensors(attribute.g)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for inner in graph.node:
        yield inner
        for attribute in inner.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def mutate(proto: onnx.ModelProto, rng: np.random.Generator) -> None:
    """Change one part of a model."""

    def one(values: Any) -> Any:
        values = list(values)
        return values[int(rng.integers(0, len(values)))] if values else None

    number = int(one(NUMBERS))
    kind = int(rng.integers(0, 9))
    nodes = list(_nodes(proto.graph))
    tensor, changed = one(_tensors(proto.graph)), one(nodes)
    if kind == 0 and tensor is not None:
        _change_list(tensor.dims, number, rng)
    elif kind == 1 and tensor is not None and tensor.data_location != onnx.TensorProto.EXTERNAL:
        _change_elements(tensor, number, rng)
    elif kind == 2 and tensor is not None:
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=one(PLACES))
        tensor.external_data.add(key=one(("offset", "length", "checksum")), value=str(number))
    elif kind == 3 and tensor is not None:
        tensor.data_type = int(rng.integers(0, 24))
    elif kind in (4, 5):
        changed = one([each for each in nodes if each.attribute]) or changed
        attribute = one(changed.attribute)
        if attribute is None:
            changed.attribute.add(name="axis", i=number, type=onnx.AttributeProto.INT)
        elif attribute.ints:
            _change_list(attribute.ints, number, rng)
        elif attribute.type == onnx.AttributeProto.INT:
            attribute.i = number
        elif attribute.type == onnx.AttributeProto.STRING:
            attribute.s = one((b"", b"\xff", b"VALID", b"i,i->", b"...ij,kj->...k"))
        elif attribute.type == onnx.AttributeProto.FLOAT:
            attribute.f = float(one((0.0, -1.0, 1e30, float("nan"), float("inf"))))
    elif kind == 6 and changed.input:
        names = [name for each in nodes for name in (*each.input, *each.output)]
        changed.input[int(rng.integers(0, len(changed.input)))] = one(["", *names])
    elif kind == 7:
        info = one((*proto.graph.input, *proto.graph.output))
        dims = info.type.tensor_type.shape.dim
        if dims and rng.integers(0, 4):
            one(dims).dim_value = number
        else:
            dims.extend([onnx.TensorShapeProto.Dimension(dim_value=1)] * int(one((1, 30, 65))))
    else:
        changed.op_type = one(nodes).op_type


def _change_list(numbers: Any, number: int, rng: np.random.Generator) -> None:
    way = int(rng.integers(0, 4))
    if way == 0 and numbers:
        numbers[int(rng.integers(0, len(numbers)))] = number
    elif way == 1:
        numbers.append(number)
    elif way == 2 and numbers:
        del numbers[int(rng.integers(0, len(numbers)))]
    else:
        numbers[:] = [*numbers, *[1] * 65] if rng.integers(0, 2) else [0, number]


def _change_elements(tensor: onnx.TensorProto, number: int, rng: np.random.Generator) -> None:
    try:
        array = np.array(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError, OverflowError):  # mutated already
        return
    if array.size and array.dtype != bool:
        with np.errstate(all="ignore"):
            array.reshape(-1)[int(rng.integers(0, array.size))] = np.array(number).astype(array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


class TooLong(BaseException):
    """Raised when a model takes longer than it may."""


def _stop(*_: object) -> None:
    raise TooLong


def findings(models: Sequence[onnx.ModelProto], folder: Path, seed: int, count: int) -> Iterator[str]:
    """Yield what happened to mutated models that were neither loaded nor refused in words; files of a folder."""
    from clgraft.core.errors import ClgraftError
    from clgraft.core.model import samples
    from clgraft.plugins.onnx import Session

    rng = np.random.default_rng(seed)
    signal.signal(signal.SIGALRM, _stop)
    (folder / "weights").write_bytes(bytes(4096))
    for number in range(count):
        proto = onnx.ModelProto()
        proto.CopyFrom(models[int(rng.integers(0, len(models)))])
        for _ in range(int(rng.integers(1, 4))):
            mutate(proto, rng)
        (folder / "model.onnx").write_bytes(proto.SerializeToString())
        signal.alarm(SECONDS)
        try:
            session = Session(folder / "model.onnx")
            session.run(samples.inputs(session))
        except ClgraftError as error:
            if not str(error).startswith("["):
                yield f"{number}: {error}"
        except (Exception, TooLong):
            yield f"{number}: {traceback.format_exc()[-1500:]}"
        finally:
            signal.alarm(0)


def main() -> int:
    """Print the findings; the exit status says whether there are any."""
    seed, count, *files = sys.argv[1:]
    import clgraft.core as core

    core.context(None)  # the OpenCL runtime takes its address space
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    models = [onnx.load(file) for file in files] or bases()
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        for line in findings(models, Path(folder), int(seed), int(count)):
            print(line, flush=True)
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
