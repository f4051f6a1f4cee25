"""The backend of `torch.compile`: ``torch.compile(model, backend="clgraft")``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch.fx import Graph, GraphModule, Node

from clgraft import core
from clgraft.core.errors import ArgumentError, hint
from clgraft.core.graph import Copies
from clgraft.core.planning.precision import FLOAT32, mixed_precision
from clgraft.plugins.torch import foreseen
from clgraft.plugins.torch.execution import Pair
from clgraft.plugins.torch.explanation import Explanation
from clgraft.plugins.torch.joint import make_blanks_alone, multiply_by_masks, read_clipped, read_maxima
from clgraft.plugins.torch.regions import expect_regions, take_regions
from clgraft.plugins.torch.traced import cast_automatically, keep_resizing

OPTIONS: dict[str, tuple[type, str]] = {  # their types, and how errors call these
    "precision": (str, "'float16', 'bfloat16' or 'float32'"),
    "device": (str, "a device selector such as 'gpu'"),
    "frozen": (bool, "True or False"),
    "strict": (bool, "True or False"),
}
PAIR = "clgraft_pair"  # where a graph's output has its `Pair`


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
        keeps them, and they are sent again only when they have changed. ``strict``: whether an error is raised where
        PyTorch would have to compute something, except for whole numbers and random numbers. ``precision``:
        ``float16`` or ``bfloat16`` as the type of products; parameters, gradients and results stay float32. In training
        the model is traced under `torch.autocast`, as if the caller had said that. By default what
        ``CLGRAFT_PRECISION`` says.

    Raises
    ------
    ArgumentError
        If there are other options, or one is of another type.
    NotLowered
        With ``strict``, if operators stay PyTorch's: all of them, with the reasons.
    DeviceError
        If no device fits.
    """
    given = dict(options or {})
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        near = hint(unknown[0], OPTIONS)
        raise ArgumentError(f"[torch] got options {unknown}, expected some of {list(OPTIONS)}{near}")
    for name, value in given.items():
        kind, expected = OPTIONS[name]
        if value is not None and not isinstance(value, kind):
            raise ArgumentError(f"[torch] got option {name}={value!r}, expected {expected}")
    mixed = mixed_precision(given.get("precision"))
    context, settings = core.context(given.get("device")), (bool(given.get("frozen")), bool(given.get("strict")))
    return compiler(context, Explanation(), *settings, mixed)(module, inputs)


def compiler(
    context: core.Context, found: Explanation, frozen: bool = False, strict: bool = False, mixed: str | None = None
) -> Callable[..., Any]:
    """Return the function that compiles graphs for a context and says what became of their operators."""

    def compile_forward(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        lasting, pair = _parameters() if frozen else (), _pair(module)
        precision = FLOAT32 if pair else mixed or FLOAT32  # what trains is mixed by PyTorch
        return _boxed(take_regions(module, context, found, lasting, pair, strict=strict, precision=precision))

    def compile_backward(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _boxed(take_regions(module, context, found, (), _pair(module), backward=True, strict=strict))

    def split(joint: GraphModule, *arguments: Any, **keywords: Any) -> Any:
        make_blanks_alone(joint)
        read_maxima(joint)
        read_clipped(joint)
        multiply_by_masks(joint)
        forward, backward = min_cut_rematerialization_partition(joint, *arguments, **keywords)
        if strict:  # now: the backward graph is compiled in the first backward pass
            expect_regions((forward, backward), context)
        again = frozenset(_inputs(forward) & _inputs(backward))
        pair = Pair(keywords["num_fwd_outputs"], again, Copies(context))
        for graph in (forward.graph, backward.graph):
            _output(graph).meta[PAIR] = pair
        return forward, backward

    differentiate = aot_autograd(
        fw_compiler=compile_forward,
        bw_compiler=compile_backward,
        inference_compiler=compile_forward,
        partition_fn=split,
    )

    def compile_whole(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.graphs += 1
        keep_resizing(module)
        if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in inputs):
            if mixed is not None:
                cast_automatically(module, getattr(torch, mixed))
            else:
                context.expect(foreseen.convolutions(module))
        return differentiate(module, inputs)  # type: ignore[no-any-return]

    return compile_whole


def _boxed(module: GraphModule) -> Callable[..., Any]:
    return make_boxed_func(module)  # type: ignore[no-any-return]


def _inputs(module: GraphModule) -> set[str]:
    return {node.name for node in module.graph.nodes if node.op == "placeholder"}


def _output(graph: Graph) -> Node:
    return next(node for node in reversed(graph.nodes) if node.op == "output")


def _pair(module: GraphModule) -> Pair | None:
    """Return what a graph shares with that of the other pass; None for inference."""
    return _output(module.graph).meta.get(PAIR)


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
    breaks = torch._dynamo.utils.counters["graph_break"]
    before = dict(breaks)
    compiled = torch.compile(model, backend=compiler(core.context(device), found, mixed=mixed_precision()))
    outputs = compiled(*inputs)
    first = outputs if isinstance(outputs, torch.Tensor) else next(iter(outputs))
    if first.requires_grad:
        first.sum().backward()
    torch._dynamo.reset()
    for reason, count in breaks.items():
        if count > before.get(reason, 0):
            found.breaks[_short(reason)] = count - before.get(reason, 0)
    return found


def _short(reason: str) -> str:
    """Return a reason of PyTorch's without its hints and links."""
    lines = [line.strip() for line in reason.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(("Hint:", "For more details")))
