"""Checksums of everything that clgraft computes on fixed random data, to be compared before and after a change.

    python -m tests.golden problems mxnet caffe onnx torch --write before.json
    python -m tests.golden problems mxnet caffe onnx torch --compare before.json --rounding

`problems` runs every problem of every set in `tests/problems` by the implementation that is chosen; `mxnet`, `caffe`,
`onnx` and `torch` run nets, forward and backward where they learn, in every way in which the framework can run them.
What a framework computes itself is in the sums, too, so both files have to come from one machine and one environment.
An array that differs is named with its greatest difference, relative to its greatest value, and with its error from
float64 before and after where that is known: of all problems, by their references, and of the nets of MXNet (unless
they draw random numbers) and PyTorch, by the framework itself, all gradients of a net together. With `--rounding` a
difference is no failure if that error has not grown: sums in another order differ so. It may grow by chance where a
net's activation or maximum takes the other side.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import hashlib
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.core.problem import ROUNDING

KEPT = 64  # elements of each array that are kept, to tell how far apart two are
GROWTH = 1.5  # of an error from float64: sums in another order stay below it
ROUNDINGS = 5  # of the array's type: smaller errors may grow
Named = Iterator[tuple[str, np.ndarray, "float | None"]]  # an array with its name, and its error where that is known


def problems() -> Named:
    """Yield every output of every problem of the sets, in each direction."""
    from clgraft import core
    from clgraft.core.errors import ClgraftError
    from tests.core.every_run import SETS, Check, in_directions
    from tests.problem_sets import problem_lines

    context = core.context()
    for name in SETS:
        for line in problem_lines(name).values():
            for problem in in_directions(line):
                with contextlib.suppress(ClgraftError):  # the device lacks a type
                    plan = context.plan(problem)
                    check = Check(problem)
                    for argument, array in problem.determined(check.run(plan)).items():
                        exact = check.exact.get(argument)
                        wrong = None if exact is None else error(array, exact)
                        yield f"{name}: {problem}: {argument}", array, wrong


def mxnet() -> Named:
    """Yield outputs and gradients of six nets of Gluon's model zoo, with regions and without."""
    import clgraft.mxnet_ops as ops  # isort: skip
    import mxnet as mx

    nets = {"resnet18_v1": 64, "resnet18_v2": 64, "mobilenet0.25": 64, "mobilenetv2_0.25": 64, "vgg11_bn": 64}
    for name, size in {**nets, "squeezenet1.0": 224}.items():
        exact: dict[str, np.ndarray] = {}
        for way in ("float64", "operators", "regions"):
            mx.random.seed(1)
            np.random.seed(1)
            net = mx.gluon.model_zoo.vision.get_model(name, prefix="net_", classes=10)
            net.initialize(mx.init.Xavier())
            x = mx.nd.array(np.random.default_rng(2).standard_normal((2, 3, size, size)))
            net(x).wait_to_read()
            if way == "float64":
                net.cast(way)
                x = x.astype(way)
            x.attach_grad()
            net.hybridize()
            net(x).wait_to_read()
            if way != "float64":
                ops.swap_block(net, regions=way == "regions", fuse=False)
                net.hybridize()
            found = {"inference": net(x).asnumpy()}
            mx.random.seed(3)
            with mx.autograd.record():
                y = net(x)
                loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(y, mx.nd.array([1, 7], dtype=y.dtype))
            loss.backward()
            found |= {"training": y.asnumpy(), "gradient of data": x.grad.asnumpy()}
            for parameter in net.collect_params().values():
                learned = parameter.grad_req != "null"
                part = f"{'gradient' if learned else 'statistics'} of {parameter.name}"
                found[part] = (parameter.grad() if learned else parameter.data()).asnumpy()
            if way == "float64":
                draws = "Dropout" in str(net)
                exact = {part: found[part] for part in found if part == "inference" or not draws}
            else:
                yield from with_errors(f"{name}, {way}", found, exact)


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
            yield f"{name}, {way}: loss", np.array(net.blobs["loss"].data), None
            for layer, blobs in net.params.items():
                for i, blob in enumerate(blobs):
                    yield f"{name}, {way}: {layer} {i}", np.array(blob.diff), None


def onnx() -> Named:
    """Yield the outputs of six nets of the onnx package."""
    from onnx import TensorProto, helper

    from clgraft.plugins.onnx.bench_nets import NETS, net
    from clgraft.plugins.onnx.session import Session

    for name in NETS:
        model = net(name, 1)
        last = model.graph.node[-1]
        if last.op_type == "Softmax":  # its results may be all 0 and 1: they would say nothing about the net
            model.graph.output.append(helper.make_tensor_value_info(last.input[0], TensorProto.FLOAT, None))
        session = Session(model)
        (port,) = session.inputs
        found = session.run({port.name: np.random.default_rng(3).standard_normal(port.shape).astype(np.float32)})
        for output, array in found.items():
            yield f"{name}: {output}", array, None


