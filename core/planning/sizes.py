"""The sizes of images that become others, as a struct for kernels; see kernels/common/sizes.cl."""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.core.planning.structs import Struct, StructConstant
from clgraft.core.problem import in_3d

SIZES = Struct("Sizes", (), ("source", "result"))


def sizes_argument(source: Sequence[int], result: Sequence[int]) -> StructConstant:
    """Return the kernels' Sizes of images of one to three axes."""
    return SIZES.pack({"source": in_3d(tuple(source), 1), "result": in_3d(tuple(result), 1)})
