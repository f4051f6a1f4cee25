"""MXNet with OpenCL operators: ``ocl_*`` for `mx.nd.Custom` and `mx.sym.Custom`, and their graft into whole models."""

import atexit

from clgraft.mxnet_ops import numpy_compat  # isort: skip  (before MXNet, which needs what it puts back)

import mxnet
from clgraft.mxnet_ops import activation, batchnorm, convolution, eltwise, guard, pointwise
from clgraft.mxnet_ops.guard import guard_symbol

guard.install()
# Python must not go while an operator that needs it is queued: the engine would wait for ever
atexit.register(mxnet.nd.waitall)
