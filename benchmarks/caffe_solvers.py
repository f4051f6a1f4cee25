"""Trains nets by Caffe's solvers and without Caffe, from the same weights on the same data, and compares the losses.

    python benchmarks/caffe_solvers.py --device pocl
    python benchmarks/caffe_solvers.py lenet resnet18 --solvers SGD Adam --iterations 100

Nets are in the styles of LeNet, of CIFAR-10's quick and full ones, of the digits demo, of ResNet-18 and of MobileNet;
labels follow from the images by a random projection, so there is something to learn. Prints the largest relative
difference of the losses over all iterations, that of the first ten, and the same of a second Caffe whose weights begin
one rounding error away: what rounding alone grows to. Half way each side writes a snapshot and a solver of the other
one reads it: parameters and histories must have the same bits, which is an error otherwise, and those two go on.

Needs a Caffe whose BatchNorm learns, such as that of `.ci/bullseye.sh`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_minloglevel", "2")

import caffe
import numpy as np
from progress import announced

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "digits"))
from train_caffe import digits_prototxt

from clgraft import core
from clgraft.caffe_layers.nets.weights import read_caffemodel
from clgraft.caffe_layers.solver.snapshots import read_state
from clgraft.caffe_layers.solver.solver import Solver
from clgraft.plugins.caffe.net_texts import NETS, NetText

EARLY = 10  # iterations
BATCHES = 10  # that are trained on in turn
CLASSES = 10
ROUNDING = 2.0**-24
# of Caffe's examples: learning rates for nets without batch norms, and with them
SOLVERS = {
    "SGD": (0.01, 0.05, 'momentum: 0.9 weight_decay: 0.0005 lr_policy: "inv" gamma: 0.0001 power: 0.75'),
    "Nesterov": (0.01, 0.05, 'momentum: 0.95 weight_decay: 0.0005 lr_policy: "inv" gamma: 0.0001 power: 0.75'),
    "AdaGrad": (0.01, 0.01, 'weight_decay: 0.0005 lr_policy: "fixed"'),
    "RMSProp": (0.001, 0.001, 'rms_decay: 0.98 weight_decay: 0.0005 lr_policy: "fixed"'),
    "AdaDelta": (1.0, 1.0, 'momentum: 0.95 delta: 1e-6 weight_decay: 0.0005 lr_policy: "fixed"'),
    "Adam": (0.001, 0.001, 'momentum: 0.9 momentum2: 0.999 lr_policy: "fixed"'),
}
RATES = "param { lr_mult: 1 } param { lr_mult: 2 }"


def _conv(net: NetText, x: str, outputs: int, filler: str, pad: int = 2) -> str:
    text = f"num_output: {outputs} kernel_size: 5 pad: {pad} weight_filler {{ {filler} }}"
    return net.layer("Convolution", [x], f"{RATES} convolution_param {{ {text} }}")


def _pool(net: NetText, x: str, kind: str, size: int) -> str:
    return net.layer("Pooling", [x], f"pooling_param {{ pool: {kind} kernel_size: {size} stride: 2 }}")


def _relu(net: NetText, x: str) -> str:
    return net.layer("ReLU", [x], top=x)


def _product(net: NetText, x: str, outputs: int, filler: str) -> str:
    text = f"num_output: {outputs} weight_filler {{ {filler} }}"
    return net.layer("InnerProduct", [x], f"{RATES} inner_product_param {{ {text} }}")


def _gaussian(deviation: float) -> str:
    return f'type: "gaussian" std: {deviation}'


def _ended(net: NetText, x: str) -> str:
    net.layer("SoftmaxWithLoss", [x, "label"])
    return "\n".join(net.parts)


def lenet() -> str:
    """Return LeNet as in Caffe's examples: two convolutions and two products."""
    net, xavier = NetText(16, 28, True, channels=1), 'type: "xavier"'
    x = _pool(net, _conv(net, "data", 20, xavier, 0), "MAX", 2)
    x = _pool(net, _conv(net, x, 50, xavier, 0), "MAX", 2)
    return _ended(net, _product(net, _relu(net, _product(net, x, 500, xavier)), CLASSES, xavier))


