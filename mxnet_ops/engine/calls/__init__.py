"""MXNet's calls of clgraft operators in C: `lib` and `ffi`, ready to be given to MXNet.

The C side keeps what was found out about a call (names, shapes, plans) and runs operators without Python; what it does
not know yet it asks of `clgraft.mxnet_ops.engine.registration`.
"""

from __future__ import annotations

import ctypes

from mxnet.base import _LIB

from clgraft.core import abi

try:
    from clgraft.mxnet_ops.engine.calls._calls import ffi, lib
except ImportError as error:
    raise ImportError(
        "[mxnet] got no compiled clgraft.mxnet_ops.engine.calls._calls, expected it to be built with the package:"
        " install clgraft again where MXNet is to be used (pip install .)"
    ) from error

__all__ = ["REORDER", "VERSIONS", "ffi", "lib"]

VERSIONS = ("1.9.1",)  # of MXNet, whose arrays C knows
# mxnet::NDArray::Chunk::Reorder2Default(), which no function of MXNet's C interface calls without waiting
REORDER = "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv"


def _start() -> None:
    def of_mxnet(name: str) -> int:
        return ctypes.cast(getattr(_LIB, name), ctypes.c_void_p).value or 0

    def of_runtime(name: str) -> int:
        return int(abi.ffi.cast("uintptr_t", abi.ffi.addressof(abi.lib, name)))

    addresses = {
        "get_data": of_mxnet("MXNDArrayGetData"),
        "free_array": of_mxnet("MXNDArrayFree"),
        "last_failure": of_mxnet("MXGetLastError"),
        "plan_run": of_runtime("clg_plan_run"),
        "plan_start": of_runtime("clg_plan_start"),
        "plan_mark": of_runtime("clg_plan_mark"),
        "event_destroy": of_runtime("clg_event_destroy"),
        "last_error": of_runtime("clg_last_error"),
        "get_dtype": of_mxnet("MXNDArrayGetDType"),
        "get_storage_type": of_mxnet("MXNDArrayGetStorageType"),
        "get_context": of_mxnet("MXNDArrayGetContext"),
        "get_shape": of_mxnet("MXNDArrayGetShapeEx"),
        "copy_array": of_mxnet("MXShallowCopyNDArray"),
        "get_gradient": of_mxnet("MXNDArrayGetGrad"),
        "push": of_mxnet("MXEnginePushSyncND"),
        "reorder": of_mxnet(REORDER) if hasattr(_LIB, REORDER) else 0,
    }
    lib.clg_mx_start(ffi.new("clg_mx_functions *", {name: ffi.cast("void *", at) for name, at in addresses.items()}))


_start()
