"""Finds the parts of a graph of PyTorch that the core can compute, and runs them."""

from __future__ import annotations

import itertools
import operator
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyopencl.array as device_array
import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupport

import clgraft.plugins.torch.lowering  # noqa: F401  fills the table
from clgraft.core import ClgraftError, Context
from clgraft.core.graph import Copies
from clgraft.core.graph import Graph as CoreGraph
from clgraft.plugins.torch.lowering.builder import CONDITIONS, TABLE, Builder
from clgraft.plugins.torch.lowering.values import NEW, NotLowered, Operand
from clgraft.plugins.torch.memory import BLOCKS, fetch, held, hold, saved_elsewhere

aten = torch.ops.aten
DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16"}
NUMBERS = itertools.count(1)  # every content of a lasting argument has a number of its own
MOST_CONTENTS = 4096  # inputs of forward graphs whose contents a backward graph finds on the device
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
    aten.as_strided.default,
    aten.as_strided_scatter.default,
    aten.copy.default,
    aten.new_zeros.default,
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
    return CONDITIONS[node.target](node) if node.target in CONDITIONS else ""


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


@dataclass
class Pair:
    """What the forward and the backward graph of a model share.

    Attributes
    ----------
    returned : int
        How many of the forward graph's results are the model's; what follows is for the backward graph alone.
    read_again : frozenset of str
        Inputs of the forward graph that the backward graph reads as well.
    copies : Copies
        Of these on a device with memory of its own.
    numbers : OrderedDict of (str, int) to int
        The content of these copies by name and address.
    """

    returned: int
    read_again: frozenset[str]
    copies: Copies
    numbers: OrderedDict[tuple[str, int], int] = field(default_factory=OrderedDict)

    def sent(self, name: str, address: int, number: int = 0) -> int:
        """Note what the forward graph sends."""
        content = (name, address)
        self.numbers[content] = number = number or next(NUMBERS)
        self.numbers.move_to_end(content)
        if len(self.numbers) > MOST_CONTENTS:
            self.numbers.popitem(last=False)
        return number


