"""Finds the parts of a graph of PyTorch that the core can compute, and runs them."""

from __future__ import annotations

import itertools
import operator
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupport

import clgraft.plugins.torch.lowering  # noqa: F401  fills the table
from clgraft.core import ClgraftError, Context
from clgraft.plugins.torch.lowering.builder import TABLE, Builder
from clgraft.plugins.torch.lowering.values import NEW, NotLowered, Operand

aten = torch.ops.aten
DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16"}
NUMBERS = itertools.count(1)  # every content of a lasting argument has a number of its own
MOST_PROGRAMS = 16  # sets of shapes of a region that stay compiled

# operators that compute nothing: a region does not consist of them alone
IDLE = {
    operator.getitem,
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze.default,
    aten.zeros.default,
    aten.ones.default,
    aten.full.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
}


@dataclass
class Explanation:
    """What became of the operators of a model.

    Attributes
    ----------
    lowered : list of str
        Operators that run on the device.
    kept : dict of str to str
        Operators that stay PyTorch's, with the reason.
    regions : int
        How many regions there are.
    """

    lowered: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    regions: int = 0

    def __str__(self) -> str:
        lines = [f"{len(self.lowered)} operators in {self.regions} regions run on the device"]
        lines += [f"PyTorch's: {name}: {reason}" for name, reason in self.kept.items()]
        return "\n".join(lines)


def reason_to_keep(node: Node, types: set[torch.dtype]) -> str:
    """Return why a call stays PyTorch's; empty if it can be lowered."""
    if node.target is operator.getitem:
        source = node.args[0]
        return reason_to_keep(source, types) if isinstance(source, Node) else "its source is no call"
    if node.target not in TABLE:
        return "no problem of the core computes it"
    results = node.meta.get("val")
    if node.target is aten.max_pool2d_with_indices.default:
        results = results[:1]
        if any(user.args[1] == 1 and user.users for user in node.users if user.target is operator.getitem):
            return "its indices are asked for"
    for value in _tensors([results, *(argument.meta.get("val") for argument in node.all_input_nodes)]):
        if value.dtype not in DTYPES:
            return f"it has values of {value.dtype}"
        if value.dtype not in types:
            return f"the device has no {value.dtype}"
        if value.device.type != "cpu" or value.layout is not torch.strided:
            return f"it has {value.layout} tensors on {value.device}"
    return ""


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


class _Support(OperatorSupport):  # type: ignore[misc]
    def __init__(self, types: set[torch.dtype], found: Explanation) -> None:
        super().__init__()
        self._types, self._found = types, found

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        """Answer PyTorch's partitioner."""
        if node.op != "call_function":
            return False
        reason = reason_to_keep(node, self._types)
        if reason and node.target is not operator.getitem:
            self._found.kept.setdefault(str(node.target), reason)
        return not reason


def take_regions(
    module: GraphModule, context: Context, found: Explanation, lasting: Collection[int] = ()
) -> GraphModule:
    """Replace the parts that can be lowered by `Region` modules; the rest stays PyTorch's.

    Parameters
    ----------
    module : GraphModule
        A graph of `aten` operators that change nothing in place.
    context : Context
    found : Explanation
        Receives what became of the operators.
    lasting : collection of int
        Inputs that are the same tensors in every call, with contents that their version counters follow.
    """
    types = {kind for kind, name in DTYPES.items() if name != "float64" or context.device.has_fp64}
    for node in module.graph.nodes:
        if node.op == "call_function" and not node.users and node.target is operator.getitem:
            module.graph.erase_node(node)
    partitioner = CapabilityBasedPartitioner(module, _Support(types, found), allows_single_node_partition=True)
    partitions = partitioner.propose_partitions()
    partitions = [part for part in partitions if any(node.target not in IDLE for node in part.nodes)]
    fused = partitioner.fuse_partitions(partitions)
    inputs = [node for node in fused.graph.nodes if node.op == "placeholder"]
    kept = {node for place, node in enumerate(inputs) if place in lasting}
    for call in fused.graph.nodes:
        if call.op == "call_module" and call.target.startswith("fused_"):
            child = fused.get_submodule(call.target)
            found.lowered += [str(n.target) for n in child.graph.nodes if n.op == "call_function" and n.target in TABLE]
            found.regions += 1
            places = frozenset(place for place, argument in enumerate(call.args) if argument in kept)
            setattr(fused, call.target, Region(child, context, found, places))
    fused.recompile()
    return fused


@dataclass(frozen=True)
class _Program:
    """A region for given shapes: its compiled graph, and how its results become tensors."""

    compiled: Any
    inputs: tuple[tuple[int, str], ...]
    results: tuple[Any, ...]


