"""Numbers by which kernels divide with a multiplication; see kernels/common/divide.cl."""

from __future__ import annotations

import numpy as np

from clgraft.core.planning.launches import Constant
from clgraft.core.problem import ceil_div

MOST = 2**31  # what is divided is less


def packed_divisor(divisor: int) -> int:
    """Return a divisor as the kernels' `quotient` takes it: a factor of 32 bits below a shift.

    With 2^s the least power of 2 that is not less than d, and m = ceil(2^(31 + s) / d), the quotient of n < 2^31 is
    floor(n * m / 2^(31 + s)): m exceeds its fraction by less than 1, and n / 2^(31 + s) is less than 1 / d.
    Granlund and Montgomery, Division by invariant integers using multiplication (1994).

    Raises
    ------
    ValueError
        If the divisor is not from 1 to 2^31.
    """
    if not 1 <= divisor <= MOST:
        raise ValueError(f"[divisor] got {divisor}, expected 1 to {MOST}")
    if divisor == 1:
        return 0
    shift = (divisor - 1).bit_length()
    factor = ceil_div(1 << (31 + shift), divisor)
    return (shift - 1) << 32 | factor


def divisor_argument(divisor: int) -> Constant:
    """Return a divisor as a kernel's ulong parameter."""
    return Constant(np.uint64(packed_divisor(divisor)))
