"""Checksums of everything that clgraft computes on fixed random data, to be compared before and after a change.

    python -m tests.golden problems mxnet caffe onnx torch --write before.json
    python -m tests.golden problems mxnet caffe onnx torch --compare before.json

`problems` runs every problem of every set in `tests/problems` by the implementation that is chosen; `mxnet`, `caffe`,
`onnx` and `torch` run nets, forward and backward where they learn, in every way in which the framework can run them.
What a framework computes itself is in the sums, too, so both files have to come from one machine and one environment.
An array that differs is named with its greatest difference, relative to its greatest value.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("CLGRAFT_TUNE", "off")
os.environ.setdefault("GLOG_minloglevel", "2")

import numpy as np

KEPT = 64  # elements of each array that are kept, to tell how far apart two are
Named = Iterator[tuple[str, np.ndarray]]


def problems() -> Named:
    """Yield every output of every problem of the sets, in each direction."""
    from clgraft import core
    from clgraft.core.errors import ClgraftError
    from tests.core.every_run import SETS, in_directions
    from tests.problem_sets import problem_lines

    context = core.context()
    for name in SETS:
        for line in problem_lines(name).values():
            for problem in in_directions(line):
                with contextlib.suppress(ClgraftError):  # the device lacks a type
                    plan = context.plan(problem)
                    given = problem.sample(np.random.default_rng(5))
                    arrays = {
                        a.name: given[a.name] if a.role != "out" else np.zeros(a.shape, a.dtype) for a in plan.arguments
                    }
                    plan.run(dict.fromkeys(plan.scalars, 0.5), **arrays)
                    for argument in plan.arguments:
                        if argument.role != "in":
                            yield f"{name}: {problem}: {argument.name}", arrays[argument.name]


def mxnet() -> Named:
    """Yield outputs and gradients of six nets of Gluon's model zoo, with regions and without."""
    import clgraft.mxnet_ops as ops  # isort: skip
    import mxnet as mx

    nets = {"resnet18_v1": 64, "resnet18_v2": 64, "mobilenet0.25": 64, "mobilenetv2_0.25": 64, "vgg11_bn": 64}
    for name, size in {**nets, "squeezenet1.0": 224}.items():
        for regions in (False, True):
            mx.random.seed(1)
            np.random.seed(1)
            net = mx.gluon.model_zoo.vision.get_model(name, prefix="net_", classes=10)
            net.initialize(mx.init.Xavier())
            x = mx.nd.array(np.random.default_rng(2).standard_normal((2, 3, size, size)))
            x.attach_grad()
            net.hybridize()
            net(x).wait_to_read()
            ops.swap_block(net, regions=regions, fuse=False)
            net.hybridize()
            way = f"{name}, {'regions' if regions else 'operators'}"
            yield f"{way}: inference", net(x).asnumpy()
            mx.random.seed(3)
            with mx.autograd.record():
                y = net(x)
                loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(y, mx.nd.array([1, 7]))
            loss.backward()
            yield f"{way}: training", y.asnumpy()
            yield f"{way}: gradient of data", x.grad.asnumpy()
            for parameter in net.collect_params().values():
                learned = parameter.grad_req != "null"
                yield f"{way}: {parameter.name}", (parameter.grad() if learned else parameter.data()).asnumpy()


def caffe() -> Named:
    """Yield losses and gradients of two nets: Python layers, regions, and C++ layers where Caffe has its library."""
    import caffe as framework

    from clgraft.caffe_layers.swap import swap_net
    from clgraft.core.errors import ClgraftError
    from clgraft.plugins.caffe.bench_layers import load
    from clgraft.plugins.caffe.net_texts import NETS

    for name in ("resnet18", "mobilenet"):
        text = NETS[name](2, pixels=64)
        for way, options in (("layers", {}), ("regions", {"regions": True}), ("C++", {"native": True})):
            framework.set_random_seed(1)
            try:
                if way == "C++":
                    import clgraft.caffe_layers.native  # noqa: F401
            except ClgraftError as error:
                print(f"no C++ layers: {error}", file=sys.stderr)
                continue
            net = load(swap_net(text, **options)[0])
            rng = np.random.default_rng(0)
            for blob in (net.blobs["data"], *(blob for blobs in net.params.values() for blob in blobs)):
                if blob.data.size > 1:
                    blob.data[...] = rng.uniform(0.1, 0.2, blob.data.shape)
            net.blobs["label"].data[...] = rng.integers(0, 10, net.blobs["label"].data.shape)
            net.forward()
            net.clear_param_diffs()
            net.backward()
            yield f"{name}, {way}: loss", np.array(net.blobs["loss"].data)
            for layer, blobs in net.params.items():
                for i, blob in enumerate(blobs):
                    yield f"{name}, {way}: {layer} {i}", np.array(blob.diff)


