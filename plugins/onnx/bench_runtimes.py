"""Other runtimes for ONNX models on the CPU, as peers of benchmarks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

Run = Callable[[Mapping[str, np.ndarray]], list[Any]]


def _processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def onnxruntime(model: onnx.ModelProto, threads: int = 0, spinning: bool = True) -> Run:
    """Return a function that runs a model in ONNX Runtime.

    Parameters
    ----------
    model : onnx.ModelProto
    threads : int
        Number of threads; 0: as many as there are processors.
    spinning : bool
        Whether threads that wait keep their processors busy, which is faster for the run and slower for all others.
    """
    import onnxruntime as package

    options = package.SessionOptions()
    options.intra_op_num_threads = threads or _processors()
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    session = package.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda given: session.run(None, dict(given))


def openvino(model: onnx.ModelProto, threads: int = 0) -> Run:
    """Return a function that runs a model of fixed sizes in OpenVINO, in float32.

    The arrays that it returns are overwritten by the next run. `threads` is as of `onnxruntime`.
    """
    import openvino as package

    runtime = package.Core()
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads or _processors(),
        "NUM_STREAMS": 1,
    }
    request = runtime.compile_model(runtime.read_model(model.SerializeToString()), "CPU", settings)
    infer = request.create_infer_request()

    def run(given: Mapping[str, np.ndarray]) -> list[Any]:
        results = infer.infer(dict(given), share_inputs=True, share_outputs=True)
        return [results[port] for port in request.outputs]

    return run


RUNTIMES: dict[str, Callable[[onnx.ModelProto], Run]] = {"onnxruntime": onnxruntime, "openvino": openvino}
