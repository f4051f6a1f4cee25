"""The backend of `torch.compile`: ``torch.compile(model, backend="clgraft")``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch.fx import GraphModule

from clgraft import core
from clgraft.core.errors import ArgumentError
from clgraft.plugins.torch.joint import read_maxima
from clgraft.plugins.torch.regions import Explanation, take_regions

OPTIONS = ("device", "frozen")


def clgraft(
    module: GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **others: Any
) -> Callable[..., Any]:
    """Compile a graph of PyTorch, forward and backward.

    Parameters
    ----------
    module : torch.fx.GraphModule
        What Dynamo has traced.
    inputs : sequence of tensors
        Examples, on the CPU.
    options : mapping, optional
        ``device``: a device selector, as for `clgraft.core.context`. ``frozen``: whether parameters and buffers change
        only in ways that PyTorch's version counters see (not through ``.data``); a device with memory of its own then
        keeps them, and they are sent again only when they have changed.

    Raises
    ------
    ArgumentError
        If there are other options.
    DeviceError
        If no device fits.
    """
    given = dict(options or {})
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise ArgumentError(f"[torch] got options {unknown}, expected some of {list(OPTIONS)}")
    context = core.context(given.get("device"))
    return compiler(context, Explanation(), bool(given.get("frozen")))(module, inputs)


def compiler(context: core.Context, found: Explanation, frozen: bool = False) -> Callable[..., Any]:
    """Return the function that compiles graphs for a context and says what became of their operators."""

    def compile_part(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        lasting = _parameters() if frozen else ()
        return make_boxed_func(take_regions(module, context, found, lasting))  # type: ignore[no-any-return]

    def split(joint: GraphModule, *arguments: Any, **keywords: Any) -> Any:
        read_maxima(joint)
        return min_cut_rematerialization_partition(joint, *arguments, **keywords)

    return aot_autograd(  # type: ignore[no-any-return]
        fw_compiler=compile_part, bw_compiler=compile_part, inference_compiler=compile_part, partition_fn=split
    )


def _parameters() -> Sequence[int]:
    """Return which inputs of the graph that is compiled are parameters and buffers."""
    tracing = TracingContext.try_get()
    return getattr(tracing.fw_metadata, "static_input_indices", ()) if tracing else ()


def explain(model: torch.nn.Module, *inputs: torch.Tensor, device: str | None = None) -> Explanation:
    """Run a model and return which of its operators run on the device, and why others do not.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode its gradients count as well.
    *inputs : torch.Tensor
    device : str, optional
        A device selector.
    """
    found = Explanation()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=compiler(core.context(device), found))
    outputs = compiled(*inputs)
    first = outputs if isinstance(outputs, torch.Tensor) else next(iter(outputs))
    if first.requires_grad:
        first.sum().backward()
    torch._dynamo.reset()
    return found
