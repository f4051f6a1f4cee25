"""Other runtimes for ONNX models on the CPU, as peers of benchmarks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

Run = Callable[[Mapping[str, np.ndarray]], list[Any]]


def onnxruntime(model: onnx.ModelProto) -> Run:
    """Return a function that runs a model in ONNX Runtime."""
    import onnxruntime as package

    session = package.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda given: session.run(None, dict(given))


def openvino(model: onnx.ModelProto) -> Run:
    """Return a function that runs a model of fixed sizes in OpenVINO, in float32.

    The arrays that it returns are overwritten by the next run.
    """
    import openvino as package

    runtime = package.Core()
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    request = runtime.compile_model(runtime.read_model(model.SerializeToString()), "CPU", settings)
    infer = request.create_infer_request()

    def run(given: Mapping[str, np.ndarray]) -> list[Any]:
        results = infer.infer(dict(given), share_inputs=True, share_outputs=True)
        return [results[port] for port in request.outputs]

    return run


RUNTIMES: dict[str, Callable[[onnx.ModelProto], Run]] = {"onnxruntime": onnxruntime, "openvino": openvino}
