"""The struct that describes a pooling's windows to its kernels; see kernels/pooling/windows.cl.

The vectorised kernels for CPUs take the same as numbers: some compilers make slower code of a struct, by 4 to 37 %.
"""

from __future__ import annotations

from typing import Any

from clgraft.core.operators.pooling.problem import OPERATORS, PoolProblem
from clgraft.core.planning.structs import AXES, Struct, StructConstant
from clgraft.core.problem import in_3d

# window o of `result` has `taps` taps from source position o * stride - pad on; the padded source ends at `end`
FIELDS = ("source", "result", "taps", "stride", "pad", "end")
# axis by axis: where the numbers of two axes are neighbours, compilers make slow vectors of two of them
WINDOWS = Struct("Windows", ("count_padding", *(f"{field}_{axis}" for axis in AXES for field in FIELDS)))


def operator_macros(problem: PoolProblem) -> dict[str, Any]:
    """Return what kernels/pooling/operators.cl takes."""
    return {"OPERATOR": OPERATORS.index(problem.operator), **({"KEEP_NAN": 1} if problem.keep_nan else {})}


def ends(problem: PoolProblem) -> tuple[int, ...]:
    """Return where the padded input ends, counted from the input's first element."""
    return tuple(i + q for i, q in zip(problem.in_size, problem.pad_end))


def windows_argument(problem: PoolProblem) -> StructConstant:
    """Return the kernels' Windows."""
    values = {
        "source": in_3d(problem.in_size, 1),
        "result": in_3d(problem.out_size, 1),
        "taps": in_3d(problem.kernel, 1),
        "stride": in_3d(problem.stride, 1),
        "pad": in_3d(problem.pad_begin, 0),
        "end": in_3d(ends(problem), 1),
    }
    numbers = {f"{field}_{axis}": number for field in FIELDS for axis, number in zip(AXES, values[field])}
    return WINDOWS.pack({"count_padding": int(problem.count_padding), **numbers})
