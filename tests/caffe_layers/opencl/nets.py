"""Nets for the branch: each layer by itself on one input, so that one pass runs all of them."""

from __future__ import annotations

from collections.abc import Sequence

XAVIER = 'weight_filler { type: "xavier" }'
INPUTS = {"x": (2, 6, 9, 8), "z": (2, 6, 9, 8), "small": (1, 6, 5, 4), "label": (2, 1, 9, 8), "flat": (4, 7)}

# Name: type, parameters, bottoms, number of tops. The branch's own deconvolution needs `engine: CAFFE` on the host.
LAYERS = {
    "conv": ("Convolution", f"convolution_param {{ num_output: 4 kernel_size: 3 pad: 1 {XAVIER} }}", "x", 1),
    "conv_groups": (
        "Convolution",
        f"convolution_param {{ num_output: 9 kernel_h: 3 kernel_w: 2 stride: 2 dilation: 2 group: 3 pad: 2 {XAVIER} }}",
        "x",
        1,
    ),
    "conv_1x1": (
        "Convolution",
        f"convolution_param {{ num_output: 5 kernel_size: 1 bias_term: false {XAVIER} }}",
        "x",
        1,
    ),
    "conv_channels": (
        "Convolution",
        f"convolution_param {{ num_output: 6 kernel_size: 3 group: 6 {XAVIER} }}",
        "x",
        1,
    ),
    "deconv": (
        "Deconvolution",
        f"convolution_param {{ num_output: 3 kernel_size: 4 stride: 2 pad: 1 engine: CAFFE {XAVIER} }}",
        "x",
        1,
    ),
    "product": ("InnerProduct", f"inner_product_param {{ num_output: 5 {XAVIER} }}", "x", 1),
    "product_flat": ("InnerProduct", f"inner_product_param {{ num_output: 3 transpose: true {XAVIER} }}", "flat", 1),
    "pool_max": ("Pooling", "pooling_param { pool: MAX kernel_size: 3 stride: 2 }", "x", 1),
    "pool_mask": ("Pooling", "pooling_param { pool: MAX kernel_size: 2 stride: 2 pad: 1 }", "x", 2),
    "pool_average": ("Pooling", "pooling_param { pool: AVE kernel_h: 3 kernel_w: 2 stride: 2 pad: 1 }", "x", 1),
    "pool_all": ("Pooling", "pooling_param { pool: AVE global_pooling: true }", "x", 1),
    "norm": ("BatchNorm", "", "x", 1),
    "norm_global": ("BatchNorm", "batch_norm_param { use_global_stats: true }", "x", 1),
    "scale": ("Scale", "scale_param { bias_term: true }", "x", 1),
    "bias": ("Bias", "", "x", 1),
    "relu": ("ReLU", "relu_param { negative_slope: 0.1 }", "x", 1),
    "prelu": ("PReLU", "", "x", 1),
    "elu": ("ELU", "elu_param { alpha: 0.7 }", "x", 1),
    "sigmoid": ("Sigmoid", "", "x", 1),
    "tanh": ("TanH", "", "x", 1),
    "absval": ("AbsVal", "", "x", 1),
    "power": ("Power", "power_param { power: 2 scale: 0.5 shift: 3 }", "x", 1),
    "exp": ("Exp", "exp_param { scale: 0.5 }", "x", 1),
    "log": ("Log", "log_param { shift: 3 }", "x", 1),
    "bnll": ("BNLL", "", "x", 1),
    "swish": ("Swish", "swish_param { beta: 1.5 }", "x", 1),
    "sum": ("Eltwise", "eltwise_param { operation: SUM coeff: 1 coeff: -0.5 }", "x z", 1),
    "products": ("Eltwise", "eltwise_param { operation: PROD }", "x z", 1),
    "maximum": ("Eltwise", "eltwise_param { operation: MAX }", "x z", 1),
    "concat": ("Concat", "", "x z", 1),
    "slice": ("Slice", "slice_param { axis: 1 slice_point: 2 }", "x", 2),
    "tile": ("Tile", "tile_param { axis: 2 tiles: 3 }", "x", 1),
    "crop": ("Crop", "crop_param { axis: 2 offset: 2 offset: 1 }", "x small", 1),
    "reduction": ("Reduction", "reduction_param { operation: SUMSQ axis: 1 }", "x", 1),
    "softmax": ("Softmax", "", "x", 1),
    "lrn": ("LRN", "lrn_param { local_size: 3 alpha: 0.5 }", "x", 1),
    "lrn_within": ("LRN", "lrn_param { local_size: 3 alpha: 0.5 norm_region: WITHIN_CHANNEL }", "x", 1),
    "mvn": ("MVN", "", "x", 1),
    "loss_softmax": ("SoftmaxWithLoss", "", "x label", 1),
    "loss_euclid": ("EuclideanLoss", "", "x z", 1),
    "loss_sigmoid": ("SigmoidCrossEntropyLoss", "", "x z", 1),
}


def layer(name: str, kind: str, parameters: str, bottoms: Sequence[str], tops: Sequence[str]) -> str:
    """Return a layer's text."""
    blobs = " ".join([*(f'bottom: "{one}"' for one in bottoms), *(f'top: "{one}"' for one in tops)])
    return f'layer {{ name: "{name}" type: "{kind}" {blobs} {parameters} }}\n'


def inputs(shapes: dict) -> str:
    """Return Input layers."""
    return "".join(
        layer(name, "Input", f"input_param {{ shape {{ {' '.join(f'dim: {size}' for size in shape)} }} }}", (), (name,))
        for name, shape in shapes.items()
    )


def all_layers() -> str:
    """Return a net of all layers, each on the inputs."""
    used = {bottom for _, _, bottoms, _ in LAYERS.values() for bottom in bottoms.split()}
    text = "force_backward: true\n" + inputs({name: shape for name, shape in INPUTS.items() if name in used})
    for name, (kind, parameters, bottoms, tops) in LAYERS.items():
        names = [f"{name}_y"] if tops == 1 else [f"{name}_y{i}" for i in range(tops)]
        text += layer(name, kind, parameters, bottoms.split(), names)
    return text


def chain() -> str:
    """Return a small net that trains: layers that work in place, shared by two branches, and a loss."""
    given = inputs({"x": (4, 3, 16, 16), "label": (4,)})
    conv = f"convolution_param {{ num_output: 8 kernel_size: 3 pad: 1 {XAVIER} }}"
    steps = [
        ("conv1", "Convolution", conv, ["x"], ["a"]),
        ("norm1", "BatchNorm", "", ["a"], ["a"]),
        ("scale1", "Scale", "scale_param { bias_term: true }", ["a"], ["a"]),
        ("relu1", "ReLU", "", ["a"], ["a"]),
        ("pool1", "Pooling", "pooling_param { pool: MAX kernel_size: 3 stride: 2 }", ["a"], ["b"]),
        ("conv2", "Convolution", conv, ["b"], ["c"]),
        ("sum", "Eltwise", "", ["b", "c"], ["d"]),
        ("relu2", "ReLU", "", ["d"], ["d"]),
        ("product", "InnerProduct", f"inner_product_param {{ num_output: 3 {XAVIER} }}", ["d"], ["e"]),
        ("loss", "SoftmaxWithLoss", "", ["e", "label"], ["loss"]),
    ]
    return "force_backward: true\n" + given + "".join(layer(*step) for step in steps)
