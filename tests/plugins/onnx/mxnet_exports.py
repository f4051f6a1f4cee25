"""Nets of MXNet's model zoo as ONNX files, written by MXNet's own exporter, and as symbols with parameters.

MXNet and the newest onnx cannot share an environment, so the files are made first, with an older onnx::

    PYTHONPATH=.venv-newer/onnx-for-mxnet .venv-3.11/bin/python -m tests.plugins.onnx.mxnet_exports FOLDER --all
    .venv-newer/bin/python -m pytest tests/plugins/onnx/test_mxnet_exports.py --mxnet-models FOLDER

Next to each model lie its input and what MXNet computes from it. MXNet itself is needed only here. Without ``--all`` it
writes those of `NETS`, and with ``--turn I`` every tenth of the others from the I-th on.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

# pixels, and the opsets that the models are written for; MXNet writes nodes of opsets 12 and 13
NETS: dict[str, tuple[int, tuple[int, ...]]] = {
    "resnet18_v1": (64, (12, 13, 15)),
    "resnet50_v2": (64, (13,)),
    "mobilenet0.5": (64, (12, 13, 15)),
    "mobilenetv2_0.5": (64, (13,)),
    "squeezenet1.1": (224, (13,)),
    "densenet121": (224, (13,)),
    "vgg11_bn": (64, (13,)),
    "inceptionv3": (299, (13,)),
}

# the rest of the zoo, as symbols alone
OTHERS: dict[str, tuple[int, tuple[int, ...]]] = {
    name: (size, ())
    for size, names in {
        32: [f"vgg{depth}{norm}" for norm in ("", "_bn") for depth in (11, 13, 16, 19)],
        48: [
            *(f"resnet{depth}_v{version}" for version in (1, 2) for depth in (18, 34, 50, 101, 152)),
            *(f"mobilenet{version}{width}" for version in ("", "v2_") for width in ("1.0", "0.75", "0.5", "0.25")),
        ],
        64: ["alexnet"],
        224: ["squeezenet1.0", *(f"densenet{depth}" for depth in (161, 169, 201))],
    }.items()
    for name in names
    if name not in NETS
}
SHARES = 10


def models() -> list[str]:
    """Return the names of all files, without their endings."""
    return [f"{name}-{opset}" for name, (_, opsets) in NETS.items() for opset in opsets]


def write(name: str, folder: Path) -> None:
    """Write a net's models, its input and its output."""
    import mxnet as mx
    import onnx
    from mxnet.gluon.model_zoo import vision

    size, opsets = {**NETS, **OTHERS}[name]
    mx.random.seed(3)
    net = vision.get_model(name, classes=20)
    net.initialize(mx.init.Xavier("gaussian", "in", 2))
    x = np.random.default_rng(4).standard_normal((2 if size < 100 else 1, 3, size, size)).astype(np.float32)
    net(mx.nd.array(x))
    for parameter in net.collect_params().values():  # statistics, scales and shifts that are not trivial
        learnt = parameter.name.endswith(("gamma", "beta")) and parameter.grad_req != "null"
        if learnt or parameter.name.endswith(("running_mean", "running_var")):
            low = 0.5 if parameter.name.endswith(("var", "gamma")) else -0.2
            parameter.set_data(mx.nd.random.uniform(low, low + 0.4, parameter.shape))
    net.hybridize()
    np.savez(folder / f"{name}.npz", x=x, y=net(mx.nd.array(x)).asnumpy())
    net.export(str(folder / name))
    with tempfile.TemporaryDirectory() as scratch:
        net.export(f"{scratch}/net")
        files = (f"{scratch}/net-symbol.json", f"{scratch}/net-0000.params")
        for opset in opsets:
            newest: Any = onnx.defs.onnx_opset_version
            onnx.defs.onnx_opset_version = lambda opset=opset: opset  # the exporter writes for the newest one
            try:
                path = folder / f"{name}-{opset}.onnx"
                mx.onnx.export_model(*files, [x.shape], np.float32, str(path))
            finally:
                onnx.defs.onnx_opset_version = newest


def main() -> None:
    """Write the models that the arguments choose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--turn", type=int)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    others = list(OTHERS) if given.all else []
    if given.turn is not None:
        others = list(OTHERS)[given.turn % SHARES :: SHARES]
    for name in (*NETS, *others):
        write(name, given.folder)


if __name__ == "__main__":
    main()
