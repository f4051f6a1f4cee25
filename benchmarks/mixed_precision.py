"""Trains nets with MXNet's regions in float32, float16 and bfloat16, from the same weights, and compares accuracies.

    python benchmarks/mixed_precision.py digits
    python benchmarks/mixed_precision.py resnet18 --images 10000 --size 32 --epochs 2

`--seeds 3` trains each three times, in another order, and resnet18 from other weights; each precision has the same
ones, and the mean of their differences from float32 is printed with its standard error. `digits` is the net and the
images of `examples/digits`, trained as there (it needs scikit-learn and scikit-image).
`resnet18` is that of MXNet's zoo on generated images: one smooth pattern for each of ten classes, shifted at random,
under noise. Its loss is scaled dynamically in all runs, by MXNet's own scaler: a step whose gradients are infinite is
left out. Parameters, gradients and the optimizer are float32. The last epoch has a tenth of the learning rate.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from progress import announced

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "digits"))
PRECISIONS = ("float32", "float16", "bfloat16")
CLASSES = 10
TESTED = 10000  # images: the accuracy of 98 % of them has a standard error of 0.14 points


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=["digits", "resnet18"], help="digits, resnet18")
    parser.add_argument("--precision", default=",".join(PRECISIONS), metavar="P,P", help=f"of {', '.join(PRECISIONS)}")
    parser.add_argument("--images", type=int, default=10000, help="that resnet18 is trained on")
    parser.add_argument("--size", type=int, default=32, help="of these images")
    parser.add_argument("--epochs", type=int, default=0, help="of training (digits: 12, resnet18: 2)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each net in each precision")
    return parser.parse_args()


def digits(precision: str, seed: int, options: argparse.Namespace) -> float:
    """Return the accuracy of the demo's net on images that it has not seen."""
    import train_mxnet
    from data import batches
    from data import digits as read

    import clgraft.mxnet_ops

    train_x, train_y, test_x, test_y = read()
    symbol = train_mxnet.digits_symbol()
    shape = (options.batch, *train_x.shape[1:])
    swapped, _ = clgraft.mxnet_ops.swap_symbol(symbol, regions=True, precision=precision)
    net = train_mxnet.Trainer(swapped, shape, train_mxnet.first_weights(symbol, shape))
    images = np.random.default_rng(seed).permutation(len(train_y))
    for chosen in batches(len(train_y), options.batch, options.epochs or 12):
        net.step(train_x[images[chosen]], train_y[images[chosen]])
    return net.accuracy(test_x, test_y)


def generated(count: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels."""
    patterns = np.random.default_rng(1).standard_normal((CLASSES, 3, 4, 4)).repeat(size // 4, 2).repeat(size // 4, 3)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    moves = rng.integers(0, size, (count, 2))
    images = rng.standard_normal((count, 3, size, size), np.float32) * 3
    for image, label, move in zip(images, labels, moves):
        image += np.roll(patterns[label], tuple(move), (1, 2))
    return images, labels.astype(np.float32)


def resnet18(precision: str, seed: int, options: argparse.Namespace) -> float:
    """Return the accuracy of a ResNet-18 on images that it has not seen."""
    import clgraft.mxnet_ops  # isort: skip  (before MXNet, which reads what it sets)
    import mxnet as mx
    from mxnet import gluon
    from mxnet.contrib.amp.loss_scaler import LossScaler

    mx.random.seed(1 + seed)
    net = gluon.model_zoo.vision.resnet18_v1(classes=CLASSES, prefix="net_")
    net.initialize(mx.init.Xavier(magnitude=2))
    clgraft.mxnet_ops.swap_block(net, precision=precision)
    net.hybridize(static_alloc=True, static_shape=True)
    images, labels = generated(options.images, options.size, 2)
    loss, batch, scaler = gluon.loss.SoftmaxCrossEntropyLoss(), options.batch, LossScaler()
    rates = {"learning_rate": 0.02, "momentum": 0.9, "wd": 1e-4}
    trainer = gluon.Trainer(net.collect_params(), "ocl_sgd", rates)
    rng = np.random.default_rng((3, seed))
    epochs = options.epochs or 2
    for epoch in range(epochs):
        order = rng.permutation(len(labels))
        if epoch == epochs - 1:
            trainer.set_learning_rate(0.1 * trainer.learning_rate)
        for first in range(0, len(order) - batch + 1, batch):
            chosen = order[first : first + batch]
            x, y = mx.nd.array(images[chosen]), mx.nd.array(labels[chosen])
            scale = scaler.loss_scale
            with mx.autograd.record():
                value = loss(net(x), y).mean() * scale
            value.backward()
            if not scaler.has_overflow(trainer._params):
                trainer.step(scale)
    images, labels = generated(TESTED // batch * batch, options.size, 4)
    right = 0
    for first in range(0, len(labels), batch):
        found = net(mx.nd.array(images[first : first + batch])).asnumpy().argmax(1)
        right += int((found == labels[first : first + batch]).sum())
    return right / len(labels)


def main() -> int:
    """Train and print a line for each net, precision and seed, and the mean of several seeds."""
    options = parse()
    print("net       precision   seed   accuracy   off float32, points   seconds")
    for name in options.nets:
        train = {"digits": digits, "resnet18": resnet18}[name]
        first: list[float] = []
        for precision in announced(options.precision.split(","), lambda word, net=name: f"{net} in {word}"):
            off = []
            for seed in range(options.seeds):
                began = time.perf_counter()
                accuracy = 100 * train(precision, seed, options)
                first += [accuracy] if len(first) == seed else []
                off.append(accuracy - first[seed])
                took = time.perf_counter() - began
                print(f"{name:9} {precision:10} {seed:5} {accuracy:10.2f} {off[-1]:+20.2f} {took:9.0f}", flush=True)
            if options.seeds > 1:
                error = np.std(off, ddof=1) / np.sqrt(options.seeds)
                print(f"{name:9} {precision:10}  mean {'':10} {np.mean(off):+20.2f}, standard error {error:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
