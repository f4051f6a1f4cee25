"""Results of convolutions on CPU devices that are stored past the caches (kernels/conv/past_caches.cl)."""

from __future__ import annotations

from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.pointwise.generate import outgrows_caches
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import has_32_registers
from clgraft.core.problem import SMALL

LINE_BYTES = 64  # of a cache
PRODUCTS = 0.75  # from which size on products of matrices gain, see `least`
DEEP = 64  # terms of a sum in whose time lines are read, too: processors that wait for stores past the caches lose then


def past_caches(
    planner: Planner, problem: ConvProblem, together: int, least: float = 1.0, in_order: bool = False
) -> dict[str, int]:
    """Return the kernels' macro PAST_CACHES for a result that outgrows the caches, nothing for any other.

    Nor for processors with vectors shorter than a line: kernels with half of the registers gained nothing, but for
    those that store many lines one right after the other.

    Parameters
    ----------
    planner : Planner
    problem : ConvProblem
    together : int
        Elements of a row that the kernel stores one after the other, before it turns to another row. They have to fill
        a line: one that is not written as a whole is merged with what memory has.
    least : float
        From which size on it gains, as a multiple of the least size that outgrows the caches. A kernel that asks for
        the lines that it writes later loses nothing as long as the last level's cache holds them.
    in_order : bool
        Whether it stores many lines one right after the other.
    """
    result = problem.arguments()[-1]
    fills = together * result.nbytes >= LINE_BYTES * max(result.size, 1)
    fills = fills and (in_order or has_32_registers(planner.device))
    return {"PAST_CACHES": 1} if fills and outgrows_caches(planner, int(result.nbytes / least)) else {}


def product_past_caches(
    planner: Planner, problem: ConvProblem, together: int, in_order: bool = False
) -> dict[str, int]:
    """Return `past_caches` of a product of matrices, which has nothing to gain where its sums have many terms.

    Results of 16 bits are stored in half of the lines, and gain all the same.
    """
    if problem.terms >= DEEP and problem.dtype not in SMALL and not in_order:
        return {}
    return past_caches(planner, problem, together, PRODUCTS, in_order)
