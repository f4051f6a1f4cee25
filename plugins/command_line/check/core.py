"""Checks of the core's operators against float64 arithmetic in NumPy; needs no framework."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from clgraft import core
from clgraft.core.operators.dropout.reference import uniform
from clgraft.plugins.command_line.check import pooling as check_pooling
from clgraft.plugins.command_line.check import softmax as check_softmax
from clgraft.plugins.command_line.check.runner import CheckRow, relative_error

LIMITS = {"float16": 4e-3, "float32": 1e-4, "float64": 1e-11}
_SCALARS = {"eps": 1e-5, "keep": 0.9, "add_mean": 0.1, "add_var": 0.2, "scale": 1 / 0.9, "value": 0.0}
_SCALARS.update(check_softmax.SCALARS)
_SHAPES = (
    "n2 ic5 ih9 iw11 oc7 kh3 kw3 ph1 pw1",
    "n1 ic3 ih23 iw23 oc8 kh7 kw7 sh2 sw2 ph3 pw3",
    "n2 ic16 ih7 iw7 oc32 kh1 kw1",
    "n3 ic8 ih12 iw10 oc12 kh3 kw5 sh2 sw1 ph2 pw0 dh2 dw1",
    "n2 g2 ic6 ih8 iw8 oc4 kh3 kw3 ph1 pw1",
    "n2 g12 ic12 ih13 iw13 oc12 kh3 kw3 ph1 pw1",
    "n1 g8 ic8 ih14 iw14 oc16 kh5 kw5 sh2 sw2 ph2 pw2",
    "n2 ic4 iw31 oc6 kw3 pw1",
)
_DECONVOLUTIONS = (
    "g3 n2 ic6 oc9 ih5 iw7 kh4 kw4 sh2 sw2 ph1 pw1",
    "n2 ic5 oc7 ih6 iw5 kh3 kw3 sh2 sw2 ph1 pw1 ah1 aw1",
    "g4 n1 ic4 oc4 ih4 iw5 kh32 kw32 sh16 sw16 ph8 pw8",
)
_DENSE = ("n8 i257 o129", "n1 i1000 o60", "n70 i120 o50", "n8 i130 o70 t1")
_BATCHNORMS = (
    "forward_training n4 c5 s49",
    "forward_inference n4 c5 s49",
    "backward_training n4 c5 s49",
    "backward_inference n4 c5 s49",
    "update_statistics n4 c5 s49",
)
_POINTWISE: dict[str, Callable[..., Any]] = {
    "pointwise x0[3,7,11] : y0 = x0 > 0 ? x0 : 0": lambda x: np.maximum(x, 0),
    "pointwise x0[5,33] x1[33] : y0 = x0 * x1": lambda x, z: x * z,
    "pointwise x0[2,3,5,7] x1[2,3,5,7] : y0 = x0 + x1": lambda x, z: x + z,
}
_MOVING: dict[str, Callable[..., Any]] = {
    "concat forward outer[3] extents[4,1,7] inner[49]": lambda *x: {"y": np.concatenate(x, 1)},
    "concat backward outer[3] extents[4,1,7] inner[49]": lambda dy: {
        "dx0": dy[:, :4],
        "dx1": dy[:, 4:5],
        "dx2": dy[:, 5:],
    },
    "slice forward x[2,3,9,11] y[2,3,7,8] at[0,0,1,2]": lambda x: {"y": x[:, :, 1:8, 2:10]},
    "slice backward x[2,3,9,11] y[2,3,7,8] at[0,0,1,2]": lambda dy: {
        "dx": np.pad(dy, ((0, 0), (0, 0), (1, 1), (2, 1)))
    },
    "transpose x[2,19,7,9] axes[0,2,3,1]": lambda x: {"y": x.transpose(0, 2, 3, 1)},
    "repeat x[2,3,5,7] times[1,1,3,3]": lambda x: {"y": x.repeat(3, 2).repeat(3, 3)},
    "dropout forward x[3,5,7,11]": lambda x, key: {"y": x * _dropout_factor(x, key)},
    "dropout backward x[3,5,7,11]": lambda dy, key: {"dx": dy * _dropout_factor(dy, key)},
}


def rows(repeats: int = 3) -> Iterator[CheckRow]:
    """Yield a row for every output of every problem, in every dtype that the device computes."""
    context = core.context()
    dtypes = ["", "f16 ", "f64 "] if context.device.has_fp64 else ["", "f16 "]
    for word in dtypes:
        # kernels differ between dtypes in their loads and stores only, and each shape costs a build of its own
        shapes = _SHAPES if not word else (_SHAPES[0], _SHAPES[5])
        for direction, shape in itertools.product(("forward", "backward_data", "backward_filter"), shapes):
            bias = " b1" if direction == "forward" else ""
            yield from _check(context, f"conv {direction} {word}{shape}{bias}", _convolution, repeats)
        yield from _check(context, f"conv backward_bias {word}{_SHAPES[0]}", _convolution, repeats)
        for kind, gradient, lines, meaning in (
            ("deconv", "backward_filter", _DECONVOLUTIONS, _deconvolution),
            ("dense", "backward_weight", _DENSE, _dense),
        ):
            directions = ("forward", "backward_data", gradient, "backward_bias")
            for direction, line in itertools.product(directions, lines[:1] if word else lines):
                bias = " b1" if direction == "forward" else ""
                yield from _check(context, f"{kind} {direction} {word}{line}{bias}", meaning, repeats)
        for text in _BATCHNORMS:
            direction, sizes = text.split(" ", 1)
            yield from _check(context, f"batchnorm {direction} {word}{sizes}", _batchnorm, repeats)
        for text, meaning in _POINTWISE.items():

            def pointwise(problem: Any, x: dict[str, Any], meaning: Callable[..., Any] = meaning) -> dict[str, Any]:
                return {"y0": meaning(*(x[name] for name in sorted(x)))}

            yield from _check(context, text.replace("pointwise ", f"pointwise {word}"), pointwise, repeats)
        for text, meaning in _MOVING.items():

            def moving(problem: Any, x: dict[str, Any], meaning: Callable[..., Any] = meaning) -> dict[str, Any]:
                return meaning(*x.values())

            kind, rest = text.split(" ", 1)
            yield from _check(context, f"{kind} {word}{rest}", moving, repeats)
        for direction, text in itertools.product(("forward", "backward"), check_pooling.SHAPES):
            line = f"pool {direction} {text.format(word)}"
            yield from _check(context, line, check_pooling.pooling, repeats, check_pooling.arrays)
        for text, defined in check_softmax.PROBLEMS.items():

            def reduced(problem: Any, x: dict[str, Any], defined: check_softmax.Meaning = defined) -> dict[str, Any]:
                return defined(problem, x, _SCALARS["scale"])

            yield from _check(context, text.format(word), reduced, repeats)


def _check(
    context: Any,
    text: str,
    reference: Callable[..., dict[str, Any]],
    repeats: int,
    arrays: Callable[..., dict[str, Any]] | None = None,
) -> Iterator[CheckRow]:
    problem = core.parse(text)
    plan = context.plan(problem)
    rng = np.random.default_rng(7)
    given, outputs = (arrays(problem, rng) if arrays else {}), {}
    for argument in problem.arguments():
        if argument.role == "out":
            outputs[argument.name] = np.full(argument.shape, np.nan, argument.dtype)
        elif argument.name not in given:
            low = 0.5 if "var" in argument.name else -1.0
            given[argument.name] = rng.uniform(low, 1.5, argument.shape).astype(argument.dtype)
            if argument.role == "inout":
                outputs[argument.name] = given[argument.name].copy()
    expected = reference(problem, {name: value.astype(np.float64) for name, value in given.items()})
    scalars = {name: _SCALARS[name] for name in problem.scalars()}
    arguments = {**given, **outputs}
    plan.run(**arguments, **({"scalars": scalars} if scalars else {}))
    results = {name: value.copy() for name, value in outputs.items()}
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        plan.run(**arguments, **({"scalars": scalars} if scalars else {}))
        times.append(time.perf_counter() - start)
    seconds: float | None = statistics.median(times) if times else None
    for name, result in results.items():
        yield CheckRow(text, name, relative_error(result, expected[name]), LIMITS[problem.dtype], seconds=seconds)
        seconds = None


def _convolution(problem: Any, given: dict[str, Any]) -> dict[str, Any]:
    """All four directions from the definition, one tap of the kernel at a time."""
    groups, out_group = problem.groups, problem.out_channels // problem.groups
    in_group = problem.in_channels // groups
    pads = [(0, 0), (0, 0), *zip(problem.pad_begin, problem.pad_end)]
    padded_size = [size + begin + end for size, (begin, end) in zip(problem.in_size, pads[2:])]
    x = given.get("x", np.zeros((problem.batch, problem.in_channels, *problem.in_size)))
    x = np.pad(x, pads).reshape(problem.batch, groups, in_group, *padded_size)
    w = given.get("w", np.zeros((problem.out_channels, in_group, *problem.kernel)))
    w = w.reshape(groups, out_group, in_group, *problem.kernel)
    y = np.zeros((problem.batch, groups, out_group, *problem.out_size))
    dy = given["dy"].reshape(y.shape) if "dy" in given else y
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    for tap in itertools.product(*map(range, problem.kernel)):
        window: Any = (
            ...,
            *(
                slice(t * d, t * d + (o - 1) * s + 1, s)
                for t, d, o, s in zip(tap, problem.dilate, problem.out_size, problem.stride)
            ),
        )
        at: Any = (..., *tap)
        y += np.einsum("goc,ngc...->ngo...", w[at], x[window])
        dx[window] += np.einsum("goc,ngo...->ngc...", w[at], dy)
        left = np.moveaxis(dy, 0, 2).reshape(groups, out_group, -1)
        right = np.moveaxis(x[window], 0, 2).reshape(groups, in_group, -1)
        dw[at] = left @ right.transpose(0, 2, 1)
    inside: Any = (..., *(slice(begin, begin + size) for (begin, _), size in zip(pads[2:], problem.in_size)))
    if "b" in given:
        y += given["b"].reshape(1, groups, out_group, *(1,) * len(problem.kernel))
    axes = (0, *range(3, 3 + len(problem.kernel)))
    return {
        "y": y.reshape(problem.batch, problem.out_channels, *problem.out_size),
        "dx": dx[inside].reshape(problem.batch, problem.in_channels, *problem.in_size),
        "dw": dw.reshape(problem.out_channels, in_group, *problem.kernel),
        "db": dy.sum(axis=axes).reshape(-1),
    }


def _dropout_factor(x: Any, key: Any) -> Any:
    """What dropout multiplies by, from the generator in NumPy."""
    kept = uniform(x.size, [int(word) for word in key]) < np.float32(_SCALARS["keep"])
    return kept.reshape(x.shape) * _SCALARS["scale"]


def _deconvolution(problem: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The gradients of the convolution that goes the other way, which is what a deconvolution is defined as."""
    convolution = problem.convolution
    if problem.direction == "forward":
        y = _convolution(convolution, {"dy": given["x"], "w": given["w"]})["dx"]
        return {"y": y + given["b"].reshape(-1, *(1,) * problem.ndim)}
    if problem.direction == "backward_data":
        return {"dx": _convolution(convolution, {"x": given["dy"], "w": given["w"]})["y"]}
    if problem.direction == "backward_filter":
        return {"dw": _convolution(convolution, {"x": given["dy"], "dy": given["x"]})["dw"]}
    return {"db": given["dy"].sum(axis=(0, *range(2, given["dy"].ndim)))}


