"""The demo's net in MXNet: trained with MXNet's operators and after `swap_symbol`, on the same batches."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
from data import batches, digits, photographs
from record import Comparison, Run, nudged, relative

RATE, MOMENTUM, DECAY = 0.05, 0.9, 1e-4


def digits_symbol() -> Any:
    """Return the net: convolutions, depthwise too, batch norm, activations and a residual sum; 10 classes."""
    import mxnet as mx

    def conv(x: Any, name: str, filters: int, kernel: int, group: int = 1) -> Any:
        pad = (kernel // 2, kernel // 2)
        x = mx.sym.Convolution(
            x, kernel=(kernel, kernel), pad=pad, num_filter=filters, num_group=group, no_bias=True, name=name
        )
        return mx.sym.BatchNorm(x, fix_gamma=False, eps=1e-5, name=name + "_bn")

    x = mx.sym.Variable("data")
    x = mx.sym.Activation(conv(x, "stem", 32, 3), act_type="relu", name="stem_relu")
    shortcut = x
    x = mx.sym.Activation(conv(x, "depthwise", 32, 3, group=32), act_type="relu", name="depthwise_relu")
    x = conv(x, "pointwise", 32, 1)
    x = mx.sym.elemwise_add(x, shortcut, name="sum")
    x = mx.sym.Activation(x, act_type="relu", name="sum_relu")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="avg", name="pool")
    x = mx.sym.Activation(conv(x, "head", 64, 3), act_type="tanh", name="head_tanh")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="avg", name="average")
    x = mx.sym.FullyConnected(x, num_hidden=10, name="classes")
    return mx.sym.SoftmaxOutput(x, name="softmax", normalization="batch")


def learnt(symbol: Any) -> dict[str, str]:
    """Return which arguments get gradients: all but images and labels."""
    return {name: "null" if name in ("data", "softmax_label") else "write" for name in symbol.list_arguments()}


class Trainer:
    """A bound symbol with stochastic gradient descent."""

    def __init__(self, symbol: Any, shape: tuple[int, ...], weights: dict[str, np.ndarray]) -> None:
        import mxnet as mx

        self.mx = mx
        self.executor = symbol.simple_bind(mx.cpu(), grad_req=learnt(symbol), data=shape, softmax_label=shape[:1])
        for name, value in weights.items():
            target = self.executor.arg_dict if name in self.executor.arg_dict else self.executor.aux_dict
            target[name][:] = value
        self.velocity = {name: mx.nd.zeros_like(array) for name, array in self.parameters()}
        self.run = Run()

    def parameters(self) -> list[tuple[str, Any]]:
        """Return the learnt arrays by name."""
        return [
            (name, array) for name, array in self.executor.arg_dict.items() if name not in ("data", "softmax_label")
        ]

    def step(self, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Train on one batch and return the gradients."""
        start = time.perf_counter()
        self.executor.forward(is_train=True, data=self.mx.nd.array(images), softmax_label=self.mx.nd.array(labels))
        self.executor.backward()
        for name, array in self.parameters():
            gradient = self.executor.grad_dict[name]
            self.mx.nd.sgd_mom_update(
                array, gradient, self.velocity[name], out=array, lr=RATE, momentum=MOMENTUM, wd=DECAY
            )
        self.mx.nd.waitall()
        self.run.seconds.append(time.perf_counter() - start)
        chosen = self.executor.outputs[0].asnumpy()[np.arange(len(labels)), labels]
        self.run.losses.append(float(-np.log(np.maximum(chosen, 1e-30)).mean()))
        return {name: self.executor.grad_dict[name].asnumpy() for name, _ in self.parameters()}

    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Return the accuracy of the net in inference."""
        size = self.executor.arg_dict["data"].shape[0]
        right = 0
        for first in range(0, len(labels), size):
            part = images[first : first + size]
            padded = np.concatenate([part, np.zeros((size - len(part), *part.shape[1:]), np.float32)])
            self.executor.forward(is_train=False, data=self.mx.nd.array(padded))
            right += int(
                (self.executor.outputs[0].asnumpy()[: len(part)].argmax(1) == labels[first : first + size]).sum()
            )
        return right / len(labels)


def first_weights(symbol: Any, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return random weights for both nets."""
    rng = np.random.default_rng(1)
    arguments, _, auxiliary = symbol.infer_shape(data=shape, softmax_label=shape[:1])
    weights: dict[str, np.ndarray] = {}
    for name, size in zip(symbol.list_arguments(), arguments):
        if name.endswith("weight"):
            weights[name] = (rng.standard_normal(size) * np.sqrt(2 / np.prod(size[1:]))).astype(np.float32)
        elif name.endswith("gamma"):
            weights[name] = np.ones(size, np.float32)
        elif name not in ("data", "softmax_label"):
            weights[name] = np.zeros(size, np.float32)
    for name, size in zip(symbol.list_auxiliary_states(), auxiliary):
        weights[name] = (np.ones if name.endswith("var") else np.zeros)(size, np.float32)
    return weights


