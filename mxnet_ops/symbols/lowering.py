"""Nets of MXNet as graphs of the core: a symbol's operators are what the swap makes of them, and build the same."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Callable

import numpy as np

import clgraft.mxnet_ops.operators  # noqa: F401  makes the families known
from clgraft.core.errors import ClgraftError
from clgraft.core.model import (
    LoweredNet,
    LoweredTraining,
    ModelError,
    Port,
    UnsupportedOperators,
    carried,
    expect_precision,
)
from clgraft.core.nn import dropout, elementwise
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.dropout import KEY_WORDS
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Operator, find_operator
from clgraft.mxnet_ops.operators.inner import INNER
from clgraft.mxnet_ops.regions.region import OUTSIDE, RegionOperator
from clgraft.mxnet_ops.swap.attributes import Kept
from clgraft.mxnet_ops.swap.table import ModelOperator, is_translatable, plain_name, translate, translate_inner
from clgraft.mxnet_ops.symbols.params import BFLOAT16, DTYPES, write_params
from clgraft.mxnet_ops.symbols.symbol import Entry, SymbolGraph, SymbolNode

# operators that end a net with a loss: inference does not read their second input
LOSSES = ("ocl_softmax_output", "ocl_regression_output")
FACTORS = ("__lr_mult__", "__wd_mult__")  # attributes of variables
# operators that are their first input, but for their gradients and for what they tell shapes
SAME_IN_INFERENCE = ("make_loss", "MakeLoss", "_identity_with_attr_like_rhs")
# operators that take their type from another input than the first
TYPED_BY = {"where": 1, "Embedding": 1}
WHOLE = ("int32", "int64", "uint8")  # types whose numbers travel as real ones
FILLED_ALIKE = ("zeros_like", "ones_like")
QUOTIENTS = ("broadcast_div", "elemwise_div")
REAL = ("float16", "float32", "float64")  # from narrow to wide
MOST_CONSTANTS = 1000  # of a symbol
MOST_CONSTANT_BYTES = 2**30  # of all constants that a symbol makes
CODES_AS_TEXT = {str(code) for code in DTYPES}  # of types, as attributes have them
FAULTS = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, ZeroDivisionError, RecursionError)


@dataclass(frozen=True)
class Given:
    """A variable of a net.

    Attributes
    ----------
    name : str
    inside : str
        Its name in graphs.
    is_input : bool
        Whether runs give it; others are parameters.
    dtype : str
        In graphs.
    is_state : bool
        Whether an operator changes it when it trains.
    """

    name: str
    inside: str
    is_input: bool
    dtype: str
    is_state: bool = False


class SymbolNet:
    """A symbol with its parameters.

    Parameters
    ----------
    symbol : SymbolGraph
    parameters : mapping of str to numpy.ndarray
        By their names in the symbol; others are left out.
    precision : str, optional
        The type in which real numbers travel: ``float32``, ``float16`` or ``float64``. By default parameters have that
        of the file, and inputs what the symbol says of them, or single precision.
    training : bool
        Whether it is lowered for a trainer: labels are inputs, and operators compute as they do when they train.

    Attributes
    ----------
    inputs, outputs : tuple of Port
    parameters : mapping of str to numpy.ndarray
        Those that the symbol reads.

    Raises
    ------
    UnsupportedOperators
        If it has operators that clgraft does not run, with the list of them.
    ModelError
        If parameters are missing.
    """

    kind: str = "mxnet"
    convention: str = "mxnet"

    def __init__(
        self,
        symbol: SymbolGraph,
        parameters: Mapping[str, np.ndarray],
        precision: str | None = None,
        training: bool = False,
    ) -> None:
        expect_precision(self.kind, precision)
        self._symbol, self._precision, self._training = symbol, precision, training
        self.parameters = {name: _read_only(array) for name, array in parameters.items()}
        self._does = self._resolved()
        self._labels = set() if training else self._unread_labels()
        self._given = self._variables()
        self._by_name = {each.name: each for each in self._given.values()}
        self.parameters = {name: self.parameters[name] for name, each in self._by_name.items() if not each.is_input}
        self.inputs = tuple(self._port(number) for number, each in self._given.items() if each.is_input)
        self.outputs = tuple(Port(self._head(head), precision or "float32", None) for head in symbol.heads)

    def array(self, parameter: str) -> np.ndarray:
        """Return a parameter in the type in which graphs read it."""
        array = _real(self.parameters[parameter])
        return carried(self.kind, f"parameter {parameter!r}", array, self._by_name[parameter].dtype)

    def lower(self, shapes: Mapping[str, tuple[int, ...]]) -> LoweredNet:
        """Return the net as a graph for the shapes of all inputs.

        Raises
        ------
        ModelError
            Naming the operator that does not fit its inputs.
        """
        lowering = _Lowering(self._symbol, self._does, self._given, self._labels, self._training)
        return lowering.run(shapes, self.parameters, self._names)

    def for_training(self) -> SymbolNet:
        """Return the net for a trainer."""
        return SymbolNet(self._symbol, self.parameters, self._precision, training=True)

    @property
    def learned(self) -> dict[str, tuple[float, float]]:
        """The parameters that an optimizer changes, with the symbol's factors of learning rate and weight decay."""
        found = {}
        for number, given in self._given.items():
            if given.is_input or given.is_state or self.parameters[given.name].dtype.kind not in "fV":
                continue
            known = self._symbol.nodes[number].attributes if number >= 0 else {}
            factors = (Attributes("variable", {"factor": known.get(key, "1")}) for key in FACTORS)
            found[given.name] = tuple(each.number("factor", 1.0) for each in factors)
        return found  # type: ignore[return-value]

    def write(self, path: str | os.PathLike[str], parameters: Mapping[str, np.ndarray]) -> None:
        """Write parameters as `Module.save_checkpoint` and `HybridBlock.export` do."""
        states = {given.name for given in self._given.values() if given.is_state}
        write_params(path, {f"{'aux' if name in states else 'arg'}:{name}": a for name, a in parameters.items()})

    # what the symbol says

    def _resolved(self) -> dict[int, Operator]:
        """Return what computes each operator of the symbol."""
        found: dict[int, Operator] = {}
        refused = []
        for number, node in enumerate(self._symbol.nodes):
            if node.is_variable:
                continue
            try:
                found[number] = self._resolve(node)
            except Kept as reason:
                refused.append(f"{node} ({reason})")
            except ClgraftError as error:
                refused.append(f"{node} ({error})")
            except (*FAULTS, MemoryError) as error:
                refused.append(f"{node} ({type(error).__name__}: {str(error)[:200]})")
        if refused:
            raise UnsupportedOperators(self.kind, refused)
        return found

    def _resolve(self, node: SymbolNode) -> Operator:
        name = plain_name(node.operator)
        attributes = {key: text for key, text in node.attributes.items() if not key.startswith("__")}
        if name in SAME_IN_INFERENCE:
            return find_operator(*translate_inner(ModelOperator(node.name, "_copy", {})))
        if name == "Custom":
            op_type = attributes.pop("op_type", "")
            if not op_type.startswith("ocl_"):
                raise Kept(f"an operator of the user's own, {op_type!r}")
            return _expect_build(find_operator(op_type, attributes))
        own = ModelOperator(node.name, name, attributes)
        try:
            return _expect_build(find_operator(*translate(own, self._weight(node))))
        except Kept:
            if name not in INNER and is_translatable(name):
                raise
        return _expect_build(find_operator(*translate_inner(own)))

    def _weight(self, node: SymbolNode) -> tuple[int, ...] | None:
        """Return the shape of an operator's second input, if that is a parameter."""
        if len(node.inputs) < 2:
            return None
        array = self.parameters.get(self._symbol.nodes[node.inputs[1][0]].name)
        return None if array is None else array.shape

    def _unread_labels(self) -> set[int]:
        """Return the variables that only losses at the ends of nets read, as their labels."""
        read: dict[int, list[bool]] = {}
        for number, node in enumerate(self._symbol.nodes):
            does = self._does.get(number)
            labels = () if does is None else _label_places(does)
            for place, (source, _) in enumerate(node.inputs):
                read.setdefault(source, []).append(place in labels)
        heads = {number for number, _ in self._symbol.heads}
        nodes = self._symbol.nodes
        return {
            number
            for number, answers in read.items()
            if all(answers)
            and nodes[number].is_variable
            and nodes[number].name not in self.parameters
            and number not in heads
        }

    def _variables(self) -> dict[int, Given]:
        """Return the variables by their numbers, after it is checked that no parameter is missing.

        Symbols before MXNet 0.9 leave out the states at the end of inputs: these have numbers below 0.
        """
        missing: dict[str, str] = {}
        found: dict[int, Given] = {}
        states = self._states()
        for number, node in enumerate(self._symbol.nodes):
            if node.is_variable and number not in self._labels:
                is_input = node.name not in self.parameters
                inside = f"{'input' if is_input else 'parameter'}{number}"
                dtype = self._dtype(node.name, node.attributes)
                found[number] = Given(node.name, inside, is_input, dtype, number in states)
        for number, does in self._does.items():
            node = self._symbol.nodes[number]
            names, learned = (*does.arguments, *does.auxiliary), {*does.parameters, *does.auxiliary}
            for name, (source, _) in zip(names, node.inputs):
                if name in learned and source in found and found[source].is_input:
                    missing.setdefault(found[source].name, str(node))
            for name in names[len(node.inputs) :]:
                own = f"{node.name}_{name}"
                if name in does.auxiliary and own in self.parameters:
                    found[-1 - len(found)] = Given(own, f"state{len(found)}", False, self._dtype(own, {}), True)
                else:
                    missing.setdefault(own, str(node))
        if missing:
            shown = ", ".join(f"{name!r} of {node}" for name, node in list(missing.items())[:5])
            raise ModelError(
                f"[{self.kind}] got no array for {len(missing)} parameters, expected all of them, such as {shown}"
            )
        return found

    def _states(self) -> set[int]:
        """Return the variables that are states of operators."""
        found = set()
        for number, does in self._does.items():
            if isinstance(does, Operator):
                inputs = self._symbol.nodes[number].inputs
                found |= {source for source, _ in inputs[len(does.arguments) :]}
        return found

    def _dtype(self, name: str, attributes: Mapping[str, str]) -> str:
        """Return the type in which a variable travels."""
        if self._precision is not None:
            return self._precision
        if name in self.parameters:
            found = self.parameters[name].dtype.name
        else:
            code = attributes.get("__dtype__", "0")
            found = DTYPES[int(code)].name if code in CODES_AS_TEXT else "float32"
        return found if found in REAL else "float32"

    def _port(self, number: int) -> Port:
        given, node = self._given[number], self._symbol.nodes[number]
        text = node.attributes.get("__shape__", "")
        if not text:
            return Port(given.name, given.dtype, None)
        try:
            sizes = Attributes("variable", {"shape": text}).sizes("shape", (), low=-1)
        except (ClgraftError, *FAULTS, MemoryError):
            raise ModelError(f"[{self.kind}] got shape {text[:80]!r} of {given.name!r}, expected numbers") from None
        words = ("batch", *(f"size{axis}" for axis in range(1, len(sizes))))
        known = tuple(size if size > 0 else word for size, word in zip(sizes, words))
        return Port(given.name, given.dtype, known or None)

    def _head(self, head: Entry) -> str:
        """Return the name of an output of the net."""
        names = self._names(head[0])
        if head[1] >= len(names):
            node = self._symbol.nodes[head[0]]
            raise ModelError(f"[{self.kind}] got output {head[1]} of {node} as a head, expected one of {list(names)}")
        return names[head[1]]

    def _names(self, number: int) -> Sequence[str]:
        """Return MXNet's names of a node's outputs."""
        node = self._symbol.nodes[number]
        if node.is_variable:
            return [node.name]
        does = self._does[number]
        return [f"{node.name}_{output}" for output in does.outputs]