def take_regions(
    module: GraphModule,
    context: Context,
    found: Explanation,
    lasting: Collection[int] = (),
    pair: Pair | None = None,
    backward: bool = False,
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
    pair : Pair, optional
        Of a forward and a backward graph; the backward graph has the same one.
    backward : bool
        Whether the graph is the backward one.
    """
    types = {kind for kind, name in DTYPES.items() if name != "float64" or context.device.has_fp64}
    for node in list(module.graph.nodes):
        if node.op == "call_function" and not node.users and node.target is operator.getitem:
            module.graph.erase_node(node)
        elif node.target is aten.view.default:  # results of regions lie in order, whatever PyTorch's would do
            node.target = aten.reshape.default
    partitioner = CapabilityBasedPartitioner(module, _Support(types, found), allows_single_node_partition=True)
    partitions = partitioner.propose_partitions()
    partitions = [part for part in partitions if any(node.target not in IDLE for node in part.nodes)]
    fused = partitioner.fuse_partitions(partitions)
    calls = {n: fused.get_submodule(n.target) for n in fused.graph.nodes if _is_region(n)}
    inputs = [node for node in fused.graph.nodes if node.op == "placeholder"]
    kept = {node for place, node in enumerate(inputs) if place in lasting}
    staged = context.device.host_access == "staged"
    returned = _returned(fused, None if pair is None or backward else pair.returned)
    for call, child in calls.items():
        found.lowered += [str(n.target) for n in child.graph.nodes if n.op == "call_function" and n.target in TABLE]
        found.regions += 1
        arguments = list(enumerate(call.args))
        region = Region(child, context, found, frozenset(place for place, node in arguments if node in kept))
        if staged:
            region.held = _stays(call, returned)
            if pair is not None:
                again = {place: node.name for place, node in arguments if node in inputs}
                region.again = {place: name for place, name in again.items() if name in pair.read_again}
                region.pair, region.backward = pair, backward
        setattr(fused, call.target, region)
    if staged:
        _fetch_for_others(fused, inputs)
    _keep_strides(fused)
    fused.recompile()
    return fused


def _is_region(node: Node) -> bool:
    return node.op == "call_module" and str(node.target).startswith("fused_")


def _returned(module: GraphModule, count: int | None) -> set[Node]:
    """Return the results of a graph that its caller sees: the first of them, or all."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    return {node for node in results[:count] if isinstance(node, Node)}


def _stays(call: Node, returned: set[Node]) -> frozenset[int]:
    """Return which results of a region only regions read, of this graph or the backward one."""
    single = not all(user.target is operator.getitem for user in call.users)
    parts = {0: call} if single else {int(user.args[1]): user for user in call.users}
    return frozenset(
        place
        for place, node in parts.items()
        if node not in returned and all(_is_region(user) or user.op == "output" for user in node.users)
    )


def _fetch_for_others(module: GraphModule, inputs: Sequence[Node]) -> None:
    """Let operators that stay PyTorch's read inputs that a device may hold from host memory."""
    for node in inputs:
        others = [user for user in node.users if not _is_region(user)]
        if others and isinstance(node.meta.get("val"), torch.Tensor):
            with module.graph.inserting_after(inputs[-1]):
                here = module.graph.call_function(fetch, (node,))
            for user in others:
                user.replace_input_with(node, here)


def _keep_strides(module: GraphModule) -> None:
    """Give operators that stay PyTorch's, and depend on strides, the strides that were traced."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in (aten.as_strided.default, aten.as_strided_scatter.default):
            value = node.args[0].meta.get("val")
            if isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in value.stride()):
                with module.graph.inserting_before(node):
                    laid_out = module.graph.call_function(_with_strides, (node.args[0], list(value.stride())))
                node.replace_input_with(node.args[0], laid_out)


def _with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    if list(tensor.stride()) == list(strides):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


@dataclass(frozen=True)
class _Program:
    """A region for given shapes: its compiled graph, and how its results become tensors.

    Attributes
    ----------
    compiled : CompiledGraph
    read, places : dict of str to int
        Which argument is which input of the graph: those that it reads, and all.
    constants : dict of str to array
    single : bool
        Whether there is one result, which is no tuple.
    operands : tuple
        The results.
    held : frozenset of str
        Outputs of the graph that stay on the device.
    """

    compiled: Any
    read: Mapping[str, int]
    places: Mapping[str, int]
    constants: Mapping[str, np.ndarray]
    single: bool
    operands: tuple[Any, ...]
    held: frozenset[str]


class Region(torch.nn.Module):
    """A part of a model that runs as one graph of the core; a graph is compiled for each set of shapes.

    Attributes
    ----------
    held : frozenset of int
        Results that stay on the device: tensors that stand for them are returned.
    pair : Pair or None
        What the passes share.
    backward : bool
        Whether this is part of the backward pass.
    again : dict of int to str
        Arguments that both passes read, by place.
    """

    def __init__(
        self, module: GraphModule, context: Context, found: Explanation, lasting: frozenset[int] = frozenset()
    ) -> None:
        super().__init__()
        self.module, self._context, self._found, self._lasting = module, context, found, lasting
        self.held: frozenset[int] = frozenset()
        self.pair: Pair | None = None
        self.backward = False
        self.again: dict[int, str] = {}
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
            return self.module(*map(fetch, arguments))
        return self._run(program, arguments)

    def _name(self, place: int, value: torch.Tensor) -> str:
        """Return an argument's name in the graph: the same in both passes, for one that both read."""
        if place in self.again:
            return f"{self.again[place]}_{value.numel()}_{DTYPES[value.dtype]}"
        return f"in{place}"

    def _compile(self, arguments: Sequence[Any]) -> _Program | None:
        build = Builder()
        values: dict[Node, Any] = {}
        inputs: dict[str, int] = {}
        given = iter(enumerate(arguments))
        try:
            for node in self.module.graph.nodes:
                if node.op == "placeholder":
                    place, value = next(given)
                    if isinstance(value, torch.Tensor):
                        value = build.input(self._name(place, value), tuple(value.shape), DTYPES[value.dtype])
                        inputs[value.name] = place
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
            stay = {place for place in self.held if isinstance(operands[place], Operand) and operands[place].size}
            operands = tuple(build.stored(o) if place in stay else o for place, o in enumerate(operands))
            given_names = {*inputs, *build.constants}
            outputs = dict.fromkeys(o.name for o in operands if isinstance(o, Operand) and o.name not in given_names)
            graph = _live(build.graph.graph(*outputs))
            read = {value.name for value in graph.inputs}
            constants = {name: array for name, array in build.constants.items() if name in read}
            compiled = self._context.compile(graph, constants=constants)
            compiled.plan()
        except ClgraftError as error:
            self._found.kept[f"a region of {len(self.module.graph.nodes)} nodes"] = str(error)
            return None
        seen = {
            operand.name for place, operand in enumerate(operands) if place not in stay and isinstance(operand, Operand)
        }
        stays = frozenset(operands[place].name for place in stay if operands[place].name in outputs) - seen
        wanted = {name: place for name, place in inputs.items() if name in read}
        return _Program(compiled, wanted, inputs, build.constants, single, operands, stays)

    def _run(self, program: _Program, arguments: Sequence[Any]) -> Any:
        arrays: dict[str, Any] = {}
        tensors = []  # their memory is read
        for name, place in program.read.items():
            value = held(arguments[place])
            if value is None:
                tensors.append(arguments[place].detach().contiguous())
                value = tensors[-1].numpy()
            arrays[name] = value
        made: dict[str, torch.Tensor] = {}
        values = program.compiled.graph.values
        stay = frozenset() if saved_elsewhere() else program.held
        for name in program.compiled.graph.outputs:
            shape, dtype = values[name].shape, values[name].dtype
            if name in stay:
                arrays[name] = device_array.empty(self._context.queue, shape, dtype)
            else:
                made[name] = BLOCKS.empty(shape, dtype)
                arrays[name] = made[name].numpy()
        copies = None if self.pair is None else self.pair.copies
        program.compiled.run(arrays, versions=self._versions(program, arguments), copies=copies)
        results = []
        for operand in program.operands:
            if not isinstance(operand, Operand):
                results.append(operand)
            elif operand.name in stay:
                results.append(hold(arrays[operand.name], operand.shape))
            else:
                base = self._base(program, operand, made, arguments)
                plain = operand.contiguous and base.shape == operand.shape
                results.append(base if plain else _seen(base.reshape(operand.stored), operand))
        return results[0] if program.single else tuple(results)

    @staticmethod
    def _base(
        program: _Program, operand: Operand, made: Mapping[str, torch.Tensor], arguments: Sequence[Any]
    ) -> torch.Tensor:
        """Return the tensor that has the elements of a result."""
        if operand.name in made:
            return made[operand.name]
        if operand.name in program.constants:
            return torch.from_numpy(program.constants[operand.name]).clone()
        tensor: torch.Tensor = fetch(arguments[program.places[operand.name]])
        return tensor.contiguous()

    def _versions(self, program: _Program, arguments: Sequence[Any]) -> dict[str, int]:
        """Return a number for the contents of each argument that lasts, or that the other pass reads."""
        versions = {}
        for name, place in program.read.items():
            tensor, pair, again = arguments[place], self.pair, self.again.get(place)
            if place in self._lasting:
                told = (tensor.data_ptr(), tensor._version)
                known = self._contents.get(place)
                if known is None or known[0] != told:
                    known = self._contents[place] = (told, next(NUMBERS))
                versions[name] = known[1]
            if pair is not None and again is not None:
                address = tensor.data_ptr()
                if self.backward:
                    versions[name] = pair.numbers.get((again, address), 0)
                else:
                    versions[name] = pair.sent(again, address, versions.get(name, 0))
        return versions


def _live(graph: CoreGraph) -> CoreGraph:
    """Return a graph without nodes and inputs that no output needs: they would be sent to the device."""
    needed, nodes = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if needed.intersection(node.writes):
            nodes.append(node)
            needed.update(node.reads)
    inputs = tuple(value for value in graph.inputs if value.name in needed)
    return replace(graph, nodes=tuple(reversed(nodes)), inputs=inputs)


def _seen(base: torch.Tensor, operand: Operand) -> torch.Tensor:
    """Return stored elements as the view that an operand is."""
    used = [axis for axis in operand.axes if axis != NEW]
    unused = [axis for axis in range(len(operand.stored)) if axis not in used]
    tensor = base.permute(used + unused)
    return tensor.reshape(operand.aligned).expand(operand.shape)
