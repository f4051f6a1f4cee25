"""Places of elements by their indices, of which negative ones count from the end, as formulas."""

from __future__ import annotations

BEYOND = "1e18"  # an index outside of every axis, also where it is part of a sum
# what an index x0 of an axis of x1 elements adds to the place in an array, where it moves on by x2
STEP = f"x0 >= -x1 && x0 < x1 ? (x0 < 0 ? x0 + x1 : x0) * x2 : {BEYOND}"


def _from_front(count: float) -> str:
    return f"(x0 < 0 ? x0 + {count!r} : x0)"


def place(count: int, step: int) -> str:
    """Return the place in an array of the index x0 of an axis of `count` elements that moves on by `step`, after x1."""
    size = float(count)
    return f"x0 >= (-{size!r}) && x0 < {size!r} ? {_from_front(size)} * {float(step)!r} + x1 : {BEYOND}"


def one_hot(count: int) -> str:
    """Return x2 where x1 is the index x0 of `count` elements, else x3."""
    return f"{_from_front(float(count))} == x1 ? x2 : x3"
