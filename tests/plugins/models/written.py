"""Small files that MXNet and Caffe write, for tests where neither is installed.

python -m tests.plugins.models.written mxnet     # or caffe: writes tests/plugins/models/files anew
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

FILES = Path(__file__).parent / "files"
TYPES = ["float32", "float64", "float16", "uint8", "int32", "int8", "int64"]


def write_mxnet() -> None:
    """Write arrays of every type, with NumPy's shapes and without names, and a net with what it computes."""
    import mxnet as mx
    from mxnet.gluon import nn

    rng = np.random.default_rng(5)
    arrays = {f"arg:{name}": (rng.standard_normal((2, 3)) * 3).astype(name) for name in TYPES}
    arrays["aux:mean"] = rng.standard_normal(4).astype(np.float32)
    mx.nd.save(str(FILES / "types.params"), {k: mx.nd.array(v, dtype=v.dtype) for k, v in arrays.items()})
    np.savez(FILES / "types.npz", **arrays)
    unnamed = [rng.standard_normal((2, 2)).astype(np.float32), np.arange(3, dtype=np.int64)]
    mx.nd.save(str(FILES / "list.params"), [mx.nd.array(v, dtype=v.dtype) for v in unnamed])
    np.savez(FILES / "list.npz", **{str(i): v for i, v in enumerate(unnamed)})
    with mx.util.np_shape(True), mx.util.np_array(True):
        shaped = {"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 3), np.float32)}
        mx.npx.save(str(FILES / "numpy_shapes.params"), {k: mx.np.array(v, dtype=v.dtype) for k, v in shaped.items()})
        np.savez(FILES / "numpy_shapes.npz", **shaped)

    net = nn.HybridSequential(prefix="small_")
    with net.name_scope():
        net.add(
            nn.Conv2D(8, 3, padding=1, in_channels=3, use_bias=False),
            nn.BatchNorm(in_channels=8),
            nn.Activation("relu"),
            nn.Conv2D(8, 3, groups=8, in_channels=8),
            nn.MaxPool2D(),
            nn.Dropout(0.5),
            nn.Dense(5, in_units=8 * 9),
        )
    net.initialize(mx.init.Normal(0.3))
    for name, parameter in net.collect_params().items():
        if name.endswith(("gamma", "running_var")):
            parameter.set_data(mx.nd.array(rng.uniform(0.5, 1.5, parameter.shape)))
        elif name.endswith(("beta", "running_mean", "bias")):
            parameter.set_data(mx.nd.array(rng.standard_normal(parameter.shape)))
    net.hybridize()
    x = rng.standard_normal((2, 3, 8, 8)).astype(np.float32)
    np.savez(FILES / "small.npz", data=x, output=net(mx.nd.array(x)).asnumpy())
    net.export(str(FILES / "small"))


def write_caffe() -> None:
    """Write a net's parameters, and the arrays themselves."""
    import tempfile

    import caffe

    text = """
        name: "small"
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
        layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
                convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
        layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
        layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc"
                inner_product_param { num_output: 5 weight_filler { type: "xavier" } bias_filler { type: "xavier" } } }
    """
    with tempfile.NamedTemporaryFile("w", suffix=".prototxt") as file:
        file.write(text)
        file.flush()
        net = caffe.Net(file.name, caffe.TEST)
    net.save(str(FILES / "small.caffemodel"))
    arrays = {f"{name}{i}": blob.data for name, blobs in net.params.items() for i, blob in enumerate(blobs)}
    np.savez(FILES / "small_caffe.npz", **arrays)


if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    {"mxnet": write_mxnet, "caffe": write_caffe}[sys.argv[1]]()
