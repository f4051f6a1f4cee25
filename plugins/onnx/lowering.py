"""From a model and the shapes of its inputs to the core's graph.

The lowering walks through the nodes once. What is known on the host is folded there; what depends on the inputs'
elements becomes problems of the core, as the lowerings in `clgraft.plugins.onnx.operators` define them. Where a shape
depends on elements that are not known, `Asked` is raised: the session finds them out and lowers again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from clgraft.core.errors import ClgraftError
from clgraft.core.graph import GraphBuilder
from clgraft.core.nn import dropout
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.formulas import assigned, number
from clgraft.core.nn.shapes import transposed
from clgraft.core.operators.pointwise import Reduction
from clgraft.plugins.onnx import folding
from clgraft.plugins.onnx.errors import OnnxError
from clgraft.plugins.onnx.limits import Budget, Limits
from clgraft.plugins.onnx.nodes import OnnxNode, lowering_of
from clgraft.plugins.onnx.tensors import Reader, dense_bytes
from clgraft.plugins.onnx.values import REAL, OnnxValue, carrier_of, fault_of, known, widest

OPERAND = re.compile(r"\bx(\d+)\b")
ASSIGNMENT = re.compile(r"(?<![<>=!])=(?!=)")
MOST_BYTES = 2**34  # of one value
PARAMETER = "parameter "  # before an initializer's name, in the keys of those that change


class Asked(Exception):
    """Raised where elements have to be known that are not.

    Attributes
    ----------
    value : OnnxValue
        An input, or a value of the graph.
    """

    def __init__(self, value: OnnxValue) -> None:
        super().__init__(value.key)
        self.value = value


@dataclass(frozen=True)
class IndexCheck:
    """Whether indices are within their axes.

    Attributes
    ----------
    node : str
        What reads them.
    sizes : tuple of int
        Of the axes; the indices' last axis has one for each, unless there is only one size.
    low : bool
        Whether negative indices count from the end.
    """

    node: str
    sizes: tuple[int, ...]
    low: bool

    def __call__(self, index: np.ndarray) -> None:
        """Check indices.

        Raises
        ------
        OnnxError
            If one is out of range.
        """
        columns = index.reshape(-1, len(self.sizes))
        for size, least, most in zip(self.sizes, columns.min(0), columns.max(0)):
            bottom = -size if self.low else 0
            if not bottom <= least <= most < size:
                wrong = most if bottom <= least else least
                raise OnnxError(f"[onnx] got index {wrong} in {self.node}, expected {bottom} to {size - 1}")


class _Build(Build):
    """Adds what functions of `clgraft.core.nn` compute to a model's graph."""

    def __init__(self, on: ModelBuilder, training: bool) -> None:
        super().__init__(on.builder, training=training)
        self._on = on
        self.constants = on.constants

    def filled(self, shape: Sequence[int], value: float, dtype: str = "float32") -> Tensor:
        self._on.make_room(math.prod(shape) * np.dtype(dtype).itemsize)
        return Tensor(self._on.table(np.full(shape, value, dtype)), tuple(shape), dtype)

    def constant(self, array: np.ndarray) -> Tensor:
        self._on.make_room(array.nbytes)
        return Tensor(self._on.table(array), array.shape, array.dtype.name)


