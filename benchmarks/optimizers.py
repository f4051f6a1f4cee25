"""Times MXNet's optimizers against clgraft's on the parameters of a net of the zoo, interleaved in one process.

    python benchmarks/optimizers.py alexnet resnet50_v1 --optimizers sgd,adam

Only the update is timed, as `gluon.Trainer` makes it; gradients are random. GB/s are those of the memory that an update
reads and writes: with momentum five numbers for each parameter. MXNet has the faster of its default number of threads
and all processors.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
from progress import announced
from timing import restarted

SETTINGS = {"sgd": {"momentum": 0.9, "wd": 1e-4}, "nag": {"momentum": 0.9, "wd": 1e-4}, "adam": {"wd": 1e-4}}
PASSES = {"sgd": 5, "nag": 5, "adam": 7}  # over memory of the parameters' size


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=["alexnet", "resnet50_v1"], help="names of the model zoo")
    parser.add_argument("--optimizers", default="sgd", help="with commas: sgd, nag, adam")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--dtype", default="float32")
    return parser.parse_args()


def shapes(name: str) -> list[tuple[int, ...]]:
    """Return the shapes of a net's parameters that are trained."""
    import mxnet as mx

    net = mx.gluon.model_zoo.vision.get_model(name)
    net.infer_shape(mx.nd.zeros((1, 3, 224, 224)))
    return [parameter.shape for parameter in net.collect_params().values() if parameter.grad_req != "null"]


class Updates:
    """An optimizer with weights and gradients of its own."""

    def __init__(self, name: str, sizes: list[tuple[int, ...]], settings: dict[str, Any], dtype: str) -> None:
        import mxnet as mx

        rng = np.random.default_rng(0)
        self.mx = mx
        self.weights, self.gradients = (
            [mx.nd.array(rng.random(size, np.float32), dtype=dtype) for size in sizes] for _ in range(2)
        )
        mixed = dtype == "float16"
        optimizer = mx.optimizer.create(name, learning_rate=1e-4, multi_precision=mixed, **settings)
        self.updater = mx.optimizer.get_updater(optimizer)

    def run(self) -> float:
        """Return the seconds of an update."""
        began = time.perf_counter()
        self.updater(list(range(len(self.weights))), self.gradients, self.weights)
        self.mx.nd.waitall()
        return time.perf_counter() - began


def main() -> None:
    """Print a line for each net and optimizer."""
    options = parse()
    print(f"MXNet: {restarted('mxnet')}", flush=True)
    import clgraft.mxnet_ops  # noqa: F401

    for net in announced(options.nets):
        sizes = shapes(net)
        count = sum(int(np.prod(size)) for size in sizes)
        for optimizer in options.optimizers.split(","):
            names = (optimizer, f"ocl_{optimizer}")
            both = [Updates(name, sizes, SETTINGS[optimizer], options.dtype) for name in names]
            for updates in both:
                updates.run()
            times: list[list[float]] = [[updates.run() for updates in both] for _ in range(options.runs)]
            for weights, expected in zip(*(updates.weights for updates in both)):
                np.testing.assert_array_equal(weights.asnumpy(), expected.asnumpy())
            slow, fast = (statistics.median(column) for column in zip(*times))
            moved = (
                PASSES[optimizer] * count * np.dtype("float64" if options.dtype == "float64" else "float32").itemsize
            )
            print(
                f"{net:14} {count / 1e6:6.1f} million parameters  {optimizer} {1e3 * slow:7.1f} ms"
                f"  ocl_{optimizer} {1e3 * fast:7.1f} ms, {moved / fast / 1e9:5.1f} GB/s  {slow / fast:5.2f}",
                flush=True,
            )
            del both


if __name__ == "__main__":
    main()
