"""Which class serves a type."""

from __future__ import annotations

from clgraft.caffe_layers import LAYERS
from clgraft.core.errors import ProblemError

# types of Caffe's forks whose class has another name
CLASSES = {"DepthwiseConvolution": "OclDepthwiseConvolution", "ConvolutionDepthwise": "OclDepthwiseConvolution"}


def class_name(kind: str) -> str:
    """Return the name of the class for one of Caffe's types, or for one of ours."""
    name = kind if kind.startswith("Ocl") else CLASSES.get(kind, f"Ocl{kind}")
    if name not in LAYERS or name == "OclPointwise":
        raise ProblemError(f"[caffe] got type {kind!r}, expected one that clgraft has a layer for")
    return name
