"""Nets of Gluon's model zoo compared with their swapped twins; as a program it writes the table of docs/mxnet-nets.md.

python tests/mxnet_ops/zoo_comparison.py                      # every net, some minutes
python tests/mxnet_ops/zoo_comparison.py alexnet resnet18_v1  # these, on the screen only
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clgraft.mxnet_ops as ops  # isort: skip  (before MXNet)

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon.model_zoo import vision

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mxnet-nets.md"
REGIONS = "## Regions"  # what follows on the page is benchmarks/gluon_regions.py's
CLASSES = 7
Arrays = dict  # names to numpy arrays

# small images, where the poolings of a net allow them; 48 for the others
SIZES = {"squeezenet": 224, "densenet": 224, "inception": 299, "alexnet": 64, "vgg": 32}
RESNETS = [f"resnet{depth}_v{version}" for version in (1, 2) for depth in (18, 34, 50, 101, 152)]
NETS = [
    "alexnet",
    *(f"vgg{depth}{norm}" for norm in ("", "_bn") for depth in (11, 13, 16, 19)),
    *RESNETS,
    "squeezenet1.0",
    "squeezenet1.1",
    *(f"densenet{depth}" for depth in (121, 161, 169, 201)),
    "inceptionv3",
    *(f"mobilenet{width}" for width in ("1.0", "0.75", "0.5", "0.25")),
    *(f"mobilenetv2_{width}" for width in ("1.0", "0.75", "0.5", "0.25")),
]


def image_size(name: str) -> int:
    """Return the height and width that a net is compared at."""
    return next((size for start, size in SIZES.items() if name.startswith(start)), 48)


def make(name: str) -> gluon.HybridBlock:
    """Return a net of the zoo, whose parameters' names are the same each time."""
    return vision.get_model(name, classes=CLASSES, prefix="net_")


def without_chance(net: gluon.HybridBlock) -> gluon.HybridBlock:
    """Switch dropout off, in place: two runs that draw have nothing in common."""

    def switch(block: gluon.Block) -> None:
        if isinstance(block, gluon.nn.Dropout):
            block._rate = 0.0

    return net.apply(switch)


