"""The backend of `torch.compile`: ``torch.compile(model, backend="clgraft")``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from clgraft import core
from clgraft.core.errors import ArgumentError
from clgraft.plugins.torch.joint import read_maxima
from clgraft.plugins.torch.regions import Explanation, take_regions

OPTIONS = ("device",)


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
        ``device``: a device selector, as for `clgraft.core.context`.

    Raises
    ------
    ArgumentError
        If there are other options.
    DeviceError
        If no device fits.
    """
    return compiler(core.context(_device(options)), Explanation())(module, inputs)


def _device(options: Mapping[str, Any] | None) -> str | None:
    given = dict(options or {})
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise ArgumentError(f"[torch] got options {unknown}, expected some of {list(OPTIONS)}")
    return given.get("device")


def compiler(context: core.Context, found: Explanation) -> Callable[..., Any]:
    """Return the function that compiles graphs for a context and says what became of their operators."""

    def compile_part(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return make_boxed_func(take_regions(module, context, found))  # type: ignore[no-any-return]

    def split(joint: GraphModule, *arguments: Any, **keywords: Any) -> Any:
        read_maxima(joint)
        return min_cut_rematerialization_partition(joint, *arguments, **keywords)

    return aot_autograd(  # type: ignore[no-any-return]
        fw_compiler=compile_part, bw_compiler=compile_part, inference_compiler=compile_part, partition_fn=split
    )


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
