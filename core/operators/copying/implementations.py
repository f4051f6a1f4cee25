"""Registers the implementations, in order of preference."""

from clgraft.core.operators.copying import plan_boxes
from clgraft.core.operators.copying.concat import ConcatProblem
from clgraft.core.operators.copying.padding import PadProblem
from clgraft.core.operators.copying.slicing import SliceProblem
from clgraft.core.operators.copying.strided import RepeatProblem, TransposeProblem
from clgraft.core.planning.implementation import register

for problems in (ConcatProblem, PadProblem, RepeatProblem, SliceProblem, TransposeProblem):
    register(problems, (plan_boxes,))
