"""PyTorch's operators in both of its layouts, against our core without an adapter.

Where our device has memory of its own and PyTorch is a CUDA build that finds a device, both sides compute on it, with
all arrays there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from clgraft import core
from clgraft.core import BatchNormProblem, PoolProblem
from clgraft.core.planning.precision import TF32, precision
from clgraft.core.problem import layout as layout_of
from clgraft.plugins.command_line.bench import core_operators
from clgraft.plugins.command_line.bench.cases import Case, Element
from clgraft.plugins.command_line.bench.peers import NotServed, Side, operands
from clgraft.plugins.torch.memory import array_of, tensor_of

MODES = {  # by whether both sides are on a GPU
    False: "eager, the faster of channels first and channels last; ours without an adapter",
    True: "eager on the GPU, with TF32 where ours has it, with cudnn.benchmark, the faster of channels first and"
    " channels last; ours without an adapter; arrays on the device, each call waits for it",
}
FIRST, LAST = "channels first", "channels last"
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}  # by the number of an image's axes


def __getattr__(name: str) -> str:
    """Return MODE, which depends on the device."""
    if name == "MODE":
        return MODES[on_gpu()]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def on_gpu() -> bool:
    """Return whether PyTorch computes on a GPU as we do."""
    return core.context().device.host_access == "staged" and torch.cuda.is_available()


def take_methods() -> None:
    """Let PyTorch's GPU operators multiply float32 as exactly as ours, by the fastest method of cuDNN."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision() == TF32
    torch.backends.cudnn.benchmark = True


def threads() -> int:
    """Return the number of threads that PyTorch computes with."""
    return int(torch.get_num_threads())


def sides(case: Case) -> dict[str, Side]:
    """Return both sides of a case."""
    work, there = case.work, on_gpu()
    if there:
        take_methods()
    inputs, arrays = operands(work)
    place = "cuda" if there else "cpu"
    found = {layout: _native(work, inputs, arrays, layout, place) for layout in layouts(work)}
    return {**found, "clgraft": core_operators.side(case, arrays, on_device=there)}


def layouts(work: Any) -> list[str]:
    """Return the layouts in which PyTorch has a problem: one alone where they are the same, or the problem names one.

    Raises
    ------
    NotServed
        If the problem is in channels last and PyTorch has none for so many axes.
    """
    ndim = getattr(work, "ndim", 2 if isinstance(work, BatchNormProblem) else 0)
    if _is_last(work):
        if ndim not in FORMATS:
            raise NotServed(f"torch has no channels last with {ndim} spatial axes")
        return [LAST]
    return [FIRST, LAST] if ndim in FORMATS else [FIRST]


def _is_last(work: Any) -> bool:
    return getattr(work, "layout", layout_of.FIRST) == layout_of.LAST


def _laid_out(array: np.ndarray, layout: str, place: str = "cpu") -> Any:
    """Return an array as a tensor whose memory has a layout; vectors have but one."""
    tensor = tensor_of(array).to(place)
    form = FORMATS.get(tensor.ndim - 2)
    return tensor.contiguous(memory_format=form) if layout == LAST and form is not None else tensor


def _native(work: Any, inputs: list[str], arrays: dict[str, np.ndarray], layout: str, place: str = "cpu") -> Side:
    shapes = [arrays["dy"].shape, *(arrays[name].shape for name in inputs)]
    if isinstance(work, BatchNormProblem):  # as images of one column
        arrays = {name: value[..., None] if value.ndim == 3 else value for name, value in arrays.items()}
    if _is_last(work):  # as PyTorch sees them; the memory stays
        arrays = {name: layout_of.channels_first(value) for name, value in arrays.items()}
    tensors = [_laid_out(arrays[name], layout, place) for name in inputs]
    learning = [tensor.clone().requires_grad_() for tensor in tensors]
    dy = _laid_out(arrays["dy"], layout, place)
    wait = torch.cuda.synchronize if place == "cuda" else lambda: None
    kept: dict[str, Any] = {}
    recorded = _apply(work, learning)

    def forward() -> None:
        with torch.no_grad():
            kept["y"] = _apply(work, tensors)
        wait()

    def backward() -> None:
        kept["gradients"] = torch.autograd.grad(recorded, learning, dy, retain_graph=True)
        wait()

    backwards = None if isinstance(work, Element) and work.function == "sum" else backward

    def results() -> list[np.ndarray]:
        found = (kept["y"], *kept.get("gradients", ()))
        both = [array_of(tensor.cpu()) for tensor in found]
        if _is_last(work):
            both = [layout_of.channels_last(array) for array in both]
        return [array.reshape(shape) for array, shape in zip(both, shapes)]

    return Side(forward, backwards, results)


def _apply(work: Any, tensors: list[Any]) -> Any:
    if isinstance(work, Element):
        if work.function == "sum":
            return tensors[0] + tensors[1]
        function = functional.softplus if work.function == "softrelu" else getattr(torch, work.function)
        return function(tensors[0])
    if isinstance(work, BatchNormProblem):
        x, gamma, beta = tensors
        return functional.batch_norm(x, None, None, gamma, beta, training=True, eps=core_operators.EPS)
    if isinstance(work, PoolProblem):
        if work.ndim != 2 or work.operator not in ("max", "average"):
            raise NotServed(f"torch has no pooling of {work}")
        if work.operator == "max":
            return functional.max_pool2d(tensors[0], work.kernel, work.stride, work.pad_begin)
        return functional.avg_pool2d(tensors[0], work.kernel, work.stride, work.pad_begin)
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[work.ndim - 1]
    x, w = tensors[:2]
    return function(x, w, None, work.stride, work.pad_begin, work.dilate, work.groups)