def exact_gradients(
    symbol: Any, weights: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the gradients of one step in float64, computed by MXNet's operators."""
    import mxnet as mx

    types = dict.fromkeys(symbol.list_arguments(), "float64")
    sizes = {"data": images.shape, "softmax_label": labels.shape}
    executor = symbol.simple_bind(mx.cpu(), grad_req=learnt(symbol), type_dict=types, **sizes)
    for name, value in weights.items():
        (executor.arg_dict if name in executor.arg_dict else executor.aux_dict)[name][:] = value
    executor.forward(
        is_train=True, data=mx.nd.array(images, dtype="float64"), softmax_label=mx.nd.array(labels, dtype="float64")
    )
    executor.backward()
    return {name: executor.grad_dict[name].asnumpy() for name, kind in learnt(symbol).items() if kind == "write"}


def photograph_difference(swap: Callable[[Any], tuple[Any, Any]]) -> float:
    """Return the difference of one forward pass on photographs, original and swapped, with the same weights."""
    import mxnet as mx

    images = photographs()
    symbol = digits_symbol()
    weights = first_weights(symbol, images.shape)
    outputs = []
    for net in (symbol, swap(symbol)[0]):
        executor = net.simple_bind(mx.cpu(), grad_req="null", data=images.shape, softmax_label=images.shape[:1])
        executor.copy_params_from(
            {k: mx.nd.array(v) for k, v in weights.items() if k in executor.arg_dict},
            {k: mx.nd.array(v) for k, v in weights.items() if k in executor.aux_dict},
        )
        executor.forward(is_train=False, data=mx.nd.array(images))
        outputs.append(executor.outputs[0].asnumpy())
    return relative(*outputs)


def compare(
    epochs: int, progress: Callable[[int, int, float, float], None], output: Path, batch: int = 64
) -> tuple[Comparison, Any]:
    """Train the original net, the swapped one and that with regions in turn, step by step.

    Parameters
    ----------
    epochs : int
    progress : callable
        Called with the step, the number of steps, and both losses.
    output : Path
        Folder for the swapped symbol.
    batch : int
        Images in a step.

    Returns
    -------
    comparison : Comparison
    report : object
        The report of the swap.
    """
    import clgraft.mxnet_ops
    from clgraft import core

    train_x, train_y, test_x, test_y = digits()
    symbol = digits_symbol()
    swapped, report = clgraft.mxnet_ops.swap_symbol(symbol)
    swapped.save(str(output / "digits-swapped-symbol.json"))
    shape = (batch, *train_x.shape[1:])
    weights = first_weights(symbol, shape)
    original_net, swapped_net = Trainer(symbol, shape, weights), Trainer(swapped, shape, weights)
    regions_net = Trainer(clgraft.mxnet_ops.swap_symbol(symbol, regions=True)[0], shape, weights)
    nudged_net = Trainer(symbol, shape, weights)
    worst, where, errors = 0.0, "", [0.0, 0.0]
    steps = batches(len(train_y), batch, epochs)
    for i, chosen in enumerate(steps):
        ours = swapped_net.step(train_x[chosen], train_y[chosen])
        theirs = original_net.step(train_x[chosen], train_y[chosen])
        regions_net.step(train_x[chosen], train_y[chosen])
        if i == 0:
            worst, where = max((relative(theirs[name], ours[name]), name) for name in theirs)
            exact = exact_gradients(symbol, weights, train_x[chosen], train_y[chosen])
            errors = [max(relative(exact[name], side[name]) for name in exact) for side in (theirs, ours)]
            for name, array in nudged_net.parameters():
                array[:] = nudged(weights[name], worst)
        nudged_net.step(train_x[chosen], train_y[chosen])
        progress(i + 1, len(steps), original_net.run.losses[-1], swapped_net.run.losses[-1])
    for net in (original_net, swapped_net, regions_net):
        net.run.accuracy = net.accuracy(test_x, test_y)
        del net.run.seconds[:5]  # planning, and first use of memory
    comparison = Comparison(
        framework="MXNet",
        device=core.context().device.name,
        original=original_net.run,
        swapped=swapped_net.run,
        regions=regions_net.run,
        nudged=nudged_net.run,
        gradient_difference=worst,
        worst_parameter=where,
        forward_difference=photograph_difference(clgraft.mxnet_ops.swap_symbol),
        original_error=errors[0],
        swapped_error=errors[1],
    )
    return comparison, report
