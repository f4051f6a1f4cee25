"""Other runtimes for ONNX models on the CPU, as peers of benchmarks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from clgraft.core import settings
from clgraft.core.planning.precision import FLOAT32
from clgraft.plugins.onnx.plugin import THREADS

HINTS = {FLOAT32: "f32", "float16": "f16", "bfloat16": "bf16"}  # OpenVINO's words
Run = Callable[[Mapping[str, np.ndarray]], list[Any]]


def _threads(threads: int) -> int:
    """Return a number of threads, by default what the environment says; 0: the library's own default."""
    return threads or int(os.environ.get(THREADS) or 0)


def onnxruntime(model: onnx.ModelProto, threads: int = 0, spinning: bool = True) -> Run:
    """Return a function that runs a model in ONNX Runtime.

    Parameters
    ----------
    model : onnx.ModelProto
    threads : int
        Number of threads; 0: what `plugin.THREADS` says in the environment, else the library's own default.
    spinning : bool
        Whether threads that wait keep their processors busy, which is faster for the run and slower for all others.
    """
    import onnxruntime as package

    options = package.SessionOptions()
    options.intra_op_num_threads = _threads(threads)
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    session = package.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda given: session.run(None, dict(given))


def openvino(model: onnx.ModelProto, threads: int = 0, precision: str = FLOAT32) -> Run:
    """Return a function that runs a model of fixed sizes in OpenVINO.

    The arrays that it returns are overwritten by the next run. `threads` is as of `onnxruntime`, `precision` is
    `float32`, `float16` or `bfloat16`.
    """
    import openvino as package

    runtime = package.Core()
    asked = {
        "INFERENCE_PRECISION_HINT": HINTS[precision],
        "INFERENCE_NUM_THREADS": _threads(threads),
        "NUM_STREAMS": 1,
    }
    request = runtime.compile_model(runtime.read_model(model.SerializeToString()), "CPU", asked)
    infer = request.create_infer_request()

    def run(given: Mapping[str, np.ndarray]) -> list[Any]:
        results = infer.infer(dict(given), share_inputs=True, share_outputs=True)
        return [results[port] for port in request.outputs]

    return run


RUNTIMES: dict[str, Callable[[onnx.ModelProto], Run]] = {"onnxruntime": onnxruntime, "openvino": openvino}
MIXED = {"openvino": settings.MIXED}  # the types of 16 bits that a runtime has for a model of float32