def cifar_quick() -> str:
    """Return CIFAR-10's quick net: three convolutions, two averages of windows that reach over the edge."""
    net = NetText(20, 32, True)
    x = _relu(net, _pool(net, _conv(net, "data", 32, _gaussian(0.0001)), "MAX", 3))
    x = _pool(net, _relu(net, _conv(net, x, 32, _gaussian(0.01))), "AVE", 3)
    x = _pool(net, _relu(net, _conv(net, x, 64, _gaussian(0.01))), "AVE", 3)
    return _ended(net, _product(net, _product(net, x, 64, _gaussian(0.1)), CLASSES, _gaussian(0.1)))


def cifar_full() -> str:
    """Return CIFAR-10's full net: normalisation over places of a channel after the first two convolutions."""
    net = NetText(20, 32, True)
    norm = "lrn_param { local_size: 3 alpha: 5e-05 beta: 0.75 norm_region: WITHIN_CHANNEL }"
    x = _relu(net, _pool(net, _conv(net, "data", 32, _gaussian(0.0001)), "MAX", 3))
    x = net.layer("LRN", [x], norm)
    x = _pool(net, _relu(net, _conv(net, x, 32, _gaussian(0.01))), "AVE", 3)
    x = net.layer("LRN", [x], norm)
    x = _pool(net, _relu(net, _conv(net, x, 64, _gaussian(0.01))), "AVE", 3)
    return _ended(net, _product(net, x, CLASSES, _gaussian(0.01)))


TRAINED = {
    "lenet": (lenet, False),
    "cifar10_quick": (cifar_quick, False),
    "cifar10_full": (cifar_full, False),
    "digits": (lambda: digits_prototxt((16, 1, 16, 16), True), True),
    "resnet18": (lambda: NETS["resnet18"](8, True, 64), True),
    "mobilenet": (lambda: NETS["mobilenet"](8, True, 64), True),
}


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=list(TRAINED), help=f"of {list(TRAINED)}")
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS), choices=list(SOLVERS))
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--device", help="as CLGRAFT_DEVICE; by default what that holds")
    return parser.parse_args()


