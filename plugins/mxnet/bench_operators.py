"""MXNet's operators and ours, each as the only operator of a symbol with an executor."""

from __future__ import annotations

import os
import warnings
from typing import Any

os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")  # MXNet prints a line for each executor otherwise

import clgraft.mxnet_ops  # noqa: F401  # isort: skip  (before MXNet, which reads what it sets)
import mxnet as mx
import numpy as np

from clgraft.core import BatchNormProblem, PoolProblem
from clgraft.core.problem.layout import LAST
from clgraft.plugins.command_line.bench.cases import Case, Element
from clgraft.plugins.command_line.bench.peers import NotServed, Side, random

POOLING_LAST = {1: "NWC", 2: "NHWC"}  # layouts of MXNet's pooling, by the number of spatial axes
MODE = "each operator in an executor, training; nets hybridized, static"


def sides(case: Case) -> dict[str, Side]:
    """Return both sides of a case."""
    return {"native": _side(case, False), "clgraft": _side(case, True)}


def _side(case: Case, ours: bool) -> Side:
    native, op_type, attributes, shape, inputs = operator(case.work)
    data = [mx.sym.Variable(f"x{i}") for i in range(inputs)]
    if ours:
        symbol = mx.sym.Custom(*data, op_type=op_type, name="op", **attributes)
    else:
        symbol = getattr(mx.sym, native)(*data, name="op", **attributes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet warns of shapes that only the graph knows
        executor = symbol.simple_bind(mx.cpu(), grad_req="write", **{f"x{i}": shape for i in range(inputs)})
    names = [name for name in symbol.list_arguments() if executor.arg_dict[name] is not None]
    for seed, name in enumerate(names):
        executor.arg_dict[name][:] = random(executor.arg_dict[name].shape, seed)
    for name, array in executor.aux_dict.items():
        array[:] = 1 if name.endswith("var") else 0
    executor.forward(is_train=True)
    dy = mx.nd.array(random(executor.outputs[0].shape, 99))
    mx.nd.waitall()

    def forward() -> None:
        executor.forward(is_train=True)
        executor.outputs[0].wait_to_read()

    def backward() -> None:
        executor.backward([dy])
        mx.nd.waitall()

    def results() -> list[np.ndarray]:
        return [a.asnumpy() for a in (executor.outputs[0], *(executor.grad_dict[name] for name in names))]

    return Side(forward, backward, results)


def operator(work: Any) -> tuple[str, str, dict[str, Any], tuple[int, ...], int]:
    """Return a problem in MXNet's words: native name, ours, attributes, shape and number of inputs.

    Raises
    ------
    NotServed
        If MXNet has the operator on no CPU.
    """
    if isinstance(work, Element):
        shape = (work.shape[0], work.shape[1], work.shape[2], 1)
        if work.function == "sum":
            return "elemwise_add", "ocl_eltwise", {}, shape, 2
        return "Activation", "ocl_activation", {"act_type": work.function}, shape, 1
    if isinstance(work, BatchNormProblem):
        return "BatchNorm", "ocl_batchnorm", {"fix_gamma": False}, (*work.shape, 1), 1
    shape = work.arguments()[0].shape
    if isinstance(work, PoolProblem):
        attributes: dict[str, Any] = {"kernel": work.kernel, "stride": work.stride, "pad": work.pad_begin}
        if work.layout == LAST:
            if work.ndim not in POOLING_LAST:
                raise NotServed(f"mxnet has no channels last for pooling of {work.ndim} axes on CPUs")
            attributes["layout"] = POOLING_LAST[work.ndim]
        attributes["pool_type"] = {"average": "avg"}.get(work.operator, work.operator)
        return "Pooling", "ocl_pooling", attributes, shape, 1
    if work.layout == LAST:
        raise NotServed("mxnet has no channels last for convolution on CPUs")
    attributes = {
        "kernel": work.kernel,
        "stride": work.stride,
        "pad": work.pad_begin,
        "dilate": work.dilate,
        "num_filter": work.out_channels,
        "num_group": work.groups,
        "no_bias": True,
    }
    depthwise = work.groups == work.in_channels > 1
    return "Convolution", "ocl_depthwise_conv" if depthwise else "ocl_conv", attributes, shape, 1