def onnx() -> Named:
    """Yield the outputs of six nets of the onnx package."""
    from clgraft.plugins.onnx.bench_nets import NETS, net
    from clgraft.plugins.onnx.session import Session

    for name in NETS:
        session = Session(net(name, 1))
        (port,) = session.inputs
        found = session.run({port.name: np.random.default_rng(3).standard_normal(port.shape).astype(np.float32)})
        for output, array in found.items():
            yield f"{name}: {output}", array


def torch() -> Named:
    """Yield outputs and gradients of six nets, compiled for inference and for training."""
    import torch as framework

    from clgraft.plugins.torch.backend import clgraft
    from tests.plugins.onnx.torch_nets import SIZES, build

    for name in ("resnet18", "mobilenet_v2", "densenet121", "shufflenet_v2_x1_0", "convnext_tiny", "unet"):
        framework._dynamo.reset()
        framework.manual_seed(1)
        net = build(name)
        x = framework.randn(2, 3, SIZES.get(name, 64), SIZES.get(name, 64), requires_grad=True)
        with framework.no_grad():
            yield f"{name}: inference", framework.compile(net.eval(), backend=clgraft)(x.detach()).numpy()
        for module in net.train().modules():  # what is drawn differs from run to run
            if hasattr(module, "p"):
                module.p = 0.0
        y = framework.compile(net, backend=clgraft)(x)
        (y * framework.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
        yield f"{name}: training", y.detach().numpy()
        yield f"{name}: gradient of data", x.grad.numpy()
        for parameter, value in net.named_parameters():
            yield f"{name}: {parameter}", value.grad.numpy()


PARTS = {"problems": problems, "mxnet": mxnet, "caffe": caffe, "onnx": onnx, "torch": torch}


def summary(array: np.ndarray) -> dict[str, Any]:
    """Return an array's checksum, and some of its elements."""
    flat = np.ascontiguousarray(array).reshape(-1)
    step = max(1, flat.size // KEPT)
    kept = [float(number) for number in flat[::step][:KEPT].astype(np.float64)]
    return {"sum": hashlib.sha256(flat.tobytes()).hexdigest()[:16], "shape": list(array.shape), "kept": kept}


def difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return how two summaries differ; empty if they do not."""
    if before["sum"] == after["sum"]:
        return ""
    if before["shape"] != after["shape"]:
        return f"shape {before['shape']} became {after['shape']}"
    a, b = np.array(before["kept"]), np.array(after["kept"])
    most = np.abs(a[np.isfinite(a)]).max(initial=0.0)
    apart = np.abs(a - b)[np.isfinite(a) & np.isfinite(b)].max(initial=0.0)
    return f"differs by {apart / most if most else apart:.1e} at the elements that are kept"


def main() -> int:
    """Write the file, or name what differs from one and return 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=tuple(PARTS))
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = {f"{part}: {name}": summary(array) for part in options.parts for name, array in PARTS[part]()}
    if options.write:
        options.write.write_text(json.dumps(found))
    print(f"{len(found)} arrays")
    if not options.compare:
        return 0
    known = json.loads(options.compare.read_text())
    known = {name: one for name, one in known.items() if name.split(":")[0] in options.parts}
    wrong = [f"{name}: only in one of the two" for name in sorted(set(known) ^ set(found))]
    for name in sorted(set(known) & set(found)):
        apart = difference(known[name], found[name])
        if apart:
            wrong.append(f"{name}: {apart}")
    print("\n".join(wrong) or "all equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