class ModelBuilder:
    """Collects the problems of a model.

    Parameters
    ----------
    opset : int
    has_fp64 : bool
        Whether the device has float64.
    answers : mapping of str to numpy.ndarray
        Elements that were asked for, by the values' keys.
    most : Limits
    training : bool
        Whether gradients follow: dropout may draw random numbers.
    training_mode : bool, optional
        Whether batch norms and dropout compute as in training; by default as each node states.

    Attributes
    ----------
    budget : Budget
        What the lowering may still need.
    checks : list of tuple of str and IndexCheck
        Inputs of the model that hold indices, and what has to hold for them in each run.
    builder : GraphBuilder
    build : Build
        For the functions of `clgraft.core.nn`.
    constants : dict of str to numpy.ndarray
        Inputs of the graph that never change.
    parameters : dict of str to str
        Inputs and states of the graph that are initializers which change, and their names in the model.
    states : set of str
        Those of them that the graph changes.
    keys : list of Tensor
        Of random numbers.
    """

    def __init__(
        self,
        opset: int,
        has_fp64: bool,
        answers: Mapping[str, np.ndarray],
        most: Limits,
        training: bool = False,
        training_mode: bool | None = None,
    ) -> None:
        self.opset, self.has_fp64, self.answers = opset, has_fp64, answers
        self.training, self.training_mode = training, training_mode
        self.budget = Budget(most)
        self.checks: list[tuple[str, IndexCheck]] = []
        self.builder = GraphBuilder()
        self.constants: dict[str, np.ndarray] = {}
        self.build: Build = _Build(self, training)
        self.inputs: dict[str, str] = {}  # the model's names -> the graph's
        self.parameters: dict[str, str] = {}
        self.states: set[str] = set()
        self.keys: list[Tensor] = []
        self._placed: dict[tuple[int, str], tuple[np.ndarray, str]] = {}  # an array's id and type -> it, its input
        self._scopes: list[dict[str, OnnxValue]] = [{}]
        self._path: list[str] = []  # names of the subgraphs that are open
        self._node, self._made = "", 0  # the node that is lowered, and how many values it has made

    # names of the model

    def define(self, name: str, value: OnnxValue) -> None:
        """Set the name by which later nodes read a value."""
        if name:
            self._scopes[-1][name] = value

    def find(self, name: str) -> OnnxValue:
        """Return the value of a name."""
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        raise OnnxError(
            f"[onnx] got a node that reads {name!r}, expected an input, an initializer or an earlier output"
        )

    def enter(self, name: str) -> None:
        """Open a scope for the names of a subgraph, which has a name of its own."""
        self._scopes.append({})
        self._path.append(name)

    def leave(self) -> None:
        """Close the last scope."""
        self._scopes.pop()
        self._path.pop()

    # values

    def input(self, name: str, shape: Sequence[int], dtype: str) -> OnnxValue:
        """Add an input of the model."""
        carrier, key = carrier_of(dtype, self.has_fp64), f"input {name}"
        if key in self.answers:
            return known(self.answers[key])
        value = OnnxValue(tuple(shape), dtype, None, f"i{len(self.inputs)}", carrier, key)
        if not value.size:
            return known(np.zeros(value.shape, dtype))
        self.inputs[name] = self.builder.input(value.name, value.shape, carrier)
        return value

    def parameter(self, name: str, array: np.ndarray, is_state: bool = False) -> OnnxValue:
        """Add an initializer that changes: as an input of the graph, or as a state that the graph itself changes."""
        carrier, key = carrier_of(array.dtype.name, self.has_fp64), f"{PARAMETER}{name}"
        if key in self.answers or not array.size:
            return known(self.answers.get(key, array))
        value = OnnxValue(array.shape, array.dtype.name, None, f"p{len(self.parameters)}", carrier, key)
        (self.builder.state if is_state else self.builder.input)(value.name, value.shape, carrier)
        self.parameters[value.name] = name
        if is_state:
            self.states.add(value.name)
        return value

    def key(self, node: OnnxNode) -> Tensor:
        """Return the key of a node's random numbers, which differ from step to step."""
        node.expect(self.training, "training")
        self.keys.append(dropout.key(self.build, len(self.keys)))
        return self.keys[-1]

    def trains(self, stated: bool) -> bool:
        """Return whether a node computes as in training, where the node itself states it or not."""
        return stated if self.training_mode is None else self.training_mode

    def check_input(self, value: OnnxValue, check: IndexCheck) -> None:
        """Have every run check the elements of a value, if it is an input of the model."""
        for name, inside in self.inputs.items():
            if inside == value.name and (name, check) not in self.checks:
                self.checks.append((name, check))

    def made(self, name: str, shape: Sequence[int], dtype: str, carrier: str = "") -> OnnxValue:
        """Return the value that a problem has computed."""
        self._made += 1
        shape = tuple(shape)
        # the same in every lowering of a model for some shapes, whatever is known already
        key = f"{self._node} {self._made} {shape}"
        value = OnnxValue(shape, dtype, None, name, carrier or carrier_of(dtype, self.has_fp64), key)
        if key in self.answers:
            value.array = self.answers[key].reshape(shape)
        return value

    def reshaped(self, value: OnnxValue, shape: Sequence[int]) -> OnnxValue:
        """Return a value in another shape with as many elements."""
        shape = tuple(int(size) for size in shape)
        if math.prod(shape) != value.size or any(size < 0 for size in shape):
            raise ValueError(f"shape {shape} for a value of shape {value.shape}")
        array = None if value.array is None else value.array.reshape(shape)
        return OnnxValue(shape, value.dtype, array, value.name, value.carrier, value.key)

    def host(self, value: OnnxValue) -> np.ndarray:
        """Return a value's elements.

        Raises
        ------
        Asked
            If they are not known.
        """
        if value.array is None:
            if value.key in self.answers:
                return self.answers[value.key].reshape(value.shape)
            raise Asked(value)
        return value.array

    def numbers(self, value: OnnxValue) -> list[int]:
        """Return the elements of a value of whole numbers as a list."""
        return [int(number) for number in self.host(value).reshape(-1)]

    def number(self, value: OnnxValue) -> Any:
        """Return the only element of a value."""
        array = self.host(value)
        if array.size != 1:
            raise ValueError(f"{array.size} elements, expected one")
        return array.reshape(-1)[0].item()

    def tensor(self, value: OnnxValue, dtype: str = "") -> str:
        """Return the graph's value for a value, in a type (by default the one that carries it)."""
        wanted = dtype or value.carrier or carrier_of(value.dtype, self.has_fp64)
        if not value.name:
            array = self.host(value)
            value.carrier = wanted
            value.name = self._constant(array, wanted)
        if value.carrier == wanted:
            return value.name
        return self.build.cast(Tensor(value.name, value.shape, value.carrier), wanted).name

    def _constant(self, array: np.ndarray, dtype: str) -> str:
        """Return the graph's input for known elements in a type; the same array is one input."""
        key = id(array), dtype
        if key not in self._placed:
            if array.dtype.name != dtype or not array.flags.c_contiguous:  # a copy
                self.make_room(array.size * np.dtype(dtype).itemsize)
            name = f"c{len(self.constants)}"
            self.constants[name] = np.ascontiguousarray(array, dtype)
            self._placed[key] = array, self.builder.input(name, array.shape, dtype)
        return self._placed[key][1]

    def make_room(self, nbytes: float) -> None:
        """Count bytes that a lowering needs on the host, before it makes them."""
        self.budget.spend("bytes", nbytes, self._node or "a constant")

    def index(self, value: OnnxValue) -> str:
        """Return the graph's value for indices, as int32."""
        if value.array is not None and not value.name:
            return self._constant(value.array, "int32")
        return self.tensor(value, "int32")

    def table(self, array: np.ndarray) -> str:
        """Return the graph's value for a table of the problem's own type."""
        return self._constant(array, array.dtype.name)

    def given(self, value: OnnxValue, dtype: str = "") -> Tensor:
        """Return a value for a function of `clgraft.core.nn`, in a type (by default the one that carries it)."""
        name = self.tensor(value, dtype)
        return Tensor(name, value.shape, dtype or value.carrier)

    def taken(self, tensor: Tensor, dtype: str) -> OnnxValue:
        """Return what a function of `clgraft.core.nn` has computed, as a value of one of ONNX's types."""
        return self.made(tensor.name, tensor.shape, dtype, tensor.dtype)

    # problems

    def pointwise(
        self,
        expression: str,
        values: Sequence[OnnxValue],
        dtype: str = "",
        compute: str = "",
        reductions: Sequence[Reduction | None] = (),
        shape: Sequence[int] | None = None,
    ) -> OnnxValue:
        """Add a pointwise problem with one output.

        Parameters
        ----------
        expression : str
            Of x0, x1, ...: the values in their order. Known values of one element become numbers in it.
        values : sequence of OnnxValue
        dtype : str
            ONNX's type of the result; by default that of the first value.
        compute : str
            The problem's type; by default the widest that carries one of the values.
        reductions : sequence of Reduction or None
        shape : sequence of int, optional
            The result's shape; by default the one that the values broadcast to.
        """
        dtype = dtype or values[0].dtype
        compute = compute or self.widest(values)
        whole = shape if shape is not None else broadcast([value.shape for value in values])
        numbers: dict[int, str] = {}
        for i, value in enumerate(values):
            if value.array is not None and value.size == 1 and not value.name:
                numbers[i] = number(value.array.reshape(-1)[0].item())
        if len(numbers) == len(values) and numbers:
            del numbers[next(iter(numbers))]
        left = [i for i in range(len(values)) if i not in numbers]
        names = {i: f"x{place}" for place, i in enumerate(left)}
        text = OPERAND.sub(lambda found: numbers.get(int(found[1])) or names[int(found[1])], expression)
        text = text if ASSIGNMENT.search(text) else assigned("y0", text)
        (y,) = self.build.pointwise(text, [self.given(values[i], compute) for i in left], reduce=reductions)
        return self.made(y.name, whole, dtype, compute)

    def widest(self, values: Sequence[OnnxValue]) -> str:
        """Return the widest type that carries one of some values."""
        return widest(value.carrier or carrier_of(value.dtype, self.has_fp64) for value in values)

    def cast(self, value: OnnxValue, dtype: str) -> OnnxValue:
        """Return a real value in another type of real numbers."""
        if value.dtype == dtype:
            return value
        if value.array is not None:
            return known(value.array.astype(dtype))
        return self.made(self.tensor(value, carrier_of(dtype, self.has_fp64)), value.shape, dtype)

    def transposed(self, value: OnnxValue, axes: Sequence[int]) -> OnnxValue:
        """Return a value with its axes in another order."""
        axes = tuple(int(axis) for axis in axes)
        if axes == tuple(range(value.ndim)):
            return value
        shape = tuple(value.shape[axis] for axis in axes)
        moved = [axis for axis in axes if value.shape[axis] != 1]
        if moved == sorted(moved):
            return self.reshaped(value, shape)
        carrier = self.carrier(value)
        return self.made(transposed(self.build, self.given(value), axes).name, shape, value.dtype, carrier)

    def carrier(self, value: OnnxValue) -> str:
        """Return the type that carries a value, or will."""
        return value.carrier or carrier_of(value.dtype, self.has_fp64)

    # nodes

    def run(self, nodes: Sequence[Any]) -> None:
        """Lower nodes in their order."""
        for proto in nodes:
            self.lower(OnnxNode(proto, self.opset))

    def lower(self, node: OnnxNode) -> None:
        """Lower one node and define its outputs."""
        self.budget.spend("nodes", 1, node)
        values = [self.find(name) if name else None for name in node.inputs]
        before = self._node, self._made
        self._node, self._made = "/".join([*self._path, *node.outputs[:1]]), 0
        try:
            results = self._results(node, values)
        except (Asked, OnnxError):
            raise
        except MemoryError:
            raise OnnxError(f"[onnx] got {node}, which needs more memory than there is, expected less") from None
        except ClgraftError as error:
            raise OnnxError(f"[onnx] got {node}, which does not fit its inputs: {error}") from None
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, ZeroDivisionError) as error:
            raise OnnxError(
                f"[onnx] got {node} with inputs {[getattr(v, 'shape', None) for v in values]}, expected ones that fit"
                f" it ({type(error).__name__}: {error})"
            ) from None
        finally:
            self._node, self._made = before
        for name, value in zip(node.outputs, results):
            if value is not None:
                expect_size(value, node)
                self.define(name, value)

    def _results(self, node: OnnxNode, values: Sequence[OnnxValue | None]) -> Sequence[OnnxValue | None]:
        given = [value for value in values if value is not None]
        if folding.serves(node, given):
            return self._counted(node, self.folded(node, values), given)
        function = lowering_of(node.operator)
        if function is None:
            raise node.refuse("no lowering")
        results = function(self, node, *values)
        results = results if isinstance(results, (tuple, list)) else (results,)
        return results if node.operator in folding.CONTROL else self._counted(node, results, given)

    def _counted(
        self, node: OnnxNode, results: Sequence[OnnxValue | None], given: Sequence[OnnxValue]
    ) -> Sequence[OnnxValue | None]:
        """Return results after their bytes on the host are counted; views of what was given take none."""
        read = [value.array for value in given if value.array is not None]
        made = [value.array for value in results if value is not None and value.array is not None]
        new = sum(one.nbytes for one in made if not any(np.may_share_memory(one, array) for array in read))
        self.budget.spend("bytes", new, node)
        return results

    def initializers(self, graph: onnx.GraphProto) -> dict[str, OnnxValue]:
        """Return the initializers of a subgraph."""
        reader, found = Reader(), {}
        for tensor in graph.initializer:
            found[tensor.name] = known(reader.read(tensor))
            self.make_room(tensor.ByteSize())
        for sparse in graph.sparse_initializer:
            self.make_room(dense_bytes(sparse))
            found[sparse.values.name] = known(reader.read_sparse(sparse))
        return found

    def folded(self, node: OnnxNode, values: Sequence[OnnxValue | None]) -> list[OnnxValue]:
        """Return the outputs of a node whose inputs are known."""
        return [known(array) for array in folding.fold(node, values, self.budget)]


def expect_size(value: OnnxValue, node: OnnxNode) -> None:
    """Refuse a value that no machine holds."""
    fault = fault_of(value.shape)
    if fault:
        raise OnnxError(f"[onnx] got {node} with a result of shape {value.shape[:8]}, expected {fault}")
    if value.size * 8 > MOST_BYTES:
        raise OnnxError(f"[onnx] got {node} with a result of shape {value.shape}, expected at most {MOST_BYTES} bytes")


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that shapes broadcast to."""
    return tuple(int(size) for size in np.broadcast_shapes(*shapes))


def is_real(value: OnnxValue) -> bool:
    """Return whether a value has real numbers."""
    return value.dtype in REAL