def smoothed(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return a net without kinks: softplus for rectifiers, averages for maxima; its gradients do not jump."""
    text = symbol.tojson().replace('"act_type": "relu"', '"act_type": "softrelu"')
    return mx.sym.load_json(text.replace('"pool_type": "max"', '"pool_type": "avg"'))


def filled(symbol: mx.sym.Symbol, shape: tuple[int, ...], seed: int) -> tuple[Arrays, Arrays]:
    """Return arguments (data too) and auxiliary states in which values neither grow nor fade from layer to layer."""
    rng = np.random.default_rng(seed)
    shapes, _, states = symbol.infer_shape(data=shape)
    arrays = {}
    for name, size in zip(symbol.list_arguments(), shapes):
        if name.endswith("weight"):
            arrays[name] = rng.standard_normal(size) * np.sqrt(2 / np.prod(size[1:]))
        elif name.endswith("gamma"):
            arrays[name] = rng.uniform(0.8, 1.2, size)
        else:
            arrays[name] = rng.standard_normal(size) * (1 if name == "data" else 0.1)
    auxiliary = {}
    for name, size in zip(symbol.list_auxiliary_states(), states):
        auxiliary[name] = rng.uniform(0.8, 1.2, size) if name.endswith("var") else rng.standard_normal(size) * 0.1
    # what float32 can hold, so that every precision starts from the same numbers
    return tuple({k: v.astype("float32").astype("float64") for k, v in found.items()} for found in (arrays, auxiliary))


def _found(outputs: Any, gradients: Mapping[str, Any], states: Mapping[str, Any]) -> Arrays:
    mx.nd.waitall()
    found = {"output": outputs.asnumpy().astype("float64")}
    found.update({f"gradient of {k}": v.asnumpy().astype("float64") for k, v in gradients.items() if v is not None})
    found.update({k: v.asnumpy().astype("float64") for k, v in states.items()})
    return found


def run_symbol(symbol: mx.sym.Symbol, arrays: Arrays, auxiliary: Arrays, head: np.ndarray, dtype: str) -> Arrays:
    """Train once in an executor; return output, every gradient, and the moving statistics after it."""
    arguments = {k: mx.nd.array(v, dtype=dtype) for k, v in arrays.items()}
    gradients = {k: mx.nd.full(v.shape, np.nan, dtype=dtype) for k, v in arrays.items()}
    states = {k: mx.nd.array(v, dtype=dtype) for k, v in auxiliary.items()}
    executor = symbol.bind(mx.cpu(), arguments, gradients, "write", states)
    (output,) = executor.forward(is_train=True)
    executor.backward([mx.nd.array(head, dtype=dtype)])
    return _found(output, gradients, states)


def run_block(net: gluon.HybridBlock, arrays: Arrays, auxiliary: Arrays, head: np.ndarray, dtype: str) -> Arrays:
    """Do the same with a Gluon net as it stands."""
    net.cast(dtype)
    for name, parameter in net.collect_params().items():
        value = mx.nd.array({**arrays, **auxiliary}[name], dtype=dtype)
        if parameter._data is None:
            parameter.shape = value.shape
            parameter.initialize()
        parameter.set_data(value)
    data = mx.nd.array(arrays["data"], dtype=dtype)
    data.attach_grad()
    with mx.autograd.record():
        output = net(data)
    output.backward(mx.nd.array(head, dtype=dtype))
    mx.nd.waitall()
    parameters = net.collect_params()
    gradients = {"data": data.grad}
    gradients.update({k: parameters[k].grad() for k in arrays if k != "data" and parameters[k].grad_req != "null"})
    return _found(output, gradients, {k: parameters[k].data() for k in auxiliary})


def errors(got: Arrays, expected: Arrays) -> Arrays:
    """Return relative errors (2-norm per element); what vanishes is measured by the largest gradient of its kind.

    A bias in front of a batch norm has no gradient: rounding is all that comes out.
    """

    def size(value: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.square(value)))) if value.size else 0.0

    floor = 1e-3 * max(size(v) for k, v in expected.items() if k.startswith("gradient") and k != "gradient of data")
    found = {}
    for name, value in expected.items():
        if name not in got:
            continue  # a gamma that is fixed
        least = floor if name.startswith("gradient of net") else 1e-30
        found[name] = size(got[name] - value) / max(size(value), least)
    return found


def worst(found: Mapping[str, float], kind: str) -> tuple[float, str]:
    """Return the largest error, and whose: of the ``output``, or of a ``gradient``."""
    return max((float("inf") if np.isnan(e) else e, name) for name, e in found.items() if name.startswith(kind))


def arithmetic(symbol: mx.sym.Symbol, shape: tuple[int, ...]) -> dict[str, float]:
    """Return the operations of a forward by the names of operators: two per multiplication and addition of a layer
    with weights, one per element that anything else reads."""
    graph = json.loads(symbol.tojson())
    internals = symbol.get_internals()
    _, sizes, _ = internals.infer_shape(data=shape)
    known = dict(zip(internals.list_outputs(), sizes))
    found = {}
    for node in graph["nodes"]:
        if node["op"] == "null":
            continue
        sources = [graph["nodes"][entry[0]] for entry in node["inputs"]]
        inputs = [known[s["name"] if s["op"] == "null" else f"{s['name']}_output"] for s in sources]
        output = known[f"{node['name']}_output"]
        if node["op"] in ("Convolution", "FullyConnected"):
            found[node["name"]] = 2.0 * np.prod(output) * np.prod(inputs[1][1:])
        elif node["op"] in ("Flatten", "Reshape", "identity", "_copy"):
            found[node["name"]] = 0.0
        else:
            window = node.get("attrs", {}).get("kernel", "()") if node["op"] == "Pooling" else "()"
            found[node["name"]] = float(np.prod(output) * np.prod([int(v) for v in window.strip("()").split(",") if v]))
    return found


@dataclass(frozen=True)
class Comparison:
    """A net and its twins: what was swapped, and errors by name against MXNet in float64.

    `native` and `swapped` are float32 (the executor), `block` the hybridized Gluon net; `double` and `double_block` are
    the same two twins in float64.
    """

    name: str
    report: ops.Report
    share: float
    native: dict[str, float]
    swapped: dict[str, float]
    block: dict[str, float]
    double: dict[str, float]
    double_block: dict[str, float]

    def in_units(self, kind: str) -> float:
        """Return the worse twin's errors in units of native's: the median of the arrays, as a jump is no rounding."""
        names = [name for name in self.native if name.startswith(kind)]
        floor = 1e-7  # half a unit of float32's last place
        return max(
            float(np.median([twin[name] / max(self.native[name], floor) for name in names if name in twin]))
            for twin in (self.swapped, self.block)
            if twin
        )


def compare_net(
    name: str,
    batch: int = 2,
    seed: int = 3,
    *,
    wanted: tuple[str, ...] = ("swapped", "block", "double"),
    smooth: bool = False,
) -> Comparison:
    """Train a net once in MXNet in float64 and float32, and its twins on the same numbers.

    Parameters
    ----------
    name : str
    batch : int
    seed : int
        Of parameters, images and the output's gradient.
    wanted : tuple of str
        Which twins are run; the others' errors are empty. Those in float32 bring `native`.
    smooth : bool
        Take the kinks out of the net, before anything else; not with the blocks.
    """
    shape = (batch, 3, image_size(name), image_size(name))
    original = make(name)(mx.sym.var("data"))
    _, report = ops.swap_symbol(original)
    amounts = arithmetic(original, shape)
    share = sum(amounts[row.name] for row in report.replaced) / sum(amounts.values())

    symbol = without_chance(make(name))(mx.sym.var("data"))
    symbol = smoothed(symbol) if smooth else symbol
    arrays, auxiliary = filled(symbol, shape, seed)
    head = np.random.default_rng(seed + 100).standard_normal((batch, CLASSES))
    given = (arrays, auxiliary, head)
    expected = run_symbol(symbol, *given, "float64")
    swapped, _ = ops.swap_symbol(symbol)

    def block(dtype: str) -> Arrays:
        net = without_chance(make(name))
        ops.swap_block(net)
        net.hybridize()
        return run_block(net, *given, dtype)

    runs: dict[str, Callable[[], Arrays]] = {
        "native": lambda: run_symbol(symbol, *given, "float32"),
        "swapped": lambda: run_symbol(swapped, *given, "float32"),
        "block": lambda: block("float32"),
        "double": lambda: run_symbol(swapped, *given, "float64"),
        "double_block": lambda: block("float64"),
    }
    run = {*wanted, *(("native",) if {"swapped", "block"} & set(wanted) else ())}
    found = {k: errors(runs[k](), expected) if k in run else {} for k in runs}
    return Comparison(name, report, share, **found)


SEEDS = (3, 4, 5)  # seeds for small images; larger ones take the first
HEADER = """# The nets of Gluon's model zoo

Every net of MXNet 1.9.1's model zoo, swapped as a Symbol and as a Gluon net, with the same parameters. One training
step computes the output and the gradient of *every* parameter and of the data. The reference is MXNet's net in float64.

| column | meaning |
|---|---|
| size | height and width of the images |
| replaced, left | operators that the swap replaced, and types that it left to MXNet |
| arithmetic | share of the arithmetic operations that replaced operators do |
| output, gradients | errors in float32, divided by those of MXNet's net: below 1 clgraft is more accurate |
| smooth | the largest error of a gradient in the net without kinks, of clgraft and of MXNet |
| worst | the largest error of a gradient in the net itself, of clgraft and of MXNet |
| float64 | the largest difference of any array if the swapped net computes in float64, too |

Errors are relative, in the 2-norm; the columns output and gradients have the median of all arrays. If the input of a
rectifier, or two values in a pooling window, are equal to rounding, float32 may take either side. The gradient then
jumps in all earlier layers, in one net or in the other, which explains the largest errors in the column "worst". The
net without kinks has softplus instead of rectifiers and averages instead of maxima (relu6, a clip, stays), so that only
rounding differs. Small images are compared with three seeds: ratios are their medians, errors the largest.

Weights are initialised by He's rule, gammas and betas at random; {batch} images, batch statistics, no dropout. This
command writes the page:

```sh
python tests/mxnet_ops/zoo_comparison.py
```

Device: {device}.

| {columns} |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""
COLUMNS = (
    "net",
    "size",
    "replaced",
    "left",
    "arithmetic",
    "output",
    "gradients",
    "smooth",
    "MXNet",
    "worst",
    "MXNet",
    "float64",
)


def row(name: str, batch: int) -> str:
    """Compare a net and return its line of the table."""
    size = image_size(name)
    found = [compare_net(name, batch, seed) for seed in (SEEDS if size < 200 else SEEDS[:1])]
    report, share = found[0].report, found[0].share
    kept = ", ".join(sorted({r.operator for r in report.kept})) or "-"
    units = [float(np.median([one.in_units(kind) for one in found])) for kind in ("output", "gradient")]
    ours = max(worst(twin, "gradient")[0] for one in found for twin in (one.swapped, one.block))
    native = max(worst(one.native, "gradient")[0] for one in found)
    double = max(value for one in found for value in one.double.values())
    smooth = compare_net(name, batch, SEEDS[0], wanted=("swapped",), smooth=True)
    without_kinks = f"{worst(smooth.swapped, 'gradient')[0]:.1e} | {worst(smooth.native, 'gradient')[0]:.1e}"
    return (
        f"| {name} | {size} | {len(report.replaced)}/{len(report.rows)} | {kept} | {share:.2%} "
        f"| {units[0]:.2f} | {units[1]:.2f} | {without_kinks} | {ours:.1e} | {native:.1e} | {double:.1e} |"
    )


def main() -> None:
    """Compare nets and print the table; without names all of them, and the page is written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", metavar="NET", help=f"of {', '.join(NETS)}")
    parser.add_argument("--batch", type=int, default=2)
    arguments = parser.parse_args()
    from clgraft import core

    device = core.context().device
    page = [
        HEADER.format(batch=arguments.batch, device=f"{device.platform}, {device.name}", columns=" | ".join(COLUMNS))
    ]
    for name in arguments.nets or NETS:
        start = time.perf_counter()
        page.append(row(name, arguments.batch) + "\n")
        print(page[-1].rstrip(), f"{time.perf_counter() - start:.0f} s", flush=True)
    if not arguments.nets:
        _, mark, rest = PAGE.read_text(encoding="utf-8").partition(REGIONS)
        PAGE.write_text("".join(page) + (f"\n{mark}{rest}" if mark else ""), encoding="utf-8")


if __name__ == "__main__":
    main()
