"""Operators that move elements and compute nothing: concatenation, slices, padding, repetition, transposition."""

from clgraft.core.copying import plan_boxes
from clgraft.core.copying.concat import ConcatProblem
from clgraft.core.copying.padding import PadProblem
from clgraft.core.copying.slicing import SliceProblem
from clgraft.core.copying.strided import RepeatProblem, TransposeProblem

IMPLEMENTATIONS = (plan_boxes,)

__all__ = ["IMPLEMENTATIONS", "ConcatProblem", "PadProblem", "RepeatProblem", "SliceProblem", "TransposeProblem"]