def data_of(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return batches of images, and of labels that a linear classifier could learn."""
    rng = np.random.default_rng(7)
    images = rng.standard_normal((BATCHES, *shape)).astype(np.float32)
    projection = rng.standard_normal((images[0, 0].size, CLASSES))
    return images, (images.reshape(BATCHES, shape[0], -1) @ projection).argmax(-1).astype(np.float32)


class Theirs:
    """A solver of Caffe's."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.solver = caffe.get_solver("solver.prototxt")
        self.images, self.labels = images, labels

    def step(self, iteration: int) -> float:
        """Train once and return the loss."""
        blobs, outputs = self.solver.net.blobs, self.solver.net.outputs
        blobs["data"].data[...] = self.images[iteration % BATCHES]
        blobs["label"].data[...] = self.labels[iteration % BATCHES]
        self.solver.step(1)
        return float(blobs[outputs[0]].data)


class Ours:
    """A solver without Caffe."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, first: int = 0, **given: Any) -> None:
        def repeated(arrays: np.ndarray) -> Any:
            number = first
            while True:
                yield arrays[number % BATCHES]
                number += 1

        self.solver = Solver("solver.prototxt", feed={"data": repeated(images), "label": repeated(labels)}, **given)

    def step(self, iteration: int) -> float:
        """Train once and return the loss."""
        self.solver.step(1)
        (loss,) = self.solver.trainer.outputs.values()
        return float(loss)


def differences(found: list[float], expected: list[float]) -> tuple[float, float]:
    """Return the largest relative difference of the first losses, and of all."""
    apart = np.abs(np.array(found) - expected) / np.maximum(np.abs(expected), 1e-3)
    return float(apart[:EARLY].max()), float(apart.max())


def expect_same(first: str, second: str) -> None:
    """Check that two snapshots have the same bits in parameters and histories."""
    mine, theirs = (
        {layer.name: layer.blobs for layer in read_caffemodel(f"{side}.caffemodel") if layer.blobs}
        for side in (first, second)
    )
    assert mine.keys() == theirs.keys()
    for name, blobs in mine.items():
        for a, b in zip(blobs, theirs[name]):
            np.testing.assert_array_equal(a.reshape(-1), b.reshape(-1), err_msg=name)
    one, other = read_state(f"{first}.solverstate"), read_state(f"{second}.solverstate")
    assert (one.iteration, len(one.history)) == (other.iteration, len(other.history))
    for a, b in zip(one.history, other.history):
        np.testing.assert_array_equal(a.reshape(-1), b.reshape(-1))


def copied(iteration: int, side: str) -> str:
    """Copy the last snapshot's files, which the next one overwrites: a solver's state names its weights' file."""
    for end in ("caffemodel", "solverstate"):
        shutil.copy(f"snap_iter_{iteration}.{end}", f"{side}.{end}")
    return side


def compare(iterations: int) -> tuple[tuple[float, float], ...]:
    """Return differences of a net: ours, what rounding grows to, after each other's snapshots; and losses."""
    first = caffe.get_solver("solver.prototxt").net
    first.save("start.caffemodel")
    images, labels = data_of(first.blobs["data"].data.shape)
    rng = np.random.default_rng(5)
    theirs, nudged = Theirs(images, labels), Theirs(images, labels)
    for side in (theirs, nudged):
        side.solver.net.copy_from("start.caffemodel")
    for blobs in nudged.solver.net.params.values():
        for blob in blobs:
            blob.data[...] *= 1 + ROUNDING * rng.choice([-1, 0, 1], blob.data.shape)
    ours = Ours(images, labels, weights=["start.caffemodel"])
    sides: dict[str, Any] = {"theirs": theirs, "nudged": nudged, "ours": ours}
    losses: dict[str, list[float]] = {name: [] for name in sides}
    half = iterations // 2
    for number in range(iterations):
        for name, side in sides.items():
            losses[name].append(side.step(number))
        if number + 1 == half:
            # where each other's snapshots lead, from the same bits
            ours.solver.snapshot()
            mine = copied(half, "ours")
            resumed = Theirs(images, labels)
            resumed.solver.restore(f"{mine}.solverstate")
            resumed.solver.snapshot()
            expect_same(mine, copied(half, "resumed"))
            theirs.solver.snapshot()
            native = copied(half, "native")
            again = Ours(images, labels, half, snapshot=f"{native}.solverstate")
            again.solver.snapshot()
            expect_same(native, copied(half, "again"))
            sides.update(resumed=resumed, again=again)
            losses.update(resumed=[], again=[])
    return (
        differences(losses["ours"], losses["theirs"]),
        differences(losses["nudged"], losses["theirs"]),
        differences(losses["resumed"], losses["ours"][half:]),
        differences(losses["again"], losses["theirs"][half:]),
        (losses["theirs"][0], losses["theirs"][-1]),
    )


def main() -> None:
    """Print a line for each net and solver."""
    options = parse()
    if options.device:
        os.environ["CLGRAFT_DEVICE"] = options.device
    print(f"{core.context().device}, {options.iterations} iterations; first {EARLY} / all")
    heads = ("difference", "rounding", "ours in Caffe", "Caffe's here")
    print(f"{'net':14} {'solver':9} {'losses':14}  {'  '.join(f'{head:17}' for head in heads)}")
    for name in announced(options.nets):
        text, normed = TRAINED[name]
        for kind in options.solvers:
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                Path("net.prototxt").write_text(text())
                rates = SOLVERS[kind]
                Path("solver.prototxt").write_text(
                    f'net: "net.prototxt" type: "{kind}" base_lr: {rates[normed]} {rates[2]} max_iter: 1000000 '
                    'display: 0 snapshot: 0 snapshot_prefix: "snap" random_seed: 3 solver_mode: CPU '
                    "snapshot_after_train: false"
                )
                *found, ends = compare(options.iterations)
                cells = "  ".join(f"{early:.1e} / {most:.1e}" for early, most in found)
                print(f"{name:14} {kind:9} {ends[0]:5.2f} to {ends[1]:5.2f}  {cells}", flush=True)
                os.chdir("/")


if __name__ == "__main__":
    main()
