"""Division by a multiplication, in Python's exact integers and in kernels."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest

from clgraft.core.planning.division import MOST, packed_divisor
from clgraft.core.runtime.sources import KERNELS

DIVISORS = [*range(1, 70), 112 * 112, 2**16 - 1, 2**16, 2**16 + 1, 2**30, 2**30 + 1, 2**31 - 1, 2**31]


def dividends(divisor: int) -> list[int]:
    """Numbers at the edges of quotients, and random ones."""
    rng = np.random.default_rng(divisor)
    multiples = [divisor * int(q) for q in rng.integers(0, MOST // divisor + 1, 50)]
    near = [m + step for m in (*multiples, MOST) for step in (-1, 0, 1)]
    return [n for n in (0, 1, *near, *map(int, rng.integers(0, MOST, 50))) if 0 <= n < MOST]


@pytest.mark.parametrize("divisor", DIVISORS)
def test_quotients_are_exact(divisor):
    packed = packed_divisor(divisor)
    factor, shift = packed % 2**32, packed >> 32
    for n in dividends(divisor):
        assert (n * factor >> 32 >> shift if factor else n) == n // divisor


def test_kernels_divide(context):
    cases = [(n, divisor) for divisor in DIVISORS for n in dividends(divisor)]
    numbers = np.array([n for n, _ in cases], np.uint32)
    divisors = np.array([packed_divisor(divisor) for _, divisor in cases], np.uint64)
    source = (
        (KERNELS / "common/divide.cl").read_text()
        + """
        kernel void divide(global uint *n, global const ulong *by) {
            n[get_global_id(0)] = quotient(n[get_global_id(0)], by[get_global_id(0)]);
        }"""
    )
    kernel = cl.Program(context.cl_context, source).build(["-cl-std=CL1.2"]).divide
    queue = cl.CommandQueue(context.cl_context)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    first, second = (cl.Buffer(context.cl_context, flags, hostbuf=array) for array in (numbers, divisors))
    kernel(queue, numbers.shape, None, first, second)
    cl.enqueue_copy(queue, numbers, first)
    assert numbers.tolist() == [n // divisor for n, divisor in cases]


@pytest.mark.parametrize("divisor", [0, -1, 2**31 + 1])
def test_other_divisors_are_refused(divisor):
    with pytest.raises(ValueError, match=r"\[divisor\] got"):
        packed_divisor(divisor)
