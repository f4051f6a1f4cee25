"""``ocl_region``: a part of a symbol as one operator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Operator, OperatorCalls, Shape, Shapes, operator_of
from clgraft.mxnet_ops.engine.registry import register

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
    constants : str
        In the copies of a frozen region that infer: `Constants.text`. These variables are no inputs.

    Notes
    -----
    `swap_symbol` with ``regions=True`` makes regions. Outputs, gradients and updates of auxiliary states are those of
    the operators one by one; only their order of sums may differ where a pass joins operators.
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

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in self.constants)

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("output", *(f"output{i}" for i in range(1, len(self.heads))))

    @property
    def auxiliary(self) -> tuple[str, ...]:
        return tuple(name for name in self.auxiliary_names if name not in self.constants)

    @property
    def inferred(self) -> tuple[str, ...]:
        return self._fed(lambda operator: operator.inferred, any)

    @property
    def parameters(self) -> tuple[str, ...]:
        return self._fed(lambda operator: operator.parameters, any)

    @property
    def vectors(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(self._fed(lambda operator: tuple(operator.vectors), all))

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
        held = json.loads(attributes.text("constants", "{}"))
        constants = {name: tuple(shape) for name, shape in held.get("shapes", {}).items()}

        def order(number: int) -> tuple[bool, int]:
            return nodes[number]["name"] in constants, number

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
        )

    def infer_all(self, shapes: Sequence[Shape | None]) -> tuple[dict[Entry, Shape], dict[int, Shape]]:
        """Return the shapes that follow from the known arguments': of all values, and of the auxiliary states."""
        given = [*shapes, *(self.constants[name] for name in self.names[len(self.arguments) :])]
        known: dict[Entry, Shape] = {(OUTSIDE, place): shape for place, shape in enumerate(given) if shape is not None}
        states: dict[int, Shape] = {}
        count = -1
        while count != len(known):
            count = len(known)
            for number, part in enumerate(self.parts):
                own = tuple(known.get(entry) for entry in part.inputs)
                done = (number, len(part.operator.outputs) - 1) in known and None not in own
                found = None if done else part.operator.infer(own)
                if found is not None:
                    inputs, outputs, auxiliary = found
                    known.update(zip(part.inputs, inputs))
                    known.update({(number, place): shape for place, shape in enumerate(outputs)})
                    states.update(zip(part.auxiliary, auxiliary))
        return known, states

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        known, states = self.infer_all(shapes)
        entries = [(OUTSIDE, place) for place in range(len(self.names))]
        if any(entry not in known for entry in (*entries, *self.heads)):
            return None
        auxiliary = [states[place] for place in range(len(self.auxiliary))]
        inputs = [known[entry] for entry in entries[: len(self.arguments)]]
        return inputs, [known[entry] for entry in self.heads], auxiliary

    def part_calls(self, shapes: tuple[Shape, ...], dtype: str) -> list[OperatorCalls]:
        """Return what each part does for the shapes of the region's arguments."""
        known, _ = self.infer_all(shapes)
        return [part.operator.calls(tuple(known[entry] for entry in part.inputs), dtype) for part in self.parts]

    def calls(self, shapes: tuple[Shape, ...], dtype: str) -> OperatorCalls:
        """Return whether the parts draw random numbers; they run in passes, not one by one."""
        draws = [calls.draw for calls in self.part_calls(shapes, dtype) if calls.draw is not None]
        return OperatorCalls({True: (), False: ()}, {True: (), False: ()}, draw=draws[0] if draws else None)
