"""The demo's net in Caffe: prototxt, solver and caffemodel, trained with Caffe's layers and after `swap_net`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
from data import batches, digits, photographs
from record import Comparison, Run, nudged, relative

SOLVER = """net: "{net}"
base_lr: 0.05
momentum: 0.9
weight_decay: 0.0001
lr_policy: "fixed"
max_iter: 100000
random_seed: 1
solver_mode: CPU
snapshot_prefix: "{prefix}"
"""


def _conv(name: str, bottom: str, filters: int, kernel: int, normed: bool, group: int = 1) -> str:
    """Return a convolution with batch norm and scale, or with a bias if this Caffe's batch norm does not learn."""
    top = f"{name}_conv" if normed else name
    text = f"""
layer {{
  name: "{name}"
  type: "Convolution"
  bottom: "{bottom}"
  top: "{top}"
  convolution_param {{
    num_output: {filters}
    kernel_size: {kernel}
    pad: {kernel // 2}
    group: {group}
    bias_term: {"false" if normed else "true"}
    weight_filler {{ type: "msra" }}
  }}
}}"""
    if normed:
        text += f"""
layer {{
  name: "{name}_bn"
  type: "BatchNorm"
  bottom: "{top}"
  top: "{name}_bn"
  param {{ lr_mult: 0 decay_mult: 0 }}
  param {{ lr_mult: 0 decay_mult: 0 }}
  param {{ lr_mult: 0 decay_mult: 0 }}
  batch_norm_param {{ moving_average_fraction: 0.9 }}
}}
layer {{ name: "{name}_scale" type: "Scale" bottom: "{name}_bn" top: "{name}" scale_param {{ bias_term: true }} }}"""
    return text


def digits_prototxt(shape: tuple[int, ...], normed: bool) -> str:
    """Return the net: convolutions, depthwise too, batch norm, activations and a residual sum; 10 classes."""
    batch, channels, height, width = shape
    return f"""# The net of the digits demo.
name: "digits"
layer {{
  name: "data" type: "Input" top: "data" top: "label"
  input_param {{ shape {{ dim: {batch} dim: {channels} dim: {height} dim: {width} }} shape {{ dim: {batch} }} }}
}}{_conv("stem", "data", 32, 3, normed)}
layer {{ name: "stem_relu" type: "ReLU" bottom: "stem" top: "stem" }}  # in place
{_conv("depthwise", "stem", 32, 3, normed, group=32)}
layer {{ name: "depthwise_relu" type: "ReLU" bottom: "depthwise" top: "depthwise" }}
{_conv("pointwise", "depthwise", 32, 1, normed)}
layer {{ name: "sum" type: "Eltwise" bottom: "pointwise" bottom: "stem" top: "sum" }}
layer {{ name: "sum_relu" type: "ReLU" bottom: "sum" top: "sum" }}
layer {{
  name: "pool" type: "Pooling" bottom: "sum" top: "pool"
  pooling_param {{ pool: AVE kernel_size: 2 stride: 2 }}
}}{_conv("head", "pool", 64, 3, normed)}
layer {{ name: "head_tanh" type: "TanH" bottom: "head" top: "head" }}
layer {{
  name: "average" type: "Pooling" bottom: "head" top: "average"
  pooling_param {{ pool: AVE kernel_size: 2 stride: 2 }}
}}
layer {{
  name: "classes" type: "InnerProduct" bottom: "average" top: "classes"
  inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }}
}}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "classes" bottom: "label" top: "loss" }}
"""


def batch_norm_learns() -> bool:
    """Return whether this Caffe's own BatchNorm gathers statistics in training; that of the wheel does not."""
    import tempfile

    import caffe

    text = (
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 1 } } }'
        'layer { name: "bn" type: "BatchNorm" bottom: "x" top: "y" }'
    )
    with tempfile.NamedTemporaryFile("w", suffix=".prototxt") as file:
        file.write(text)
        file.flush()
        net = caffe.Net(file.name, caffe.TRAIN)
        net.blobs["x"].data[...] = np.arange(4).reshape(4, 1)
        net.forward()
        return bool(net.params["bn"][2].data[0] != 0)


