"""Structs that kernels take by value: one table of fields declares them in OpenCL C and packs them in Python.

Fields are of one type, in the table's order, and nothing else, so that no compiler pads or reorders them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

AXES = ("d", "h", "w")  # depth, height, width
KINDS = {"int": np.int32, "long": np.int64}


@dataclass(frozen=True)
class StructConstant:
    """Binds a struct that never changes, by value."""

    value: bytes


@dataclass(frozen=True)
class Struct:
    """A struct of ints, or of longs.

    Attributes
    ----------
    name : str
        Kernels declare ``PhaseGrid`` as ``typedef struct { PHASE_GRID_FIELDS } PhaseGrid;``.
    counts : tuple of str
        Fields of one number.
    spatial : tuple of str
        Fields of one number for each axis: ``size`` becomes ``size_d``, ``size_h`` and ``size_w``.
    kind : str
        The type of all fields in OpenCL C: ``int`` or ``long``.
    """

    name: str
    counts: tuple[str, ...]
    spatial: tuple[str, ...] = ()
    kind: str = "int"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields in memory."""
        return (*self.counts, *(f"{name}_{axis}" for name in self.spatial for axis in AXES))

    def defines(self) -> dict[str, str]:
        """Return the macro that declares the fields in kernels."""
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name)
        return {f"{words.upper()}_FIELDS": f"{self.kind} {', '.join(self.fields)};"}

    def pack(self, values: Mapping[str, int | Sequence[int]]) -> StructConstant:
        """Return the struct as a kernel argument.

        Parameters
        ----------
        values : mapping
            For each of `counts` a number, for each of `spatial` one per axis, outermost first.

        Raises
        ------
        ValueError
            If these are not the fields' names, or a field has not three axes.
        """
        if set(values) != {*self.counts, *self.spatial}:
            raise ValueError(f"[{self.name}] got fields {sorted(values)}, expected {[*self.counts, *self.spatial]}")
        numbers: list[int] = []
        for name in self.counts:
            numbers.append(values[name])  # type: ignore[arg-type]
        for name in self.spatial:
            axes = tuple(values[name])  # type: ignore[arg-type]
            if len(axes) != len(AXES):
                raise ValueError(f"[{self.name}] got {name} {axes}, expected one number for each of {AXES}")
            numbers += axes
        return StructConstant(np.array(numbers, KINDS[self.kind]).tobytes())
