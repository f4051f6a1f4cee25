"""Runs a part of a graph of PyTorch as one graph of the core."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from clgraft.core import BuildError, Context, ExecutionError, ProblemError
from clgraft.core.graph import Copies, Graph
from clgraft.core.nn.shapes import inverse_order
from clgraft.core.planning.precision import FLOAT32
from clgraft.plugins.torch.binding import Binding
from clgraft.plugins.torch.explanation import Explanation
from clgraft.plugins.torch.held import fetch, saved_elsewhere
from clgraft.plugins.torch.lowering.builder import TABLE, Builder
from clgraft.plugins.torch.lowering.calls import lower
from clgraft.plugins.torch.lowering.values import DTYPES, NEW, NotLowered, Operand
from clgraft.plugins.torch.memory import array_of, tensor_of
from clgraft.plugins.torch.orders import Order, in_memory, order_of

NUMBERS = itertools.count(1)  # every region, and every content of a lasting argument, has a number of its own
MOST_CONTENTS = 4096  # inputs of forward graphs whose contents a backward graph finds on the device
MOST_PROGRAMS = 16  # sets of shapes of a region that stay compiled
MOST_CHANGES = 3  # of lasting arguments, before they are no constants any more: making these again takes time


@dataclass
class Pair:
    """What the forward and the backward graph of a model share. Safe to use from any thread.

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
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def sent(self, name: str, address: int, number: int = 0) -> int:
        """Note what the forward graph sends."""
        content = (name, address)
        with self._lock:
            self.numbers[content] = number = number or next(NUMBERS)
            self.numbers.move_to_end(content)
            if len(self.numbers) > MOST_CONTENTS:
                self.numbers.popitem(last=False)
        return number


@dataclass(frozen=True)
class _RegionProgram:
    """A region for given shapes: its compiled graph, and how its results become tensors.

    Attributes
    ----------
    binding : Binding or None
        Runs the graph; without one there is nothing to compute.
    places : dict of str to int
        Which argument is which input of the graph.
    told : list of (str, int)
        The inputs that have versions, and their places.
    constants : dict of str to array
    single : bool
        Whether there is one result, which is no tuple.
    operands : tuple
        The results.
    plain : tuple of bool
        Which of them have their elements in the order that PyTorch sees.
    held : frozenset of str
        Outputs of the graph that stay on the device.
    contents : tuple
        What tells the contents of lasting arguments that are constants of the graph.
    """

    binding: Binding | None
    places: Mapping[str, int]
    told: Sequence[tuple[str, int]]
    constants: Mapping[str, np.ndarray]
    single: bool
    operands: tuple[Any, ...]
    plain: tuple[bool, ...]
    held: frozenset[str]
    contents: tuple[Any, ...] = ()


