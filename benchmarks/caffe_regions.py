"""Times Caffe nets with regions against the same nets layer by layer, interleaved in one process.

    python benchmarks/caffe_regions.py resnet18 mobilenet --batch 8 --device pocl

Inference, and a training step of forward and backward. Before it is timed, the loss and the gradients of both nets are
compared. `--native` adds Caffe's own layers, with the faster of Caffe's default number of threads and all processors,
`--cpp` the layers in C++, one by one. Times are those of the wall clock and of the processors: the latter mean more on
a machine that does other work as well.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

os.environ.setdefault("GLOG_minloglevel", "2")

import numpy as np
from progress import announced


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=["resnet18", "mobilenet"], help="of `clgraft bench --nets`")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--device", help="as CLGRAFT_DEVICE; by default what that holds")
    parser.add_argument("--native", action="store_true", help="time Caffe's own layers too")
    parser.add_argument("--cpp", action="store_true", help="time the layers in C++ too")
    return parser.parse_args()


def load(text: str, kind: str, phase: int) -> Any:
    """Return a net: native, layer by layer, or with regions."""
    import caffe

    from clgraft.caffe_layers.swap import swap_net
    from clgraft.plugins.caffe.bench_layers import load as load_text

    caffe.set_random_seed(1)
    if kind != "native":
        text, _ = swap_net(text, regions=kind == "regions", native=kind == "cpp")
    return load_text(text, phase)


def fill(net: Any, first: Any) -> None:
    """Copy the parameters of one net to another one, and set the same images in all nets."""
    rng = np.random.default_rng(0)
    net.blobs["data"].data[...] = rng.standard_normal(net.blobs["data"].data.shape)
    net.blobs["label"].data[...] = rng.integers(0, 1000, net.blobs["label"].data.shape)
    for name, blobs in net.params.items():
        for number, blob in enumerate(blobs):
            blob.data[...] = first.params[name][number].data
        if len(blobs) == 3:  # a batch norm's
            blobs[1].data[...] = blobs[2].data[...] = 1


def step(net: Any) -> float:
    """Go forward and backward; return the loss."""
    net.forward()
    net.clear_param_diffs()
    net.backward()
    return float(net.blobs["loss"].data)


def interleaved(nets: dict[str, Any], action: Any, runs: int) -> dict[str, list[tuple[float, float]]]:
    """Return the times of each net in milliseconds, by the wall clock and of the processors."""
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in nets}
    for _ in range(runs):
        for kind, net in nets.items():
            began, busy = time.perf_counter(), time.process_time()
            action(net)
            times[kind].append((1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - busy)))
    return times


def compare(nets: dict[str, Any]) -> None:
    """Check that regions give the losses and gradients of single layers, and print how far they are apart."""
    losses = {kind: step(net) for kind, net in nets.items()}
    np.testing.assert_allclose(losses["regions"], losses["layers"], rtol=1e-4)
    worst = 0.0
    for name, blobs in nets["layers"].params.items():
        for number, blob in enumerate(blobs):
            other = nets["regions"].params[name][number].diff
            size = float(np.linalg.norm(blob.diff)) or 1.0
            worst = max(worst, float(np.linalg.norm(other - blob.diff)) / size)
    print(f"loss {losses['layers']:.5f}, gradients differ by {worst:.1e}")
    assert worst < 1e-2


def main() -> None:
    """Print two lines for each net and each of inference and training."""
    options = parse()
    if options.device:
        os.environ["CLGRAFT_DEVICE"] = options.device
    if options.native:
        from timing import restarted

        print(f"Caffe: {restarted('caffe')}")
    import caffe

    from clgraft import core
    from clgraft.plugins.caffe.bench_nets import computes_statistics
    from clgraft.plugins.caffe.net_texts import NETS

    learn = computes_statistics() or not options.native
    kinds = ["layers", "regions"] + ["native"] * options.native + ["cpp"] * options.cpp
    if options.cpp:
        import clgraft.caffe_layers.native  # noqa: F401  which loads them
    print(f"{core.context().device}, batch {options.batch}, {options.size} pixels; medians of {options.runs} runs")
    for name in announced(options.nets):
        text = NETS[name](options.batch, learn, options.size)
        for what, phase in (("inference", caffe.TEST), ("training", caffe.TRAIN)):
            nets = {kind: load(text, kind, phase) for kind in kinds}
            for net in reversed(list(nets.values())):
                fill(net, nets["layers"])
            if what == "training":
                compare(nets)
            action = step if what == "training" else type(nets["layers"]).forward
            interleaved(nets, action, 2)
            times = interleaved(nets, action, options.runs)
            for number, clock in enumerate(("wall clock", "processors")):
                found = {kind: [pair[number] for pair in pairs] for kind, pairs in times.items()}
                ratio = statistics.median(a / b for a, b in zip(found["layers"], found["regions"]))
                each = "  ".join(f"{kind} {statistics.median(own):8.1f} ms" for kind, own in found.items())
                print(f"{name:10} {what:9} {clock}  {each}  layers / regions {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
