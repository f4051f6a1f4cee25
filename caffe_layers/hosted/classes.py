"""Which class serves a type, and what it gets in addition without a Python layer of Caffe's."""

from __future__ import annotations

from typing import Any, ClassVar

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


class Parameterized:
    """What a layer's class gets in addition where no Python layer of Caffe's is made of it: a `LayerParameter`."""

    tells: ClassVar[bool] = False

    def take_given(self: Any, parameters: Any, phase: int) -> None:
        """Take what a net gives a layer."""
        self.given_parameters, self.phase, self.param_str = parameters, phase, parameters.python_param.param_str

    def read(self: Any, text: str) -> None:
        if self.given_parameters.python_param.module:  # as the swap writes it; else the text holds marks alone
            super().read(text)  # type: ignore[misc]
        else:
            self.take(self.given_parameters)

    def kinds(self: Any) -> tuple:
        own = super().kinds()  # type: ignore[misc]
        return (*own, *(f"Ocl{kind}" for kind in own), type(self).__name__)
