"""Operators that move elements and compute nothing: concatenation, slices, padding, repetition, transposition."""

from clgraft.core.operators.copying.concat import ConcatProblem
from clgraft.core.operators.copying.padding import PadProblem
from clgraft.core.operators.copying.slicing import SliceProblem
from clgraft.core.operators.copying.strided import RepeatProblem, TransposeProblem

__all__ = ["ConcatProblem", "PadProblem", "RepeatProblem", "SliceProblem", "TransposeProblem"]
