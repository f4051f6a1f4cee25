"""A depthwise convolution and the convolution of single pixels that reads its result, as one problem."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Union

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.fused.problem import FusedProblem
from clgraft.core.operators.pointwise.expression import IDENTIFIER
from clgraft.core.planning.epilogue import WHOLE, Epilogue
from clgraft.core.problem import Argument, Problem, parse
from clgraft.core.problem.base import shortened
from clgraft.core.problem.layout import FIRST

Layer = Union[ConvProblem, FusedProblem]
TEXT = re.compile(r"(.*?)\s+then\s+((?:fused\s+)?conv\s.*)", re.DOTALL)
PREFIX = "depthwise_"  # of the first layer's own arguments and scalars


@dataclass(frozen=True)
class SeparableProblem(Problem):
    """A depthwise separable convolution, forward: the value between its two layers is nobody else's.

    Its arguments are x, the first layer's weights, bias and extra inputs with the prefix ``depthwise_``, those of the
    second layer, and y.

    Parameters
    ----------
    depthwise : ConvProblem or FusedProblem
        A depthwise convolution with one filter for each channel, channels first, and what follows it: extra inputs are
        of the kind ``channel``.
    product : ConvProblem or FusedProblem
        A convolution of its result with kernels of one pixel at stride 1, and what follows it.
    dtype : str
        Of everything; empty: the layers'.

    Raises
    ------
    ProblemError
        If the layers are others, or the second cannot read the first one's result.
    """

    kind: ClassVar[str] = "separable"
    apart: ClassVar[bool] = True
    examples: ClassVar[tuple[str, ...]] = (
        "conv forward n2 g12 ic12 ih13 iw13 oc12 kh3 kw3 ph1 pw1 b1 then conv forward n2 ic12 ih13 iw13 oc7 kh1 kw1 b1",
        "fused conv forward n3 g5 ic5 ih9 iw11 oc5 kh5 kw3 sh2 sw2 ph2 pw1 with channel : y0 = clamp(x0 * x1, 0, 6)"
        " then fused conv forward n3 ic5 ih5 iw6 oc9 kh1 kw1 with whole : y0 = x0 + x1",
    )

    depthwise: Layer
    product: Layer
    dtype: str = ""

    def __post_init__(self) -> None:
        for name in ("depthwise", "product"):
            layer = getattr(self, name)
            conv = conv_of(layer) if isinstance(layer, (ConvProblem, FusedProblem)) else None
            known = isinstance(conv, ConvProblem) and conv.direction == "forward"
            self._expect(known, name, layer, "a forward convolution")
            object.__setattr__(self, name, replace(layer, dtype=self.dtype or layer.dtype))
        object.__setattr__(self, "dtype", self.depthwise.dtype)
        first, second = conv_of(self.depthwise), conv_of(self.product)
        one = first.depthwise and first.out_channels == first.in_channels and first.layout == FIRST
        self._expect(one, "depthwise", first, "one filter for each channel, channels first")
        extras = self.depthwise.extras if isinstance(self.depthwise, FusedProblem) else ()
        self._expect(WHOLE not in extras, "depthwise", self.depthwise, "extra inputs for each channel")
        plain = math.prod(second.kernel + second.stride) == 1 and not any(second.pad_begin + second.pad_end)
        self._expect(plain and second.groups == 1, "product", second, "kernels of one pixel, and one group")
        sizes = (first.batch, first.out_channels, first.out_size, first.layout, first.dtype)
        read = (second.batch, second.in_channels, second.in_size, second.layout, second.dtype)
        self._expect(sizes == read, "product", second, f"one that reads the result of {first}")

    @property
    def prologue(self) -> Epilogue | None:
        """What follows the first layer inside of the second one's kernel, with its scalars' names in this problem."""
        if not isinstance(self.depthwise, FusedProblem):
            return None
        names = {name: PREFIX + name for name in self.depthwise.parameters}
        text = IDENTIFIER.sub(lambda found: names.get(found[0], found[0]), self.depthwise.expression)
        renamed = replace(self.depthwise, expression=text, parameters=tuple(names.values()))
        return renamed.epilogue

    @property
    def epilogue(self) -> Epilogue | None:
        """What follows the second layer."""
        return self.product.epilogue if isinstance(self.product, FusedProblem) else None

    @property
    def middle(self) -> Argument:
        """The first layer's result."""
        return self.depthwise.arguments()[-1]

    def arguments(self) -> tuple[Argument, ...]:
        x, *own, _ = self.depthwise.arguments()
        return (x, *(replace(a, name=PREFIX + a.name) for a in own), *self.product.arguments()[1:])

    def scalars(self) -> tuple[str, ...]:
        return (*(PREFIX + name for name in self.depthwise.scalars()), *self.product.scalars())

    def part(self, count: int) -> SeparableProblem | None:
        depthwise, product = self.depthwise.part(count), self.product.part(count)
        if depthwise is None or product is None:
            return None
        return replace(self, depthwise=depthwise, product=product)  # type: ignore[arg-type]

    @property
    def operations(self) -> int:
        """Both layers' operations."""
        return self.depthwise.operations + self.product.operations

    @property
    def terms(self) -> int:
        """Both layers' terms: rounding errors of the first become part of the second's."""
        return self.depthwise.terms + self.product.terms

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        numbers = scalars or self.trial_scalars()

        def given(layer: Layer, prefix: str) -> Iterator[dict[str, Any]]:
            yield {a.name: arrays[prefix + a.name] for a in layer.arguments()[1:-1]}
            yield {name: numbers[prefix + name] for name in layer.scalars()}

        own, own_scalars = given(self.depthwise, PREFIX)
        middle = self.depthwise.reference({"x": arrays["x"], **own}, own_scalars)["y"]
        rest, rest_scalars = given(self.product, "")
        return self.product.reference({"x": middle, **rest}, rest_scalars)

    def __str__(self) -> str:
        return f"{self.kind} {self.depthwise} then {self.product}"

    @classmethod
    def from_text(cls, text: str) -> SeparableProblem:
        found = TEXT.fullmatch(text.strip())
        if not found:
            raise ProblemError(f"[{cls.kind}] got {shortened(text)}, expected a convolution, 'then' and a convolution")
        return cls(parse(found[1]), parse(found[2]))  # type: ignore[arg-type]


def conv_of(layer: Layer) -> ConvProblem:
    """Return a layer's convolution."""
    return layer.base if isinstance(layer, FusedProblem) else layer  # type: ignore[return-value]