class Trainer:
    """A Caffe solver that is fed batch by batch."""

    def __init__(self, prototxt: Path, first_weights: Path | None) -> None:
        import caffe

        solver = prototxt.with_name(prototxt.stem + "-solver.prototxt")
        solver.write_text(SOLVER.format(net=prototxt, prefix=prototxt.with_suffix("")))
        self.prototxt = prototxt
        self.solver = caffe.get_solver(str(solver))
        self.net = self.solver.net
        if first_weights:
            self.net.copy_from(str(first_weights))
        self.run = Run()

    def step(self, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Train on one batch and return the gradients."""
        self.net.blobs["data"].data[...] = images
        self.net.blobs["label"].data[...] = labels
        start = time.perf_counter()
        self.solver.step(1)
        self.run.seconds.append(time.perf_counter() - start)
        self.run.losses.append(float(self.net.blobs["loss"].data))
        return {f"{name}[{i}]": b.diff.copy() for name, blobs in self.net.params.items() for i, b in enumerate(blobs)}

    def save(self) -> Path:
        """Write the caffemodel and return its path."""
        path = self.prototxt.with_suffix(".caffemodel")
        self.net.save(str(path))
        return path


def accuracy(prototxt: Path, weights: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """Load a caffemodel into a net for testing and return its accuracy."""
    import caffe

    net = caffe.Net(str(prototxt), caffe.TEST, weights=str(weights))
    net.blobs["data"].reshape(*images.shape)
    net.blobs["label"].reshape(len(images))
    net.reshape()
    net.blobs["data"].data[...] = images
    net.forward()
    return float((net.blobs["classes"].data.argmax(1) == labels).mean())


def photograph_difference(folder: Path, normed: bool, swap: Callable[[str], str]) -> float:
    """Return the difference of one forward pass on photographs, original and swapped, with the same weights."""
    import caffe

    images = photographs()
    text = digits_prototxt(images.shape, normed)
    outputs: list[np.ndarray] = []
    weights: Path | None = None
    for name, content in (("original", text), ("swapped", swap(text))):
        path = folder / f"photographs-{name}.prototxt"
        path.write_text(content)
        net = caffe.Net(str(path), caffe.TRAIN)
        if weights:
            net.copy_from(str(weights))
        weights = path.with_suffix(".caffemodel")
        net.save(str(weights))
        net.blobs["data"].data[...] = images
        net.forward()
        outputs.append(net.blobs["classes"].data.copy())
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
        Folder for prototxts, solvers and caffemodels.
    batch : int
        Images in a step.

    Returns
    -------
    comparison : Comparison
    report : object
        The report of the swap.
    """
    from clgraft import core
    from clgraft.caffe_layers.swap import swap_net

    train_x, train_y, test_x, test_y = digits()
    normed = batch_norm_learns()
    if not normed:
        print("This Caffe's own BatchNorm gathers no statistics in training: the Caffe net goes without batch norm.")
    output = output.resolve()
    original_file, swapped_file = output / "digits-original.prototxt", output / "digits-swapped.prototxt"
    original_file.write_text(digits_prototxt((batch, *train_x.shape[1:]), normed))
    text, report = swap_net(original_file.read_text())
    swapped_file.write_text(text)
    regions_file = output / "digits-regions.prototxt"
    # the scores of the classes are read below; values inside of regions are not on the host
    regions_file.write_text(swap_net(original_file.read_text(), regions=True, keep=["classes"])[0])
    original_net = Trainer(original_file, None)
    swapped_net, regions_net = (Trainer(file, original_net.save()) for file in (swapped_file, regions_file))
    nudged_net = Trainer(original_file, original_net.save())
    worst, where = 0.0, ""
    steps = batches(len(train_y), batch, epochs)
    for i, chosen in enumerate(steps):
        ours = swapped_net.step(train_x[chosen], train_y[chosen])
        theirs = original_net.step(train_x[chosen], train_y[chosen])
        regions_net.step(train_x[chosen], train_y[chosen])
        if i == 0:
            learnt = [name for name in theirs if "_bn[" not in name]
            worst, where = max((relative(theirs[name], ours[name]), name) for name in learnt)
            for name, blobs in nudged_net.net.params.items():
                for blob in () if name.endswith("_bn") else blobs:  # its blobs are statistics and their count
                    blob.data[...] = nudged(blob.data, worst)
        nudged_net.step(train_x[chosen], train_y[chosen])
        progress(i + 1, len(steps), original_net.run.losses[-1], swapped_net.run.losses[-1])
    for net in (original_net, swapped_net, regions_net):
        # test all caffemodels in the original net: weights trained with clgraft load into plain Caffe
        net.run.accuracy = accuracy(original_file, net.save(), test_x, test_y)
        del net.run.seconds[:5]  # planning, and first use of memory
    comparison = Comparison(
        framework="Caffe",
        device=core.context().device.name,
        original=original_net.run,
        swapped=swapped_net.run,
        regions=regions_net.run,
        nudged=nudged_net.run,
        gradient_difference=worst,
        worst_parameter=where,
        forward_difference=photograph_difference(output, normed, lambda content: swap_net(content)[0]),
    )
    return comparison, report
