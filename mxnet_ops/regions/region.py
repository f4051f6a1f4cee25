"""``ocl_region``: a part of a symbol as one operator."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from clgraft.core import ProblemError, settings
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.planning.precision import FLOAT32
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Draw, Operator, Shape, Shapes, operator_of
from clgraft.mxnet_ops.engine.registry import register

REGION_PRECISIONS = (FLOAT32, *settings.MIXED)
OUTSIDE = -1  # the part that stands for the region's own arguments
Entry = tuple[int, int]  # a part and its output; OUTSIDE and the place of an argument


@dataclass(frozen=True)
class Part:
    """An operator of a region.

    Attributes
    ----------
    operator : Operator
    inputs : tuple of Entry
    auxiliary : tuple of int
        Places of its auxiliary states among the region's.
    """

    operator: Operator
    inputs: tuple[Entry, ...]
    auxiliary: tuple[int, ...]

    def of_size(self, size: int) -> Part:
        """Return the part with its open sizes known."""
        return replace(self, operator=self.operator.of_size(size))


@register
@dataclass(frozen=True, eq=False)
class RegionOperator(Operator):
    """``ocl_region``: what the operators of a symbol compute, with the values between them on the device.

    Parameters
    ----------
    graph : str
        A symbol's JSON: its variables are the region's inputs, its operators are clgraft's.
    frozen : str
        A JSON list of variables of `graph`: parameters that inference takes as constants (see `mxnet_ops.frozen`).
    precision : str
        ``float16`` or ``bfloat16``: the type of products, where arrays are float32; ``float32`` for none, whatever
        ``CLGRAFT_PRECISION`` says, which decides where this is empty.
    constants : str
        In the copies of a frozen region that infer: `Constants.text`. These variables are no inputs.
    residents : str
        In the copies of a region whose parameters stay on the device: `Residents.text`. These variables are no inputs;
        its last inputs are tokens of one element instead, which nothing reads (see `engine.residents.Home`).

    Notes
    -----
    `swap_symbol` makes regions with ``regions=True``, and short ones with ``fuse=True``. Outputs, gradients and updates
    of auxiliary states are those of the operators one by one; only their order of sums may differ where a pass joins
    operators.
    """

    op_type: ClassVar[str] = "ocl_region"
    is_region: ClassVar[bool] = True

    parts: tuple[Part, ...]
    heads: tuple[Entry, ...]
    names: tuple[str, ...]  # constants last, as among the auxiliary states
    auxiliary_names: tuple[str, ...]
    frozen: tuple[str, ...] = ()
    number: int | None = None  # of the constants
    constants: Mapping[str, Shape] = field(default_factory=dict)
    precision: str = ""
    resident: int | None = None  # the number of the residents
    residents: Mapping[str, Shape] = field(default_factory=dict)
    tokens: int = 0

    @cached_property
    def held(self) -> Mapping[str, Shape]:
        """Shapes of the variables that are no inputs."""
        return {**self.constants, **self.residents}

    @property
    def taken(self) -> tuple[str, ...]:
        """Names of the variables that are inputs."""
        return tuple(name for name in self.names if name not in self.held)

    @property
    def arguments(self) -> tuple[str, ...]:
        return (*self.taken, *(f"token{number}" for number in range(self.tokens)))

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("output", *(f"output{i}" for i in range(1, len(self.heads))))

    @property
    def auxiliary(self) -> tuple[str, ...]:
        return tuple(name for name in self.auxiliary_names if name not in self.held)

    @property
    def inferred(self) -> tuple[str, ...]:
        return self._fed(lambda operator: operator.inferred, any)

    @property
    def parameters(self) -> tuple[str, ...]:
        return self._fed(lambda operator: operator.parameters, any)

    @property
    def vectors(self) -> frozenset[str]:  # type: ignore[override]
        fed = self._fed(lambda operator: tuple(operator.vectors), all)
        return frozenset((*fed, *self.arguments[len(self.taken) :]))

    @property
    def backward_reads_outputs(self) -> bool:  # type: ignore[override]
        heads = set(self.heads)
        inside = any(heads & set(part.inputs) for part in self.parts)
        return inside or any(self.parts[number].operator.backward_reads_outputs for number, _ in self.heads)

    @property
    def backward_reads_gradients(self) -> bool:  # type: ignore[override]
        return any(self.parts[number].operator.backward_reads_gradients for number, _ in self.heads)

    @property
    def unread_gradients(self) -> int:
        found = 0
        for place, (number, _) in enumerate(self.heads):
            found |= (not self.parts[number].operator.backward_reads_gradients) << place
        return found

    @cached_property
    def singles(self) -> tuple[frozenset[Entry], frozenset[int]]:
        """Arguments and values, and auxiliary states, that may be float32 where data are float16."""
        readers: dict[Entry, list[bool]] = {}
        states: set[int] = set()
        for number, part in enumerate(self.parts):
            flags = list(part.operator.single)
            for entry in part.inputs:
                flag = flags.pop(0)
                if entry[0] == OUTSIDE:
                    readers.setdefault(entry, []).append(flag)
            readers.update({(number, output): [flags.pop(0)] for output in range(len(part.operator.outputs))})
            states |= {place for place, flag in zip(part.auxiliary, flags) if flag}
        return frozenset(entry for entry, found in readers.items() if all(found)), frozenset(states)

    @property
    def single(self) -> tuple[bool, ...]:
        entries, states = self.singles
        outside = [entry in entries for entry in ((OUTSIDE, place) for place in range(len(self.taken)))]
        found = [*outside, *(False,) * self.tokens, *(entry in entries for entry in self.heads)]
        return (*found, *(place in states for place in range(len(self.auxiliary))))

    @property
    def draws(self) -> tuple[Draw, ...]:
        return tuple(draw for part in self.parts for draw in part.operator.draws)

    def _fed(self, names: Any, join: Any) -> tuple[str, ...]:
        """Return the arguments for which any, or all, of the operators that read them name the input."""
        answers: dict[int, list[bool]] = {place: [] for place in range(len(self.names))}
        for part in self.parts:
            own = names(part.operator)
            for name, (number, place) in zip(part.operator.arguments, part.inputs):
                if number == OUTSIDE:
                    answers[place].append(name in own)
        return tuple(name for place, name in enumerate(self.names) if join(answers[place]))

    @classmethod
    def read(cls, attributes: Attributes) -> RegionOperator:
        graph = json.loads(attributes.text("graph"))
        nodes = graph["nodes"]
        auxiliary: list[int] = []
        operators: dict[int, Operator] = {}
        for number, node in enumerate(nodes):
            if node["op"] == "null":
                continue
            operator = operators[number] = operator_of(node)
            auxiliary += [entry[0] for entry in node["inputs"][len(operator.arguments) :]]
        known = [node["name"] for node in nodes if node["op"] == "null"]
        frozen = tuple(attributes.names("frozen", known))
        held, staying = (json.loads(attributes.text(name, "{}")) for name in ("constants", "residents"))
        precision = attributes.choice("precision", REGION_PRECISIONS, "")
        constants, residents = (
            {name: tuple(shape) for name, shape in found.get("shapes", {}).items()} for found in (held, staying)
        )

        def order(number: int) -> tuple[bool, int]:
            return nodes[number]["name"] in constants or nodes[number]["name"] in residents, number

        auxiliary = sorted(set(auxiliary), key=order)
        variables = [i for i, node in enumerate(nodes) if node["op"] == "null" and i not in set(auxiliary)]
        variables.sort(key=order)
        place_of = {number: place for place, number in enumerate(variables)}
        part_of = {number: place for place, number in enumerate(operators)}
        parts = []
        for number, operator in operators.items():
            entries = nodes[number]["inputs"]
            count = len(operator.arguments)
            parts.append(
                Part(
                    operator,
                    tuple((part_of[n], o) if n in part_of else (OUTSIDE, place_of[n]) for n, o, *_ in entries[:count]),
                    tuple(auxiliary.index(entry[0]) for entry in entries[count:]),
                )
            )
        return cls(
            tuple(parts),
            tuple((part_of[entry[0]], entry[1]) for entry in graph["heads"]),
            tuple(nodes[number]["name"] for number in variables),
            tuple(nodes[number]["name"] for number in auxiliary),
            frozen,
            held.get("number"),
            constants,
            precision,
            staying.get("number"),
            residents,
            staying.get("tokens", 0),
        )

    def infer_all(self, shapes: Sequence[Shape | None]) -> tuple[dict[Entry, Shape], dict[int, Shape]]:
        """Return the shapes that follow from the known arguments': of all values, and of the auxiliary states."""
        count = len(self.taken)
        given = [*shapes[:count], *(self.held[name] for name in self.names[count:])]
        known: dict[Entry, Shape] = {(OUTSIDE, place): shape for place, shape in enumerate(given) if shape is not None}
        found = _follow(known, self.parts)
        open_ = [number for number, part in enumerate(self.parts) if part.operator.open_sizes]
        sizes = self._asked_for(found[0]) if open_ else []
        parts = list(self.parts)
        for together in (open_, *([number] for number in open_)):  # mostly all are the batch
            for size in sizes:
                tried = [part.of_size(size) if number in together else part for number, part in enumerate(parts)]
                try:
                    sized = _follow(known, tried, expected=found[0])
                except ProblemError:  # it is another size
                    continue
                parts, found = tried, sized
                break
            if found[0].keys() >= {(number, 0) for number in open_}:
                break
        return found

    def _asked_for(self, known: Mapping[Entry, Shape]) -> list[int]:
        """Return sizes of values that are known by what reads them alone."""
        shapes = [
            known[number, output]
            for number, part in enumerate(self.parts)
            if any(entry not in known for entry in part.inputs) or part.operator.open_sizes
            for output in range(len(part.operator.outputs))
            if (number, output) in known
        ]
        return list(dict.fromkeys(size for shape in shapes for size in shape))

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        known, states = self.infer_all(shapes)
        entries = [(OUTSIDE, place) for place in range(len(self.names))]
        if any(entry not in known for entry in (*entries, *self.heads)):
            return None
        auxiliary = [states[place] for place in range(len(self.auxiliary))]
        inputs = [*(known[entry] for entry in entries[: len(self.taken)]), *[(1,)] * self.tokens]
        return inputs, [known[entry] for entry in self.heads], auxiliary

    def build(self, build: Build, *values: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the heads, and then those of the losses inside, whose gradients wait for none."""
        count, states = len(self.names), len(self.auxiliary_names)
        inputs, auxiliary, keys = values[:count], values[count : count + states], iter(values[count + states :])
        shapes, _ = self.infer_all([tensor.shape for tensor in inputs[: len(self.taken)]])
        found: dict[Entry, Tensor] = {(OUTSIDE, place): tensor for place, tensor in enumerate(inputs)}
        dtype = next((tensor.dtype for entry, tensor in found.items() if entry not in self.singles[0]), "float32")
        for number, part in enumerate(self.parts):
            if part.operator.is_copy and (number, 0) not in self.heads:
                found[number, 0] = build.reshape(found[part.inputs[0]], shapes[number, 0])
                continue
            operator = part.operator if part.inputs else part.operator.as_constant(shapes[number, 0], dtype)
            drawn = itertools.islice(keys, len(operator.draws))
            own = (found[entry] for entry in part.inputs)
            made = operator.build(build, *own, *(auxiliary[place] for place in part.auxiliary), *drawn)
            for place, tensor in enumerate(made if isinstance(made, tuple) else (made,)):
                found[number, place] = build.reshape(tensor, shapes[number, place])
        losses = {n for n, part in enumerate(self.parts) if not part.operator.backward_reads_gradients}
        inside = (entry for entry in found if entry[0] in losses and entry not in self.heads)
        return tuple(found[entry] for entry in (*self.heads, *inside))


def _follow(
    given: Mapping[Entry, Shape], parts: Sequence[Part], expected: Mapping[Entry, Shape] | None = None
) -> tuple[dict[Entry, Shape], dict[int, Shape]]:
    """Return the shapes that follow from some: of values, and of auxiliary states.

    Raises
    ------
    ProblemError
        If a part refuses them, or one is not the expected one.
    """
    known: dict[Entry, Shape] = dict(given)
    states: dict[int, Shape] = {}
    count = -1
    while count != len(known):
        count = len(known)
        for number, part in enumerate(parts):
            own = tuple(known.get(entry) for entry in part.inputs)
            done = (number, len(part.operator.outputs) - 1) in known and None not in own
            found = None if done and expected is None else part.operator.infer(own)
            if found is not None:
                inputs, outputs, auxiliary = found
                known.update(zip(part.inputs, inputs))
                known.update({(number, place): shape for place, shape in enumerate(outputs)})
                states.update(zip(part.auxiliary, auxiliary))
    for entry, shape in (expected or {}).items():
        if known.get(entry) != shape:
            raise ProblemError(f"[ocl_region] got a value of shape {known.get(entry)}, expected {shape}")
    return known, states
