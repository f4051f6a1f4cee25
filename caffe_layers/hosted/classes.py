"""Which class serves a type."""

from __future__ import annotations

from clgraft.caffe_layers import LAYERS
from clgraft.caffe_layers.swap.rules import OWN, UNSWAPPED, VIEWS
from clgraft.core.errors import ProblemError

# types of Caffe's forks whose class has another name
CLASSES = {"DepthwiseConvolution": "OclDepthwiseConvolution", "ConvolutionDepthwise": "OclDepthwiseConvolution"}


def types() -> list[tuple[str, str, bool]]:
    """Return Caffe's types with ours, and whether ours may take their place in any net, outside of regions too."""
    ours = {name[len("Ocl") :]: name for name in LAYERS if name not in (*OWN, *UNSWAPPED)}
    ours.update(CLASSES)
    return [(kind, name, kind not in VIEWS) for kind, name in ours.items()]


def class_name(kind: str) -> str:
    """Return the name of the class for one of Caffe's types, or for one of ours."""
    name = kind if kind.startswith("Ocl") else CLASSES.get(kind, f"Ocl{kind}")
    if name not in LAYERS or name in OWN:
        raise ProblemError(f"[caffe] got type {kind!r}, expected one that clgraft has a layer for")
    return name
