"""Caffe layers that compute with OpenCL, and the tools that put them into existing nets.

A net names a layer by `python_param { module: "clgraft.caffe_layers" layer: "OclConvolution" param_str: '...' }`.
The classes are looked up on demand, so that the swap tools work where Caffe cannot be imported.
"""

from __future__ import annotations

import importlib
from typing import Any

LAYERS = {
    "OclConvolution": "convolution",
    "OclDepthwiseConvolution": "convolution",
    "OclIm2col": "convolution",
    "OclDeconvolution": "deconvolution",
    "OclInnerProduct": "inner_product",
    "OclBatchNorm": "batch_norm",
    "OclBN": "batch_norm",
    "OclPooling": "pooling",
    "OclSPP": "pooling",
    "OclAdaptiveMaxPooling": "pooling",
    "OclScale": "affine",
    "OclBias": "affine",
    "OclAxpy": "affine",
    "OclReLU": "activation",
    "OclPReLU": "activation",
    "OclELU": "activation",
    "OclSigmoid": "activation",
    "OclTanH": "activation",
    "OclAbsVal": "activation",
    "OclPower": "activation",
    "OclExp": "activation",
    "OclLog": "activation",
    "OclBNLL": "activation",
    "OclSwish": "activation",
    "OclClip": "activation",
    "OclThreshold": "activation",
    "OclReLU6": "activation",
    "OclDropout": "dropout",
    "OclConcat": "concat",
    "OclSlice": "concat",
    "OclCrop": "shaping",
    "OclTile": "shaping",
    "OclReduction": "shaping",
    "OclParameter": "shaping",
    "OclArgMax": "rows",
    "OclBatchReindex": "rows",
    "OclEmbed": "rows",
    "OclLSTM": "recurrent",
    "OclLSTMUnit": "recurrent",
    "OclRNN": "recurrent",
    "OclPermute": "permute",
    "OclShuffleChannel": "permute",
    "OclInterp": "resizing",
    "OclUpsample": "resizing",
    "OclPriorBox": "detection",
    "OclDetectionOutput": "detection",
    "OclROIPooling": "detection",
    "OclFlatten": "reshaping",
    "OclReshape": "reshaping",
    "OclEltwise": "eltwise",
    "OclSoftmax": "softmax",
    "OclSoftmaxWithLoss": "softmax",
    "OclSigmoidCrossEntropyLoss": "loss",
    "OclEuclideanLoss": "loss",
    "OclHingeLoss": "label_losses",
    "OclMultinomialLogisticLoss": "label_losses",
    "OclInfogainLoss": "label_losses",
    "OclContrastiveLoss": "label_losses",
    "OclLRN": "lrn",
    "OclMVN": "lrn",
    "OclNormalize": "normalize",
    "OclPointwise": "pointwise",
}


def layer_class(name: str) -> Any:
    """Return a layer's class as it is without Caffe: it describes what the layer computes."""
    return getattr(importlib.import_module(f"clgraft.caffe_layers.layers.{LAYERS[name]}"), name)


def __getattr__(name: str) -> Any:
    if name in LAYERS:
        framework = importlib.import_module("clgraft.caffe_layers.layers.framework")
        globals()[name] = framework.bind(layer_class(name))
        return globals()[name]
    if name == "schema":  # its name before it moved to prototxt
        return importlib.import_module("clgraft.caffe_layers.prototxt.schema")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *LAYERS])
