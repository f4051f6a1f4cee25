"""The problem of one sum over all elements of several arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.problem import SMALL, Argument, Gradient, Problem

MOST_ARRAYS = 256  # of a problem
HEAD = re.compile(r"sizes\[([\d,]+)\](?: wide\[([\d,]*)\])? ?(.*)", re.DOTALL)


@dataclass(frozen=True)
class TotalsProblem(Problem):
    """The sum of an expression over all elements of several arrays.

    Parameters
    ----------
    step : PointwiseProblem
        The sum over the first array, a vector ``x0``, as one element ``y0``.
    sizes : tuple of int
        Elements of each array; the first is the step's.
    wide : tuple of int
        With 16 bits: the numbers of arrays that are float32 all the same, as ``y0`` is if the step says so.
    dtype : str
        Of everything else; empty: the step's.

    Notes
    -----
    Array a is the argument ``x0_a``. Sums are taken in float32, or float64 where everything has that.

    Raises
    ------
    ProblemError
        If the step is no sum of a vector, or a size does not fit.
    """

    kind: ClassVar[str] = "totals"
    examples: ClassVar[tuple[str, ...]] = (
        "sizes[37,5] x0[37] y0[1]=sum[0] : y0 = x0 * x0",
        "sizes[37,1000,5] wide[1] f16 x0[37] y0[1]=sum[0] f32{y0} : y0 = isfinite(x0) ? 0 : 1",
        "sizes[5,9001,1] x0[5] y0[1]=sum[0] scalars{least} : y0 = x0 > least ? 1 : 0",
    )

    step: PointwiseProblem
    sizes: tuple[int, ...]
    wide: tuple[int, ...] = ()
    dtype: str = ""

    def __post_init__(self) -> None:
        dtype = self.dtype or self.step.dtype
        single = self.step.float32_arguments if dtype in SMALL else ()
        step = replace(self.step, dtype=dtype, float32_arguments=single)
        sizes, wide = (
            tuple(int(size) for size in self.sizes),
            tuple(sorted({int(a) for a in self.wide})) if dtype in SMALL else (),
        )
        for name, value in (("step", step), ("dtype", step.dtype), ("sizes", sizes), ("wide", wide)):
            object.__setattr__(self, name, value)
        self._expect(sums_vector(step), "step", step, "a sum of x0, a vector, to one element")
        self._expect(sizes[:1] == step.inputs[0], "sizes", sizes, f"{step.inputs[0]} first")
        self._expect(0 < len(sizes) <= MOST_ARRAYS, "sizes", sizes, f"1 to {MOST_ARRAYS} numbers")
        good = not wide or (wide[0] >= 0 and wide[-1] < len(sizes))
        self._expect(good, "wide", wide, f"arrays below {len(sizes)}")

    def type_of(self, name: str) -> str:
        """Return the dtype of an argument."""
        return "float32" if name in {f"x0_{a}" for a in self.wide} else self.step.type_of(name[:2])

    def arguments(self) -> tuple[Argument, ...]:
        read = (Argument(f"x0_{a}", "in", (size,), self.type_of(f"x0_{a}")) for a, size in enumerate(self.sizes))
        return (*read, Argument("y0", "out", (1,), self.type_of("y0")))

    def scalars(self) -> tuple[str, ...]:
        return self.step.scalars()

    @property
    def terms(self) -> int:
        """All elements."""
        return sum(self.sizes)

    @property
    def operations(self) -> int:
        """As the steps' together."""
        return sum(self.alone(a).operations for a in range(len(self.sizes)))

    def alone(self, a: int) -> PointwiseProblem:
        """Return the sum over one array."""
        more = ("x0",) if a in self.wide else ()
        return replace(self.step, inputs=((self.sizes[a],),), float32_arguments=(*more, *self.step.float32_arguments))

    def gradients(self) -> tuple[Gradient, ...]:
        found = []
        for a in range(len(self.sizes)):
            names = {"x0": f"x0_{a}", "dx0": f"dx0_{a}"}
            for one in self.alone(a).gradients():
                arguments = {name: names.get(value, value) for name, value in one.arguments.items()}
                found.append(replace(one, arguments=arguments))
        return tuple(found)

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        found = [self.alone(a).sample(rng) for a in range(len(self.sizes))]
        return {f"x0_{a}": arrays["x0"] for a, arrays in enumerate(found)}

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        given = scalars or self.trial_scalars()
        each = (self.alone(a).reference({"x0": arrays[f"x0_{a}"]}, given)["y0"] for a in range(len(self.sizes)))
        return {"y0": np.sum(list(each), axis=0)}

    def __str__(self) -> str:
        wide = f" wide[{','.join(map(str, self.wide))}]" if self.wide else ""
        return f"{self.kind} sizes[{','.join(map(str, self.sizes))}]{wide} {str(self.step).partition(' ')[2]}"

    @classmethod
    def from_text(cls, text: str) -> TotalsProblem:
        found = HEAD.fullmatch(text.strip())
        if found is None:
            raise ProblemError(f"[{cls.kind}] got {text!r}, expected sizes[...], wide[...] if any, and a step")
        sizes, wide = (tuple(map(int, filter(None, (part or "").split(",")))) for part in (found[1], found[2]))
        return cls(PointwiseProblem.from_text(found[3]), sizes, wide)


def sums_vector(problem: PointwiseProblem) -> bool:
    """Return whether a problem is the sum of an expression of a vector, to one element."""
    plain = not problem.alpha and not problem.beta and "x0" not in problem.float32_arguments
    if not plain or len(problem.inputs) != 1 or len(problem.inputs[0]) != 1 or len(problem.reductions) != 1:
        return False
    reduction = problem.reductions[0]
    return reduction is not None and reduction.operator == "sum" and reduction.shape == (1,)
