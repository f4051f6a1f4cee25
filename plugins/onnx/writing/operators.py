"""Problems as nodes of ONNX: a function for each kind gets the values that it reads and returns its outputs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.model import ModelError
from clgraft.core.nn import detection, pooling
from clgraft.core.nn.element_functions import ACTIVATIONS
from clgraft.core.operators.pointwise import read_assignments, read_value
from clgraft.core.problem.layout import FIRST
from clgraft.plugins.onnx.writing.expressions import TYPES, WHOLE, Expression
from clgraft.plugins.onnx.writing.writer import Writer


@dataclass
class Call:
    """A problem of the graph.

    Attributes
    ----------
    writer : Writer
    problem : Problem
    reads : dict of str to str
        The values of the arguments that are read, in the shapes that the problem gives them.
    scalars : dict of str to float
    names : list of str
        What its outputs are to be called; empty where nothing is wanted.
    """

    writer: Writer
    problem: Any
    reads: Mapping[str, str]
    scalars: Mapping[str, float]
    names: Sequence[str]

    def add(self, operator: str, reads: Sequence[str], **attributes: Any) -> list[str]:
        """Add the node that is the whole problem."""
        shape = next(argument.shape for argument in self.problem.arguments() if argument.role == "out")
        return [self.writer.add(operator, reads, shape, self.names[0], **attributes)]

    def expect(self, good: bool, what: str) -> None:
        """Refuse the problem unless `good`."""
        if not good:
            raise ModelError(f"[export] got {self.problem}, expected {what}")


def conv(call: Call) -> list[str]:
    problem, reads = call.problem, call.reads
    call.expect(problem.direction == "forward" and problem.layout == FIRST, "a convolution with channels first")
    attributes = {
        "kernel_shape": problem.kernel,
        "strides": problem.stride,
        "pads": (*problem.pad_begin, *problem.pad_end),
        "dilations": problem.dilate,
        "group": problem.groups,
    }
    if problem.kind == "deconv":
        return call.add("ConvTranspose", _weighted(reads), output_padding=problem.adj, **attributes)
    return call.add("Conv", _weighted(reads), **attributes)


def _weighted(reads: Mapping[str, str]) -> list[str]:
    """Return x, w and, where there is one, b."""
    return [reads[name] for name in ("x", "w", "b") if name in reads]


def dense(call: Call) -> list[str]:
    call.expect(call.problem.direction == "forward", "a product")
    return call.add("Gemm", _weighted(call.reads), transB=int(not call.problem.transposed))


def matmul(call: Call) -> list[str]:
    problem = call.problem
    a, b = call.reads["a"], call.reads["b"]
    if problem.transposed_a:
        a = _swapped(call.writer, a)
    if problem.transposed_b:
        b = _swapped(call.writer, b)
    return call.add("MatMul", [a, b])


def _swapped(writer: Writer, value: str) -> str:
    """Return matrices whose last two axes are exchanged."""
    shape = writer.shape(value)
    axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    return writer.add("Transpose", [value], [shape[axis] for axis in axes], perm=axes)


def softmax(call: Call) -> list[str]:
    (x,) = call.reads.values()
    scale = call.scalars.get("scale", 1.0)
    call.expect(call.problem.direction == "forward", "a softmax")
    names, (shape,) = call.names, (call.writer.shape(x),)
    operator = "LogSoftmax" if call.problem.log else "Softmax"
    if scale == 1:
        return [call.writer.add(operator, [x], shape, names[0], axis=1)]
    y = call.writer.add(operator, [x], shape, axis=1)
    return [call.writer.add("Mul", [y, call.writer.constant(scale, call.problem.dtype)], shape, names[0])]


def batch_norm(call: Call) -> list[str]:
    problem, reads, writer = call.problem, call.reads, call.writer
    call.expect(problem.direction == "forward_inference", "a norm with given statistics")
    values = [reads[name] for name in ("x", "gamma", "beta", "mean", "var")]
    if not problem.activation:
        return call.add("BatchNormalization", values, epsilon=call.scalars["eps"])
    y = writer.add("BatchNormalization", values, problem.shape, epsilon=call.scalars["eps"])
    function = ACTIVATIONS[problem.activation]
    text = re.sub(r"\bx\b", "x0", function.value)
    return _expression(call, f"y0 = {text};", {"x0": y}, tuple(function.scalars))


def lrn(call: Call) -> list[str]:
    problem = call.problem
    call.expect(problem.direction == "forward", "a normalisation")
    x = call.writer.reshaped(call.reads["x"], (problem.images, problem.channels, problem.pixels, 1))
    numbers = {"alpha": call.scalars["alpha"], "beta": problem.beta, "bias": call.scalars["k"], "size": problem.size}
    return [call.writer.add("LRN", [x], call.writer.shape(x), call.names[0], **numbers)]


def pool(call: Call) -> list[str]:
    problem = call.problem
    good = problem.direction == "forward" and problem.layout == FIRST and problem.operator != "lp3"
    call.expect(good, "a maximum, an average, a sum or a norm of 1 or 2, with channels first")
    # ONNX's rules of rounding are not Caffe's: the padding at the end is what the last windows need
    ends = pooling.pad_ends(problem.in_size, problem.kernel, problem.stride, problem.pad_begin, problem.out_size)
    window = {"kernel_shape": problem.kernel, "strides": problem.stride, "pads": (*problem.pad_begin, *ends)}
    (x,) = call.reads.values()
    if problem.operator == "max":
        return call.add("MaxPool", [x], **window)
    if problem.operator == "lp2":
        return call.add("LpPool", [x], p=2, **window)
    if problem.operator == "average" and not problem.count_padding:
        return call.add("AveragePool", [x], count_include_pad=0, **window)
    is_average = problem.operator == "average"
    factor = pooling.beyond_factors(problem) if is_average else np.float64(math.prod(problem.kernel))
    if np.all(factor == 1):
        return call.add("AveragePool", [x], count_include_pad=1, **window)
    mean = call.writer.add("AveragePool", [x], call.problem.arguments()[-1].shape, count_include_pad=1, **window)
    return call.add("Mul", [mean, call.writer.constant(factor, problem.dtype)])


def concat(call: Call) -> list[str]:
    problem = call.problem
    if problem.direction == "forward":
        return call.add("Concat", list(call.reads.values()), axis=1)
    (whole,) = call.reads.values()
    sizes = call.writer.constant(problem.extents, "int64")
    shapes = [argument.shape for argument in problem.arguments() if argument.role == "out"]
    return call.writer.add_many("Split", [whole, sizes], shapes, call.names, axis=1)


def cut(call: Call) -> list[str]:
    problem, writer = call.problem, call.writer
    (x,) = call.reads.values()
    step = problem.step or (1,) * len(problem.begin)
    if problem.direction == "backward":
        call.expect(set(step) <= {1}, "padding")
        behind = [i - o - b for i, o, b in zip(problem.in_shape, problem.out_shape, problem.begin)]
        pads = writer.constant((*problem.begin, *behind), "int64")
        return call.add("Pad", [x, pads, writer.constant(call.scalars.get("value", 0.0), problem.dtype)])
    ends = []
    for begin, count, by in zip(problem.begin, problem.out_shape, step):
        end = begin + count * by
        ends.append(end if end >= 0 else np.iinfo(np.int64).min)
    parts = [writer.constant(part, "int64") for part in (problem.begin, ends, range(len(ends)), step)]
    return call.add("Slice", [x, *parts])


def pad(call: Call) -> list[str]:
    problem = call.problem
    call.expect(problem.direction == "forward", "padding")
    pads = call.writer.constant((*problem.before, *problem.behind), "int64")
    return call.add("Pad", [*call.reads.values(), pads], mode=problem.mode)


def transpose(call: Call) -> list[str]:
    return call.add("Transpose", list(call.reads.values()), perm=call.problem.axes)


def repeat(call: Call) -> list[str]:
    problem, writer = call.problem, call.writer
    (x,) = call.reads.values()
    if problem.whole:
        return call.add("Tile", [x, writer.constant(problem.times, "int64")])
    apart = [size for pair in zip(problem.shape, (1,) * len(problem.shape)) for size in pair]
    times = [size for pair in zip(problem.shape, problem.times) for size in pair]
    wide = writer.add("Expand", [writer.reshaped(x, apart), writer.constant(times, "int64")], times)
    return [writer.reshaped(wide, problem.arguments()[-1].shape, call.names[0])]


def interpolate(call: Call) -> list[str]:
    problem, writer = call.problem, call.writer
    call.expect(problem.direction == "forward", "an interpolation")
    one = problem.coordinates == "half_pixel_one"
    words = {
        "coordinate_transformation_mode": "pytorch_half_pixel" if one else problem.coordinates,
        "mode": problem.method,
    }
    if problem.method == "nearest":
        rounding = problem.rounding
        words["nearest_mode"] = f"round_{rounding}" if rounding.startswith("prefer") else rounding
    sizes = writer.constant((problem.batch, problem.channels, *problem.out_size), "int64")
    return call.add("Resize", [*call.reads.values(), "", "", sizes], **words)


def regions(call: Call) -> list[str]:
    problem, writer = call.problem, call.writer
    x, rois, image = (call.reads[name] for name in ("x", "rois", "image"))
    if problem.operator == "pixels":
        rows = (problem.regions, 5)
        column = (problem.regions, 1)
        number = writer.add("Cast", [writer.reshaped(image, column)], column, to=TYPES[problem.dtype])
        whole = writer.add("Concat", [number, rois], rows, axis=1)
        return call.add("MaxRoiPool", [x, whole], pooled_shape=problem.out_size, spatial_scale=call.scalars["scale"])
    number = writer.add("Cast", [image], (problem.regions,), to=CASTS["int64"])
    words = {"mode": {"average": "avg"}.get(problem.operator, problem.operator), "sampling_ratio": problem.samples}
    if writer.opset >= 16:
        words["coordinate_transformation_mode"] = "half_pixel" if problem.half_pixel else "output_half_pixel"
    call.expect(writer.opset >= 16 or not problem.half_pixel, "opset 16 or later, or regions from 0 on")
    height, width = problem.out_size
    sizes = {"output_height": height, "output_width": width, "spatial_scale": call.scalars["scale"]}
    return call.add("RoiAlign", [x, rois, number], **words, **sizes)


def gather(call: Call) -> list[str]:
    problem, index = call.problem, call.reads["index"]
    if problem.sharing == "shared":
        return call.add("Gather", [call.reads["x"], index], axis=1)
    return call.add("GatherElements", [call.reads["x"], _of_elements(call, index)], axis=1)


def _of_elements(call: Call, index: str) -> str:
    """Return an index with a place for each element."""
    problem, writer = call.problem, call.writer
    shape = (problem.outer, problem.count, problem.inner)
    if problem.sharing == "elements" or (problem.sharing == "rows" and problem.inner == 1):
        return writer.reshaped(index, shape)
    column = writer.reshaped(index, (problem.count, 1) if problem.sharing == "shared" else (*shape[:2], 1))
    return writer.add("Expand", [column, writer.constant(shape, "int64")], shape)


def cumulative(call: Call) -> list[str]:
    problem = call.problem
    call.expect(problem.operator == "sum", "a cumulative sum")
    words = {"exclusive": int(problem.exclusive), "reverse": int(problem.reverse)}
    return call.add("CumSum", [*call.reads.values(), call.writer.constant(1, "int64")], **words)


def scatter(call: Call) -> list[str]:
    problem, writer = call.problem, call.writer
    words = {"set": {}, "add": {"reduction": "add"}}.get(problem.operator)
    good = words is not None and problem.onto_zero and (not words or writer.opset >= 16)
    call.expect(good, "elements that are put or (from opset 16 on) added into zeros")
    zeros = writer.constant(np.zeros((problem.outer, problem.extent, problem.inner)), problem.dtype)
    reads = [zeros, _of_elements(call, call.reads["index"]), call.reads["updates"]]
    return call.add("ScatterElements", reads, axis=1, **(words or {}))


def topk(call: Call) -> list[str]:
    """Write TopK, of which equal elements come in their order; NaN, which ONNX does not place, is not looked at."""
    problem, writer = call.problem, call.writer
    (x,) = call.reads.values()
    shapes = [argument.shape for argument in problem.arguments() if argument.role == "out"]
    if problem.last:  # the first one of a reversed axis
        ends = [writer.constant([number], "int64") for number in (-1, np.iinfo(np.int64).min, 1, -1)]
        x = writer.add("Slice", [x, *ends], writer.shape(x))
    count = writer.constant([problem.k], "int64")
    words = {"axis": 1, "largest": int(not problem.smallest), "sorted": 1}
    values, places = writer.add_many("TopK", [x, count], shapes, [call.names[0], ""], **words)
    if problem.last:
        places = writer.add("Sub", [writer.constant(problem.extent - 1, "int64"), places], shapes[1])
    return [values, writer.add("Cast", [places], shapes[1], call.names[1], to=CASTS["int32"])]


MOST_BOXES = 4096  # of an image whose boxes have labels: what is written compares every two


def suppressed(call: Call) -> list[str]:
    """Write NonMaxSuppression, whose scores are the boxes' places from the last on, and 0 for those that do not count.

    Boxes with labels are those of the class of the first box with that label.
    """
    problem, writer = call.problem, call.writer
    images, boxes = problem.images, problem.boxes
    good = problem.dtype == "float32" and call.scalars["overlap"] >= 0
    call.expect(good, "boxes of float32, and an overlap from 0 on")
    order = writer.constant(detection.falling(boxes), "float32")
    scores = writer.add("Mul", [call.reads["valid"], order], (images, boxes))
    classes = 1
    if problem.labels:
        call.expect(boxes <= MOST_BOXES, f"at most {MOST_BOXES} boxes with labels")
        classes, square = boxes, (images, boxes, boxes)
        labels = call.reads["labels"]
        column, line = (writer.reshaped(labels, (images, *two)) for two in ((boxes, 1), (1, boxes)))
        alike = writer.add("Cast", [writer.add("Equal", [column, line], square)], square, to=TYPES["float32"])
        before = writer.constant(detection.earlier(boxes), "float32")
        earlier = writer.add("Mul", [alike, before], square)
        as_input = writer.opset >= 18
        reads = [earlier, *([writer.constant([2], "int64")] if as_input else [])]
        seen = writer.add("ReduceMax", reads, (images, boxes, 1), keepdims=1, **({} if as_input else {"axes": [2]}))
        first = writer.add("Sub", [writer.constant(1.0, "float32"), seen], (images, boxes, 1))
        own = writer.add("Mul", [alike, first], square)
        scores = writer.add("Mul", [own, writer.reshaped(scores, (images, 1, boxes))], square)
    limits = [min(call.scalars["overlap"], 1.0), 0.0]
    chosen = writer.add(
        "NonMaxSuppression",
        [
            call.reads["boxes"],
            writer.reshaped(scores, (images, classes, boxes)),
            writer.constant([boxes], "int64"),
            *(writer.constant([limit], "float32") for limit in limits),
        ],
        (0, 3),  # as many as there are
        center_point_box=int(problem.center),
    )
    places = writer.add("Gather", [chosen, writer.constant([0, 2], "int64")], (0, 2), axis=1)
    shape = writer.add("Shape", [places], (2,))
    count = writer.add("Slice", [shape, *(writer.constant([place], "int64") for place in (0, 1))], (1,))
    ones = writer.add("Expand", [writer.constant([1.0], "float32"), count], (0,))
    return call.add("ScatterND", [writer.constant(np.zeros((images, boxes)), "float32"), places, ones])


def cast(call: Call) -> list[str]:
    call.expect(call.problem.target in CASTS, f"one of the types {sorted(CASTS)}")
    return call.add("Cast", list(call.reads.values()), to=CASTS[call.problem.target])


def pointwise(call: Call) -> list[str]:
    problem = call.problem
    call.expect(not problem.beta, "an expression that reads no output")
    values = {f"x{i}": value for i, value in enumerate(call.reads.values())}
    return _expression(call, problem.expression, values, problem.parameters)


def _expression(call: Call, text: str, values: dict[str, str], scalars: Sequence[str]) -> list[str]:
    """Add the nodes of an expression, of its reductions and of its factor."""
    problem, writer, dtype = call.problem, call.writer, call.problem.dtype
    numbers = {name: writer.constant(call.scalars[name], dtype) for name in scalars}
    outputs = [argument for argument in problem.arguments() if argument.role == "out"]
    folds, alpha = getattr(problem, "reductions", (None,)), getattr(problem, "alpha", "")
    whole = WHOLE.get(text.replace("y0 = ", "").rstrip("; "))
    if whole and folds == (None,) and not alpha:
        return call.add(whole, list(values.values()))
    program = read_assignments(text, len(values), tuple(scalars))
    wanted = tuple(i for i, name in enumerate(call.names) if name)
    common = getattr(problem, "common_shape", None) or writer.shape(values["x0"])
    plain = {i for i in wanted if folds[i] is None and not alpha}
    expression = Expression(writer, {**values, **numbers}, dtype, _read)
    made = expression.run(program.part(wanted), {f"y{i}": call.names[i] for i in plain})
    factor = expression.term(read_value(alpha, dict.fromkeys(scalars, ""), "alpha")) if alpha else ""
    results = []
    for i, output in enumerate(outputs):
        if i not in wanted:
            results.append("")
            continue
        value = made[f"y{i}"]
        if writer.shape(value) != common:  # a result that reads nothing, or less than all inputs
            value = writer.add("Expand", [value, writer.constant(common, "int64")], common)
        if folds[i] is not None:
            value = _folded(call, value, folds[i])
        if factor:
            value = writer.add("Mul", [value, factor], writer.shape(value))
        results.append(writer.reshaped(value, output.shape, call.names[i] if i not in plain else ""))
    return results


FOLDS = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}


def _folded(call: Call, value: str, fold: Any) -> str:
    """Return a value that is folded over some axes."""
    call.expect(fold.operator in FOLDS, f"a reduction of {sorted(FOLDS)}")
    shape = call.writer.shape(value)
    axes = tuple(axis % len(shape) for axis in fold.axes)
    left = [size for axis, size in enumerate(shape) if axis not in axes]
    as_input = fold.operator == "sum" or call.writer.opset >= 18
    more = {} if as_input else {"axes": axes}
    reads = [value, call.writer.constant(axes, "int64")] if as_input else [value]
    return call.writer.add(FOLDS[fold.operator], reads, left, keepdims=0, **more)


def _read(text: str, count: int) -> Any:
    """Return the term of a formula of a, b, ..."""
    return read_value(text, dict.fromkeys("abc"[:count], ""), "a formula")


def resample(call: Call) -> list[str]:
    """Add weighted sums of a few elements of an axis; places beyond it add nothing."""
    problem, writer = call.problem, call.writer
    x, index, weight = (call.reads[name] for name in ("x", "index", "weight"))
    call.expect(problem.dtype != "float16", "elements of the weights' type")
    table, shape = (problem.out_extent, problem.taps), problem.arguments()[-1].shape
    ends = [writer.constant(place, "int32") for place in (0, problem.in_extent - 1)]
    inside = writer.add("Clip", [index, *ends], table)
    same = writer.add("Equal", [inside, index], table)
    used = writer.add("Where", [same, weight, writer.constant(0.0, problem.dtype)], table)
    wide = (problem.outer, *table, problem.inner)
    taken = writer.add("Gather", [x, inside], wide, axis=1)
    products = writer.add("Mul", [taken, writer.reshaped(used, (*table, 1))], wide)
    return [writer.add("ReduceSum", [products, writer.constant([2], "int64")], shape, call.names[0], keepdims=0)]


CASTS = {**TYPES, "int32": 6, "int64": 7, "int8": 3, "uint8": 2}
WRITERS: dict[str, Callable[[Call], list[str]]] = {
    **{"conv": conv, "deconv": conv, "dense": dense, "matmul": matmul, "softmax": softmax, "batchnorm": batch_norm},
    **{"lrn": lrn, "pool": pool, "concat": concat, "slice": cut, "pad": pad, "transpose": transpose},
    **{"repeat": repeat, "interpolate": interpolate, "resample": resample, "cast": cast, "pointwise": pointwise},
    **{
        "roialign": regions,
        "gather": gather,
        "scatter": scatter,
        "cumulative": cumulative,
        "topk": topk,
        "suppress": suppressed,
    },
}


def write(call: Call) -> list[str]:
    """Add the nodes of a problem and return its outputs.

    Raises
    ------
    ModelError
        If ONNX has no operators for it.
    """
    if call.problem.kind not in WRITERS:
        raise ModelError(f"[export] got {call.problem}, expected one of the problems {sorted(WRITERS)}")
    try:
        return WRITERS[call.problem.kind](call)
    except ProblemError as error:
        raise ModelError(f"[export] got {call.problem}, which cannot be written: {error}") from None