def torch() -> Named:
    """Yield outputs and gradients of six nets, compiled for inference and for training."""
    import torch as framework

    from clgraft.plugins.torch.backend import clgraft
    from tests.plugins.onnx.torch_nets import SIZES, build

    for name in ("resnet18", "mobilenet_v2", "densenet121", "shufflenet_v2_x1_0", "convnext_tiny", "unet"):
        framework._dynamo.reset()
        framework.manual_seed(1)
        net = build(name)
        x = framework.randn(2, 3, SIZES.get(name, 64), SIZES.get(name, 64))
        exact = _learned(copy.deepcopy(net).double(), x.double(), lambda module: module)
        compiled = functools.partial(framework.compile, backend=clgraft)
        yield from with_errors(name, _learned(net, x, compiled), exact)


def _learned(net: Any, x: Any, compiled: Callable[[Any], Any]) -> dict[str, np.ndarray]:
    """Return a net's outputs and gradients in PyTorch."""
    import torch

    with torch.no_grad():
        found = {"inference": compiled(net.eval())(x).numpy()}
    for module in net.train().modules():  # what is drawn differs from run to run
        if hasattr(module, "p"):
            module.p = 0.0
    y = compiled(net)(x.requires_grad_())
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).sum().backward()
    gradients = {f"gradient of {parameter}": value.grad.numpy() for parameter, value in net.named_parameters()}
    return {**found, "training": y.detach().numpy(), "gradient of data": x.grad.numpy(), **gradients}


PARTS = {"problems": problems, "mxnet": mxnet, "caffe": caffe, "onnx": onnx, "torch": torch}


def error(array: np.ndarray, exact: np.ndarray) -> float:
    """Return the norm of an array's error over that of its exact value; infinite where what is not finite differs."""
    found, exact = (np.asarray(one, np.float64).reshape(-1) for one in (array, exact))
    finite = np.isfinite(exact)
    if not np.array_equal(found[~finite], exact[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        return math.inf
    norm = np.linalg.norm(exact[finite])
    return float(np.linalg.norm(found[finite] - exact[finite]) / (norm or 1.0))


def with_errors(net: str, found: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> Named:
    """Yield a net's arrays, each "gradient of" something with the error of all of them: some are 0 but for rounding."""
    groups: dict[str, list[str]] = {}
    for part in exact:
        groups.setdefault(part.partition(" of ")[0], []).append(part)
    joined = {
        group: error(*(np.concatenate([arrays[part].reshape(-1) for part in parts]) for arrays in (found, exact)))
        for group, parts in groups.items()
    }
    for part, array in found.items():
        yield f"{net}: {part}", array, joined.get(part.partition(" of ")[0])


def summary(array: np.ndarray, wrong: float | None = None) -> dict[str, Any]:
    """Return an array's checksum, some of its elements, its type, and its error from float64 where that is known."""
    flat = np.ascontiguousarray(array).reshape(-1)
    step = max(1, flat.size // KEPT)
    kept = [float(number) for number in flat[::step][:KEPT].astype(np.float64)]
    checksum = hashlib.sha256(flat.tobytes()).hexdigest()[:16]
    return {"sum": checksum, "shape": list(array.shape), "kept": kept, "dtype": array.dtype.name, "error": wrong}


def difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return how two summaries differ; empty if they do not."""
    for name in ("shape", "dtype"):
        if before[name] != after[name]:
            return f"{name} {before[name]} became {after[name]}"
    if before["sum"] == after["sum"]:
        return ""
    a, b = np.array(before["kept"]), np.array(after["kept"])
    most = np.abs(a[np.isfinite(a)]).max(initial=0.0)
    apart = np.abs(a - b)[np.isfinite(a) & np.isfinite(b)].max(initial=0.0)
    text = f"differs by {apart / most if most else apart:.1e} at the elements that are kept"
    if None in (before["error"], after["error"]):
        return text
    return f"{text}, error from float64 {before['error']:.2e} -> {after['error']:.2e}"


def is_rounding(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether a difference is one of rounding: the error from float64 is known, and has not grown."""
    alike = (before["shape"], before["dtype"]) == (after["shape"], after["dtype"])
    if not alike or after["dtype"] not in ROUNDING or None in (before["error"], after["error"]):
        return False
    return bool(after["error"] <= max(GROWTH * before["error"], ROUNDINGS * ROUNDING[after["dtype"]]) < math.inf)


def main() -> int:
    """Write the file, or name what differs from one and return 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=tuple(PARTS))
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE")
    parser.add_argument("--rounding", action="store_true", help="name differences of rounding, but let them pass")
    options = parser.parse_args()
    os.environ.setdefault("CLGRAFT_TUNE", "off")
    os.environ.setdefault("GLOG_minloglevel", "2")
    warnings.simplefilter("ignore")
    found = {f"{part}: {name}": summary(array, wrong) for part in options.parts for name, array, wrong in PARTS[part]()}
    if options.write:
        options.write.write_text(json.dumps(found))
    print(f"{len(found)} arrays")
    if not options.compare:
        return 0
    known = json.loads(options.compare.read_text())
    known = {name: one for name, one in known.items() if name.split(":")[0] in options.parts}
    wrong = [f"{name}: only in one of the two" for name in sorted(set(known) ^ set(found))]
    passed: list[str] = []
    for name in sorted(set(known) & set(found)):
        apart = difference(known[name], found[name])
        if apart:
            passes = options.rounding and is_rounding(known[name], found[name])
            (passed if passes else wrong).append(f"{name}: {apart}")
    if passed:
        print("\n".join(passed), f"\n{len(passed)} arrays differ by rounding", sep="")
    print("\n".join(wrong) or ("the others are equal" if passed else "all equal"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
