"""The core of clgraft: problems, plans and contexts, without any framework."""

from clgraft.core import abi, settings, tuning
from clgraft.core.errors import ArgumentError, BuildError, ClgraftError, DeviceError, ExecutionError, ProblemError
from clgraft.core.graph import CompiledGraph, hand_over_text
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.copying import ConcatProblem, PadProblem, RepeatProblem, SliceProblem, TransposeProblem
from clgraft.core.operators.crossentropy import CrossEntropyProblem
from clgraft.core.operators.deconvolution import DeconvProblem
from clgraft.core.operators.dense import DenseProblem
from clgraft.core.operators.dropout import DropoutProblem
from clgraft.core.operators.fused import FusedProblem
from clgraft.core.operators.gradients import GradientsProblem
from clgraft.core.operators.lrn import LRNProblem
from clgraft.core.operators.pointwise import PointwiseProblem, Reduction
from clgraft.core.operators.pooling import PoolProblem
from clgraft.core.operators.separable import SeparableProblem
from clgraft.core.operators.softmax import SoftmaxProblem
from clgraft.core.problem import Argument, Problem, parse
from clgraft.core.runtime.plan import ACCUMULATE, OVERWRITE, SKIP, Plan, accumulate
from clgraft.core.runtime.plan import BoundBuffer as Buffer
from clgraft.core.session import c_callers
from clgraft.core.session.context import Context
from clgraft.core.session.contexts import adopt, context

Context.advisor = staticmethod(tuning.advise)
Context.compiler = CompiledGraph
Context.graph_writer = staticmethod(hand_over_text)
c_callers.serve(abi.ffi, abi.lib)
settings.warn_of_unknown()

__all__ = [
    "ACCUMULATE",
    "OVERWRITE",
    "SKIP",
    "Argument",
    "ArgumentError",
    "BatchNormProblem",
    "Buffer",
    "BuildError",
    "ClgraftError",
    "ConcatProblem",
    "Context",
    "ConvProblem",
    "CrossEntropyProblem",
    "DeconvProblem",
    "DenseProblem",
    "DeviceError",
    "DropoutProblem",
    "ExecutionError",
    "FusedProblem",
    "GradientsProblem",
    "LRNProblem",
    "PadProblem",
    "Plan",
    "PointwiseProblem",
    "PoolProblem",
    "Problem",
    "ProblemError",
    "Reduction",
    "RepeatProblem",
    "SeparableProblem",
    "SliceProblem",
    "SoftmaxProblem",
    "TransposeProblem",
    "accumulate",
    "adopt",
    "context",
    "parse",
]
