"""MXNet with OpenCL operators: ``ocl_*`` for `mx.nd.Custom` and `mx.sym.Custom`, and the swap of models to them."""

import atexit
import os
import sys
import weakref

from clgraft.mxnet_ops.engine import numpy_compat, openmp, repairs  # isort: skip  (before MXNet, which needs them)

with openmp.threads_kept(), numpy_compat.import_explained(), repairs.around_import():
    import mxnet

from clgraft.mxnet_ops.engine import backward_writes, errors, partial_shapes, random_numbers
from clgraft.mxnet_ops.engine.calls import lib as _lib
from clgraft.mxnet_ops.engine.errors import OperatorError
from clgraft.mxnet_ops.frozen import inference
from clgraft.mxnet_ops.frozen.inference import refresh
from clgraft.mxnet_ops.guards import guard, unguard
from clgraft.mxnet_ops.guards.guard import guard_symbol
from clgraft.mxnet_ops.operators.activation import Activation
from clgraft.mxnet_ops.operators.batchnorm import BatchNorm
from clgraft.mxnet_ops.operators.concat import Concat, Split
from clgraft.mxnet_ops.operators.convolution import Convolution, DepthwiseConvolution
from clgraft.mxnet_ops.operators.deconvolution import Deconvolution
from clgraft.mxnet_ops.operators.dropout import Dropout
from clgraft.mxnet_ops.operators.eltwise import Eltwise
from clgraft.mxnet_ops.operators.fully_connected import FullyConnected
from clgraft.mxnet_ops.operators.lrn import LRN
from clgraft.mxnet_ops.operators.norms import GroupNorm, InstanceNorm, L2Normalization, LayerNorm
from clgraft.mxnet_ops.operators.pointwise import Pointwise
from clgraft.mxnet_ops.operators.pooling import AdaptiveAveragePooling, AdaptiveMaxPooling, Pooling
from clgraft.mxnet_ops.operators.reduction import Reduce
from clgraft.mxnet_ops.operators.regression_output import RegressionOutput
from clgraft.mxnet_ops.operators.reordering import DepthToSpace, Repeat, Transpose
from clgraft.mxnet_ops.operators.slicing import Crop, Pad, Slice
from clgraft.mxnet_ops.operators.softmax import Softmax
from clgraft.mxnet_ops.operators.softmax_loss import SoftmaxCrossEntropy, SoftmaxOutput
from clgraft.mxnet_ops.optimizers import update as _optimizers
from clgraft.mxnet_ops.optimizers.rules import OclAdam, OclAdamW, OclNAG, OclSGD
from clgraft.mxnet_ops.regions import execution as _regions  # noqa: F401  (makes ocl_region known)
from clgraft.mxnet_ops.swap.block import swap_block
from clgraft.mxnet_ops.swap.report import Report, Row
from clgraft.mxnet_ops.swap.symbol import swap_symbol
from clgraft.mxnet_ops.swap.table import ModelOperator
from clgraft.mxnet_ops.training import cached as _cached
from clgraft.mxnet_ops.training.module import resident
from clgraft.mxnet_ops.training.trainer import Trainer

__all__ = [
    "LRN",
    "Activation",
    "AdaptiveAveragePooling",
    "AdaptiveMaxPooling",
    "BatchNorm",
    "Concat",
    "Convolution",
    "Crop",
    "Deconvolution",
    "DepthToSpace",
    "DepthwiseConvolution",
    "Dropout",
    "Eltwise",
    "FullyConnected",
    "GroupNorm",
    "InstanceNorm",
    "L2Normalization",
    "LayerNorm",
    "ModelOperator",
    "Node",
    "OclAdam",
    "OclAdamW",
    "OclNAG",
    "OclSGD",
    "OperatorError",
    "Pad",
    "Pointwise",
    "Pooling",
    "Reduce",
    "RegressionOutput",
    "Repeat",
    "Report",
    "Row",
    "Slice",
    "Softmax",
    "SoftmaxCrossEntropy",
    "SoftmaxOutput",
    "Split",
    "Trainer",
    "Transpose",
    "guard_symbol",
    "numpy_compat",
    "refresh",
    "resident",
    "swap_block",
    "swap_symbol",
]

Node = ModelOperator  # its former name

guard.install()
unguard.install()
inference.install()
_cached.install()
random_numbers.install()
backward_writes.install()
errors.install()
partial_shapes.install()
_optimizers.install()
# Do not finalize Python while an operator is queued: the engine would deadlock. Exit functions run in reverse order,
# and finalizers, which free the core's plans, are one of them: they must be registered before this one
weakref.finalize(guard.install, int)
atexit.register(mxnet.nd.waitall)
# MXNet's own handler of forks was registered when it was imported, so this one runs before it. os.fork takes locks of
# Python's modules before that, and waits here before them.
os.register_at_fork(before=mxnet.nd.waitall)
_lib.clg_mx_watch_forks(1)
atexit.register(_lib.clg_mx_watch_forks, 0)
# `clgraft.load` imports modules of this package without it: those are known to Python, but are not attributes here yet
for _name, _module in list(sys.modules.items()):
    if _name.rpartition(".")[0] == __name__:
        globals().setdefault(_name.rpartition(".")[2], _module)