def _dense(problem: Any, given: dict[str, Any]) -> dict[str, Any]:
    """A dense layer and its gradients, as products of matrices."""
    if "w" in given:
        w = given["w"].T if problem.transposed else given["w"]
        return {"y": given["x"] @ w.T + given["b"]} if problem.direction == "forward" else {"dx": given["dy"] @ w}
    if problem.direction == "backward_bias":
        return {"db": given["dy"].sum(axis=0)}
    dw = given["dy"].T @ given["x"]
    return {"dw": dw.T if problem.transposed else dw}


def _batchnorm(problem: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Batch norm and its gradients from the definition; a channel is axis 1."""

    def wide(vector: Any) -> Any:
        return vector.reshape(1, -1, *(1,) * (given["x"].ndim - 2))

    if problem.direction == "update_statistics":
        keep = _SCALARS["keep"]
        return {
            f"running_{name}": keep * given[f"running_{name}"] + _SCALARS[f"add_{name}"] * given[name]
            for name in ("mean", "var")
        }
    x = given["x"]
    axes = (0, *range(2, x.ndim))
    if problem.direction == "forward_training":
        mean, var = x.mean(axis=axes), x.var(axis=axes)
    else:
        mean, var = given["mean"], given["var"]
    scale = 1 / np.sqrt(var + _SCALARS["eps"])
    normal = (x - wide(mean)) * wide(scale)
    if "dy" not in given:
        y = normal * wide(given["gamma"]) + wide(given["beta"])
        return {"y": y, "mean": mean, "var": var}
    dy = given["dy"]
    dgamma, dbeta = (dy * normal).sum(axis=axes), dy.sum(axis=axes)
    dx = dy
    if problem.direction == "backward_training":
        count = x.size // x.shape[1]
        dx = dy - wide(dbeta) / count - normal * wide(dgamma) / count
    return {"dx": dx * wide(given["gamma"] * scale), "dgamma": dgamma, "dbeta": dbeta}
