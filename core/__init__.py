"""The core of clgraft: problems, plans and contexts, without any framework."""

from clgraft.core import abi
from clgraft.core.abi import planner
from clgraft.core.batchnorm import BatchNormProblem
from clgraft.core.context import Context, adopt, context
from clgraft.core.conv import ConvProblem
from clgraft.core.copying import ConcatProblem, PadProblem, RepeatProblem, SliceProblem, TransposeProblem
from clgraft.core.crossentropy import CrossEntropyProblem
from clgraft.core.deconvolution import DeconvProblem
from clgraft.core.dense import DenseProblem
from clgraft.core.dropout import DropoutProblem
from clgraft.core.errors import (
    ArgumentError,
    BuildError,
    ClgraftError,
    DeviceError,
    ExecutionError,
    ProblemError,
)
from clgraft.core.lrn import LRNProblem
from clgraft.core.plan import ACCUMULATE, OVERWRITE, SKIP, Plan, accumulate
from clgraft.core.plan import BoundBuffer as Buffer
from clgraft.core.pointwise import PointwiseProblem, Reduction
from clgraft.core.pooling import PoolProblem
from clgraft.core.problem import Argument, Problem, parse
from clgraft.core.softmax import SoftmaxProblem

planner.serve(abi.ffi, abi.lib)

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
    "LRNProblem",
    "PadProblem",
    "Plan",
    "PointwiseProblem",
    "PoolProblem",
    "Problem",
    "ProblemError",
    "Reduction",
    "RepeatProblem",
    "SliceProblem",
    "SoftmaxProblem",
    "TransposeProblem",
    "accumulate",
    "adopt",
    "context",
    "parse",
]