class _Lowering:
    """A net for some shapes, while its graph is made."""

    def __init__(
        self,
        symbol: SymbolGraph,
        does: Mapping[int, Operator],
        given: Mapping[int, Given],
        labels: Collection[int],
        training: bool,
    ) -> None:
        self._symbol, self._does, self._given, self._labels = symbol, does, given, labels
        self._build = Build(training=training)
        self._keys: list[Tensor] = []
        self._values: dict[Entry, Tensor] = {}
        self._states: dict[str, Tensor] = {}  # those that no node reads by number
        self._whole: set[Entry] = set()  # values that are whole numbers in MXNet
        self._made = self._nbytes = 0

    def run(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        parameters: Mapping[str, np.ndarray],
        names: Callable[[int], Sequence[str]],
    ) -> LoweredTraining:
        """Return the graph.

        Parameters
        ----------
        shapes : mapping of str to tuple of int
            Of the inputs.
        parameters : mapping of str to numpy.ndarray
        names : callable
            Returns MXNet's names of the outputs of a node.
        """
        inputs: dict[str, Tensor] = {}
        named: dict[str, Tensor] = {}
        for number, given in self._given.items():
            shape = shapes[given.name] if given.is_input else parameters[given.name].shape
            add = self._build.state if given.is_state and self._build.training else self._build.input
            tensor = named[given.name] = add(given.inside, shape, given.dtype)
            if given.is_input:
                inputs[given.name] = tensor
            self._values[number, 0] = self._states[given.name] = tensor
        for number, node in enumerate(self._symbol.nodes):
            if not node.is_variable:
                own = names(number)
                for place, tensor in enumerate(self._lowered(number, node)):
                    self._values[number, place] = tensor
                    named.setdefault(own[place], tensor)
                    if self._is_whole(number, place):
                        self._whole.add((number, place))
        for number, node in enumerate(self._symbol.nodes):
            if (number, 0) in self._values:
                named.setdefault(node.name, self._values[number, 0])
        for number, output in self._symbol.heads:
            named[names(number)[output]] = self._value((number, output), "the heads")
        inside = {given.inside: given.name for given in self._given.values() if not given.is_input}
        heads, shown = self._losses() if self._build.training else ((), {})
        weights = dict.fromkeys(shown, 1.0)
        found = (self._build, inputs, inside, named)
        return LoweredTraining(*found, heads=heads, shown=shown, losses=weights, keys=tuple(self._keys))

    def _losses(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Return the net's heads that are losses with gradients of their own, and the values of these losses."""
        heads: list[Tensor] = []
        shown: dict[str, Tensor] = {}
        for number, output in self._symbol.heads:
            does = self._does.get(number)
            if not isinstance(does, Operator) or not _label_places(does):
                continue
            head = self._values[number, output]
            heads.append(head)
            if isinstance(does, RegionOperator):
                continue
            label = self._values[self._symbol.nodes[number].inputs[1]]
            name = f"loss:{self._symbol.nodes[number].name}" if shown else "loss"
            shown[name] = does.shown_loss(self._build, head, label)  # type: ignore[attr-defined]
        return tuple(heads), shown

    def _value(self, entry: Entry, reader: str) -> Tensor:
        if entry not in self._values:
            node = self._symbol.nodes[entry[0]]
            raise ModelError(f"[mxnet] got output {entry[1]} of {node} read by {reader}, expected one that it has")
        return self._values[entry]

    def _lowered(self, number: int, node: SymbolNode) -> Sequence[Tensor]:
        """Return the outputs of an operator."""
        does = self._does[number]
        values = [None if entry[0] in self._labels else self._value(entry, str(node)) for entry in node.inputs]
        try:
            if node.operator in SAME_IN_INFERENCE:
                values = values[:1]
            if plain_name(node.operator) in QUOTIENTS and self._whole.issuperset(node.inputs):
                a, b = (value for value in values if value is not None)
                return [elementwise.constant_binary(self._build, "whole_quotient", a, b)]
            names = (*does.arguments, *does.auxiliary)[len(values) :]
            found = self._built(does, [*values, *(self._states[f"{node.name}_{name}"] for name in names)])
            self._expect_room()
            return found
        except ModelError:
            raise
        except MemoryError:
            raise ModelError(f"[mxnet] got {node}, which needs more memory than there is, expected less") from None
        except ClgraftError as error:
            raise ModelError(f"[mxnet] got {node}, which does not fit its inputs: {error}") from None
        except FAULTS as error:
            shown = [None if value is None else value.shape for value in values]
            raise ModelError(
                f"[mxnet] got {node} with inputs of shapes {shown}, expected ones that fit it"
                f" ({type(error).__name__}: {error})"
            ) from None

    def _is_whole(self, number: int, place: int) -> bool:
        """Return whether an output of an operator is whole numbers."""
        node, does = self._symbol.nodes[number], self._does[number]
        name, given = plain_name(node.operator), dict(getattr(does, "given", ()))
        if name == "shape_array":
            return True
        inherited = bool(node.inputs) and node.inputs[min(TYPED_BY.get(name, 0), len(node.inputs) - 1)] in self._whole
        if name == "topk" and does.outputs[place] == "output0":  # the elements
            return inherited
        typed = given.get("dtype") and name not in FILLED_ALIKE
        return given["dtype"] in WHOLE if typed else inherited

    def _built(self, operator: Operator, values: Sequence[Tensor | None]) -> list[Tensor]:
        """Return what an operator of clgraft builds from its arguments and states."""
        if isinstance(operator, RegionOperator):
            return self._region(operator, values)
        names = (*operator.arguments, *operator.auxiliary)
        if len(values) != len(names):
            raise operator.error("inputs", f"{len(values)} of them", f"{len(names)}: {names}")
        count = len(operator.arguments)
        inferred = operator.infer([None if value is None else value.shape for value in values[:count]])
        if inferred is None:
            raise operator.error("inputs", "too few shapes", "those of all inputs")
        for name, value, shape in zip(operator.auxiliary, values[count:], inferred[2]):
            if value is not None and value.shape != tuple(shape):
                raise operator.error(name, f"of shape {value.shape}", f"shape {tuple(shape)}")
        known = [value for value in values if value is not None]
        if not known:
            constant = operator.as_constant(tuple(inferred[1][0]), operator.stated_dtype)
            return [constant.build(self._build)]
        if operator.is_copy:
            return [self._build.reshape(known[0], tuple(inferred[1][0]))]
        widest = max((value.dtype for value in known), key=REAL.index)
        first = known[0].dtype
        arguments = [
            self._build.filled(inferred[0][place], 0.0, widest) if value is None else self._build.cast(value, widest)
            for place, value in enumerate(values)
        ]
        keys = [self._key() for _ in operator.draws]
        made = operator.build(self._build, *arguments, *keys)
        outputs = made if isinstance(made, tuple) else (made,)
        if not operator.casts:
            outputs = tuple(self._build.cast(output, first) for output in outputs)
        return [self._build.reshape(output, tuple(shape)) for output, shape in zip(outputs, inferred[1])]

    def _key(self) -> Tensor:
        """Return the key of an operator's random numbers, which differ from step to step in training."""
        if not self._build.training:
            return self._build.filled((KEY_WORDS,), 0, "int32")
        self._keys.append(dropout.key(self._build, len(self._keys)))
        return self._keys[-1]

    def _region(self, region: RegionOperator, values: Sequence[Tensor | None]) -> list[Tensor]:
        """Return the outputs of a region, whose operators are built one by one."""
        count = len(region.arguments)
        if len(values) != count + len(region.auxiliary):
            raise region.error("inputs", f"{len(values)} of them", f"{count + len(region.auxiliary)}")
        found: dict[Entry, Tensor | None] = {(OUTSIDE, place): value for place, value in enumerate(values[:count])}
        for number, part in enumerate(region.parts):
            given = [found[entry] for entry in part.inputs] + [values[count + place] for place in part.auxiliary]
            for place, output in enumerate(self._built(part.operator, given)):
                found[number, place] = output
        heads = [found[entry] for entry in region.heads]
        return [head for head in heads if head is not None]

    def _expect_room(self) -> None:
        """Refuse constants that take too much memory."""
        constants = self._build.constants
        if len(constants) > MOST_CONSTANTS:
            raise ModelError(f"[mxnet] got {len(constants)} constants, expected at most {MOST_CONSTANTS} in a symbol")
        if len(constants) > self._made:
            self._made = len(constants)
            self._nbytes = sum(array.nbytes for array in constants.values())
        if self._nbytes > MOST_CONSTANT_BYTES:
            raise ModelError(
                f"[mxnet] got constants of {self._nbytes} bytes in a symbol, expected at most {MOST_CONSTANT_BYTES}"
            )


def _expect_build(operator: Operator) -> Operator:
    """Return an operator that a graph can be made of.

    Raises
    ------
    Kept
        If it says itself what runs, or draws random numbers in inference.
    """
    parts = [part.operator for part in operator.parts] if isinstance(operator, RegionOperator) else [operator]
    for part in parts:
        if type(part).build is Operator.build and not isinstance(part, RegionOperator):
            raise Kept(f"{part.op_type} runs in MXNet alone")
        if any(draw.always for draw in part.draws):
            raise Kept("it draws random numbers in inference")
    return operator


def _label_places(operator: Operator) -> Collection[int]:
    """Return the inputs of an operator that only losses read, as their labels."""
    if not isinstance(operator, RegionOperator):
        return (1,) if operator.op_type in LOSSES else ()
    read: dict[int, list[bool]] = {}
    for part in operator.parts:
        labels = _label_places(part.operator)
        for place, (source, argument) in enumerate(part.inputs):
            if source == OUTSIDE:
                read.setdefault(argument, []).append(place in labels)
    return [argument for argument, answers in read.items() if all(answers)]


def _real(array: np.ndarray) -> np.ndarray:
    """Return an array's numbers: bfloat16 as single precision, which holds them exactly."""
    if array.dtype != BFLOAT16:
        return array
    return (array["bfloat16"].astype(np.uint32) << 16).view(np.float32).reshape(array.shape)


def _read_only(array: np.ndarray) -> np.ndarray:
    found = array.view()
    found.flags.writeable = False
    return found