class RegionModule(torch.nn.Module):
    """A part of a model that runs as one graph of the core; a graph is compiled for each set of shapes.

    Where the core refuses some shapes or the device fails to build a kernel, PyTorch computes the region and a warning
    says why. Safe to use from any thread.

    Attributes
    ----------
    held : frozenset of int
        Results that stay on the device: tensors that stand for them are returned.
    orders : dict of int to tuple
        Results whose elements are wanted in another order of the axes in memory.
    pair : Pair or None
        What the passes share.
    backward : bool
        Whether this is part of the backward pass.
    again : dict of int to str
        Arguments that both passes read, by place.
    strict : bool
        Whether errors are raised where PyTorch would compute the region.
    precision : str
        What graphs are compiled with.
    """

    def __init__(
        self, module: GraphModule, context: Context, found: Explanation, lasting: frozenset[int] = frozenset()
    ) -> None:
        super().__init__()
        self.module, self._context, self._found, self._lasting = module, context, found, lasting
        self.held: frozenset[int] = frozenset()
        self.orders: dict[int, Order] = {}
        self.pair: Pair | None = None
        self.backward = False
        self.again: dict[int, str] = {}
        self.strict, self.precision = False, FLOAT32
        self._lock = threading.Lock()
        self._number = next(NUMBERS)
        self._contents: dict[int, tuple[Any, int]] = {}  # lasting argument -> what tells its contents, and their number
        self._programs: OrderedDict[Any, _RegionProgram | None] = OrderedDict()
        self._changes = 0  # how often lasting arguments changed that were constants

    def forward(self, *arguments: Any) -> Any:
        """Return the region's results."""
        with self._lock:
            program = self._program(arguments)
        if program is None:
            return self.module(*map(fetch, arguments))
        return self._run(program, arguments)

    def _program(self, arguments: Sequence[Any]) -> _RegionProgram | None:
        """Return the program for these arguments; None if PyTorch computes the region."""
        key = tuple((a.shape, a.dtype, order_of(a)) if isinstance(a, torch.Tensor) else a for a in arguments)
        program = self._programs.get(key)
        contents = self._constants(arguments)
        if program is not None and program.contents != contents:
            self._changes += 1
            del self._programs[key]
            contents = self._constants(arguments)
        if key not in self._programs:
            self._programs[key] = program = self._compiled(arguments, contents)
            if len(self._programs) > MOST_PROGRAMS:
                self._programs.popitem(last=False)
        return program

    def _constants(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return what tells the contents of lasting arguments where these are constants: in inference."""
        if not self._lasting or self.pair is not None or self._changes > MOST_CHANGES:
            return ()
        return tuple((arguments[place].data_ptr(), arguments[place]._version) for place in sorted(self._lasting))

    def _name(self, place: int, value: torch.Tensor) -> str:
        """Return an argument's name in the graph: the same in both passes if both read it, else one of its own."""
        name = self.again.get(place, f"in{place}_{self._number}")
        return f"{name}_{value.numel()}_{DTYPES[value.dtype]}"

    def _compiled(self, arguments: Sequence[Any], contents: tuple[Any, ...]) -> _RegionProgram | None:
        """Return a program and note what runs on the device; without one, warn."""
        try:
            program = self._compile(arguments, contents)
        except (ProblemError, BuildError, ExecutionError) as error:
            if self.strict:
                raise
            self._found.failed(self._number, self._calls(), str(error))
            return None
        self._found.ran(self._number, self._calls())
        return program

    def _calls(self) -> list[str]:
        return [str(n.target) for n in self.module.graph.nodes if n.op == "call_function" and n.target in TABLE]

    def _lower(self, build: Builder, arguments: Sequence[Any], contents: tuple[Any, ...]) -> tuple[dict[str, int], Any]:
        """Add the region's problems to a graph; return which argument is which input, and the results."""
        values: dict[Node, Any] = {}
        inputs: dict[str, int] = {}
        given = iter(enumerate(arguments))
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                place, value = next(given)
                if isinstance(value, torch.Tensor):
                    order = () if contents and place in self._lasting else order_of(value)
                    value = build.input(self._name(place, value), value.shape, DTYPES[value.dtype], order)
                    inputs[value.name] = place
                values[node] = value
            elif node.op == "call_function":
                lower(build, node, values)
            elif node.op == "output":
                return inputs, map_arg(node.args[0], values.__getitem__)
            else:
                raise NotLowered(f"[torch] got {node.op} {node.target}, expected a call")
        raise NotLowered("[torch] got a region without results, expected some")

    def _compile(self, arguments: Sequence[Any], contents: tuple[Any, ...] = ()) -> _RegionProgram:
        build = Builder()
        inputs, results = self._lower(build, arguments, contents)
        single = not isinstance(results, (tuple, list))
        operands = (results,) if single else tuple(results)
        operands = tuple(_in_order(build, o, self.orders.get(place, ())) for place, o in enumerate(operands))
        stay = {place for place in self.held if isinstance(operands[place], Operand) and operands[place].size}
        operands = tuple(build.stored(o) if place in stay else o for place, o in enumerate(operands))
        given_names = {*inputs, *build.constants}
        outputs = dict.fromkeys(o.name for o in operands if isinstance(o, Operand) and o.name not in given_names)
        graph = _live(build.graph.graph(*outputs))
        read = {value.name for value in graph.inputs}
        constants = {name: array for name, array in build.constants.items() if name in read}
        if contents:
            lasting = {name: place for name, place in inputs.items() if place in self._lasting and name in read}
            for name, place in lasting.items():
                constants[name] = array_of(arguments[place].detach().contiguous())
        compiled = self._context.compile(graph, constants=constants, precision=self.precision)
        compiled.plan()
        seen = {
            operand.name for place, operand in enumerate(operands) if place not in stay and isinstance(operand, Operand)
        }
        stays = frozenset(operands[place].name for place in stay if operands[place].name in outputs) - seen
        wanted = {name: place for name, place in inputs.items() if name in read and name not in constants}
        binding = Binding(self._context, compiled, wanted, stays) if outputs else None
        told = [(name, place) for name, place in wanted.items() if place in self._lasting or place in self.again]
        plain = tuple(isinstance(operand, Operand) and operand.contiguous for operand in operands)
        return _RegionProgram(binding, inputs, told, build.constants, single, operands, plain, stays, contents)

    def _run(self, program: _RegionProgram, arguments: Sequence[Any]) -> Any:
        made: Mapping[str, torch.Tensor] = {}
        if program.binding is not None:
            copies = None if self.pair is None else self.pair.copies
            versions = self._versions(program, arguments)
            made = program.binding.run(arguments, versions, copies, hold=not saved_elsewhere())
        results = []
        for operand, plain in zip(program.operands, program.plain):
            if not isinstance(operand, Operand):
                results.append(operand)
            elif operand.name in program.held and operand.name in made:
                base = made[operand.name]
                results.append(base if base.shape == operand.shape else base.reshape(operand.shape))
            else:
                base = self._base(program, operand, made, arguments)
                seen = plain and base.shape == operand.shape
                results.append(base if seen else _seen(base.reshape(operand.stored), operand))
        return results[0] if program.single else tuple(results)

    @staticmethod
    def _base(
        program: _RegionProgram, operand: Operand, made: Mapping[str, torch.Tensor], arguments: Sequence[Any]
    ) -> torch.Tensor:
        """Return the tensor that has the elements of a result."""
        if operand.name in made:
            return made[operand.name]
        if operand.name in program.constants:
            return tensor_of(program.constants[operand.name]).clone()
        tensor: torch.Tensor = fetch(arguments[program.places[operand.name]])
        return in_memory(tensor)

    def _versions(self, program: _RegionProgram, arguments: Sequence[Any]) -> dict[str, int]:
        """Return a number for the contents of each argument that lasts, or that the other pass reads."""
        versions = {}
        pair = self.pair
        for name, place in program.told:
            tensor, again = arguments[place], self.again.get(place)
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


def _in_order(build: Builder, operand: Any, order: Order) -> Any:
    """Return a result whose elements are stored in an order of its axes."""
    if not order or not isinstance(operand, Operand):
        return operand
    return build.stored(operand.permuted(order)).permuted(inverse_order(order))


def _live(graph: Graph) -> Graph:
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