class Region(torch.nn.Module):
    """A part of a model that runs as one graph of the core; a graph is compiled for each set of shapes."""

    def __init__(
        self, module: GraphModule, context: Context, found: Explanation, lasting: frozenset[int] = frozenset()
    ) -> None:
        super().__init__()
        self.module, self._context, self._found, self._lasting = module, context, found, lasting
        self._contents: dict[int, tuple[Any, int]] = {}  # lasting argument -> what tells its contents, and their number
        self._programs: OrderedDict[Any, _Program | None] = OrderedDict()

    def forward(self, *arguments: Any) -> Any:
        """Return the region's results."""
        key = tuple((a.shape, a.dtype) if isinstance(a, torch.Tensor) else a for a in arguments)
        if key not in self._programs:
            self._programs[key] = self._compile(arguments)
            if len(self._programs) > MOST_PROGRAMS:
                self._programs.popitem(last=False)
        program = self._programs[key]
        if program is None:
            return self.module(*arguments)
        return self._run(program, arguments)

    def _compile(self, arguments: Sequence[Any]) -> _Program | None:
        build = Builder()
        values: dict[Node, Any] = {}
        inputs = []
        given = iter(enumerate(arguments))
        try:
            for node in self.module.graph.nodes:
                if node.op == "placeholder":
                    place, value = next(given)
                    if isinstance(value, torch.Tensor):
                        value = build.input(f"in{place}", tuple(value.shape), DTYPES[value.dtype])
                        inputs.append((place, value.name))
                    values[node] = value
                elif node.op == "call_function":
                    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                    if node.target is operator.getitem:
                        values[node] = args[0][args[1]]
                    else:
                        values[node] = TABLE[node.target](build, *args, **kwargs)
                elif node.op == "output":
                    results = map_arg(node.args[0], values.__getitem__)
                else:
                    raise NotLowered(f"[torch] got {node.op} {node.target}, expected a call")
            single = not isinstance(results, (tuple, list))
            operands = (results,) if single else tuple(results)
            names = {f"in{place}" for place, _ in enumerate(arguments)} | set(build.constants)
            outputs = dict.fromkeys(o.name for o in operands if isinstance(o, Operand) and o.name not in names)
            compiled = self._context.compile(build.graph.graph(*outputs), constants=build.constants)
            compiled.plan()
        except ClgraftError as error:
            self._found.kept[f"a region of {len(self.module.graph.nodes)} nodes"] = str(error)
            return None
        read = {value.name for value in compiled.graph.inputs}
        return _Program(compiled, tuple(i for i in inputs if i[1] in read), (single, operands))

    def _run(self, program: _Program, arguments: Sequence[Any]) -> Any:
        tensors = {name: arguments[place].detach().contiguous() for place, name in program.inputs}
        single, operands = program.results
        graph = program.compiled.graph
        made = {
            name: torch.empty(graph.values[name].shape, dtype=getattr(torch, graph.values[name].dtype))
            for name in graph.outputs
        }
        arrays = {name: tensor.numpy() for name, tensor in (*tensors.items(), *made.items())}
        program.compiled.run(arrays, versions=self._versions(program, arguments))
        results = []
        for operand in operands:
            if not isinstance(operand, Operand):
                results.append(operand)
                continue
            if operand.name in made:
                base = made[operand.name]
            elif operand.name in program.compiled.constants:
                base = torch.from_numpy(program.compiled.constants[operand.name]).clone()
            else:
                base = arguments[int(operand.name[2:])].contiguous()
            results.append(_seen(base.reshape(operand.stored), operand))
        return results[0] if single else tuple(results)

    def _versions(self, program: _Program, arguments: Sequence[Any]) -> dict[str, int]:
        """Return a number for the contents of each argument that lasts."""
        versions = {}
        for place, name in program.inputs:
            if place in self._lasting:
                tensor = arguments[place]
                told = (tensor.data_ptr(), tensor._version)
                known = self._contents.get(place)
                if known is None or known[0] != told:
                    known = self._contents[place] = (told, next(NUMBERS))
                versions[name] = known[1]
        return versions


def _seen(base: torch.Tensor, operand: Operand) -> torch.Tensor:
    """Return stored elements as the view that an operand is."""
    used = [axis for axis in operand.axes if axis != NEW]
    unused = [axis for axis in range(len(operand.stored)) if axis not in used]
    tensor = base.permute(used + unused)
    return tensor.reshape(operand.aligned).expand(operand.shape)
