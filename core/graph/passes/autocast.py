"""Makes a graph of float32 one of two types: products in 16 bits, and in float32 what rounding would spoil.

Which operators are which follows PyTorch's autocast, whose lists for CUDA stand under "Autocast Op Reference" on
https://docs.pytorch.org/docs/stable/amp.html: convolutions and products of matrices take 16 bits; powers, exponentials,
logarithms, sums and other reductions, softmax and losses take float32; what is on neither list takes the type of its
inputs, the wider one if they differ. Two things are finer here. Kernels compute in float32 whatever is stored, so a
reduction reads 16 bits, and only its result is float32. And a norm, which is a reduction and what follows it, returns
16 bits.

Parameters, inputs, outputs and states stay what they are: casts stand at the borders. Each value is cast at most once,
where it is made or first needed, and casts that are part of a pointwise problem cost nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clgraft.core.graph.structure import SKIPPED, Node, Some, Structure, fresh
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.cast import CastProblem
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.crossentropy import CrossEntropyProblem
from clgraft.core.operators.cumulative import CumulativeProblem
from clgraft.core.operators.deconvolution import DeconvProblem
from clgraft.core.operators.dense import DenseProblem
from clgraft.core.operators.detection import NonMaxSuppressionProblem, RoiAlignProblem
from clgraft.core.operators.gradients import GradientsProblem
from clgraft.core.operators.lrn import LRNProblem
from clgraft.core.operators.matmul import MatMulProblem
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.pointwise.expression import CONSTANTS, Term, is_output
from clgraft.core.operators.pooling import PoolProblem
from clgraft.core.operators.softmax import SoftmaxProblem
from clgraft.core.operators.update import UpdateProblem
from clgraft.core.problem import DTYPE_WORDS, SMALL, Argument, Problem

WIDE = "float32"
WORDS = {dtype: word for word, dtype in DTYPE_WORDS.items() if dtype in SMALL}
PRODUCTS = (ConvProblem, DeconvProblem, DenseProblem, GradientsProblem, MatMulProblem)
SENSITIVE = (
    CrossEntropyProblem,
    CumulativeProblem,
    LRNProblem,
    NonMaxSuppressionProblem,
    RoiAlignProblem,
    SoftmaxProblem,
)
# functions whose results leave the range of 16 bits, or lose their meaning in few digits
_SENSITIVE = """acos acosh acospi asin asinpi atanh cosh exp exp2 exp10 expm1 lgamma log log2 log10 log1p pow rsqrt sinh
tan tanpi tgamma"""
# functions of anything whose results are small
_BOUNDED = """asinh atan atan2 atanpi cos cospi erf erfc sign sin sinpi smoothstep step tanh isnan isinf isfinite
signbit"""
SENSITIVE_FUNCTIONS, BOUNDED_FUNCTIONS = frozenset(_SENSITIVE.split()), frozenset(_BOUNDED.split())
TRUTHS = frozenset(("real", "truth", "!", "&&", "||", "==", "!=", "<", "<=", ">", ">="))
LARGEST = 65504.0  # of float16


def mix_types(graph: Some, dtype: str, also: Collection[str] = ()) -> Some:
    """Return the graph with products in a type of 16 bits.

    Parameters
    ----------
    graph : Graph
        What is not float32 in it stays as it is.
    dtype : str
        ``float16`` or ``bfloat16``.
    also : collection of str
        Names of values in 16 bits (see `small_name`) that the graph must keep, whatever reads them.
    """
    mixing = _Mixing(graph, dtype)
    mixing.run(frozenset(also))
    return graph.with_nodes(node for i in range(len(graph.nodes)) for node in mixing.at(i))


def mix_passes(graph: Structure, dtype: str, count: int, late: int = 0) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Return the nodes of a forward and of a backward pass with products in a type of 16 bits.

    Parameters
    ----------
    graph : Graph
        Of both.
    dtype : str
        ``float16`` or ``bfloat16``.
    count : int
        How many of the nodes are forward ones.
    late : int
        How many of the last nodes stay the last ones.

    Returns
    -------
    forward, backward : tuple of Node
        A value that both passes need in 16 bits is cast by the first one.
    """
    mixing = _Mixing(graph, dtype)
    mixing.run(frozenset())
    numbers = range(len(graph.nodes))
    last = len(graph.nodes) - late
    casts = (cast for i in numbers[last:] for cast in mixing.before[i])
    own = (node for i in numbers[last:] for node in (mixing.changed[i], *mixing.after[i]))
    forward = tuple(node for i in numbers[:count] for node in mixing.at(i))
    return forward, (*(node for i in numbers[count:last] for node in mixing.at(i)), *casts, *own)


def small_name(name: str, dtype: str) -> str:
    """Return what a value of a graph is called in 16 bits."""
    return f"{name}.{WORDS[dtype]}"


def wide_name(name: str, dtype: str) -> str:
    """Return the name of the value of a graph that a name stands for, which may be its name in 16 bits."""
    ending = small_name("", dtype)
    return name[: -len(ending)] if name.endswith(ending) else name


@dataclass
class _Mixing:
    """A graph on its way.

    Attributes
    ----------
    graph : Structure
    dtype : str
    small : dict of str to str
        Values that there are in 16 bits, and what they are called then.
    natural : set of str
        Those of them that are computed in 16 bits.
    wide : set of str
        Those of these that are cast to float32, under their own names.
    changed : list of Node
        What takes the place of each node.
    before, after : dict of int to list of Node
        Casts in front of a node, and after it.
    """

    graph: Structure
    dtype: str
    small: dict[str, str] = field(default_factory=dict)
    natural: set[str] = field(default_factory=set)
    wide: set[str] = field(default_factory=set)
    changed: list[Node] = field(default_factory=list)
    before: dict[int, list[Node]] = field(default_factory=lambda: defaultdict(list))
    after: dict[int, list[Node]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.taken = set(self.graph.values)

    def run(self, also: frozenset[str]) -> None:
        """Choose types and casts."""
        for i, node in enumerate(self.graph.nodes):
            self.changed.append(self._node(i, node))
            for name in node.changes:  # who reads the state from here on needs another cast
                self.small.pop(name, None)
        for name, i in self.graph.writers.items():
            if small_name(name, self.dtype) in also and self.graph.values[name].dtype == WIDE:
                self._in_small(name, i)
        for name in self.graph.outputs:
            self._in_wide(name)

    def at(self, i: int) -> tuple[Node, ...]:
        """Return what takes the place of a node, with its casts."""
        return (*self.before[i], self.changed[i], *self.after[i])

    def _node(self, i: int, node: Node) -> Node:
        """Return a node with the problem that takes its place, after the casts that this one needs."""
        problem = self._chosen(node)
        names = []
        for old, new, name in zip(node.problem.arguments(), problem.arguments(), node.arguments):
            if name == SKIPPED or old.dtype != WIDE:
                names.append(name)
            elif old.role == "in":
                names.append(name if new.dtype not in (WIDE, self.dtype) else self._read(name, new, i))
            elif new.dtype == WIDE:
                names.append(name)
            else:
                names.append(self._made(name))
                self.natural.add(name)
        return replace(node, problem=problem, arguments=tuple(names))

    def _made(self, name: str) -> str:
        """Return the name of a value in 16 bits that is to be made."""
        self.small[name] = fresh(small_name(name, self.dtype), self.taken)
        return self.small[name]

    def _read(self, name: str, argument: Argument, i: int) -> str:
        """Return the name of a value in the type in which a node reads it."""
        return self._in_wide(name) if argument.dtype == WIDE else self._in_small(name, i)

    def _in_small(self, name: str, i: int) -> str:
        """Return the name of a value in 16 bits, which is made at its writer, or in front of the node that needs it."""
        if name not in self.small:
            place = self.after[self.graph.writers[name]] if name in self.graph.writers else self.before[i]
            place.append(Node(self._cast(name, "x0"), (name, self._made(name))))
        return self.small[name]

    def _in_wide(self, name: str) -> str:
        """Return the name of a value in float32."""
        if name in self.natural and name not in self.wide:
            self.wide.add(name)
            self.after[self.graph.writers[name]].insert(0, Node(self._cast(name, "y0"), (self.small[name], name)))
        return name

    def _cast(self, name: str, wide: str) -> PointwiseProblem:
        shape = self.graph.values[name].shape
        return PointwiseProblem((shape,), "y0 = x0;", dtype=self.dtype, float32_arguments=(wide,))

    # which type each problem has

    def _chosen(self, node: Node) -> Problem:
        """Return the problem in a node's place."""
        problem = node.problem
        if isinstance(problem, CastProblem):
            small = problem.source == WIDE and node.reads[0] in self.natural
            both = problem.source == problem.target == WIDE
            return replace(problem, source=self.dtype, **({"target": self.dtype} if both else {})) if small else problem
        if problem.dtype != WIDE or isinstance(problem, SENSITIVE):
            return problem
        if isinstance(problem, PointwiseProblem):
            return self._pointwise(problem, node)
        if isinstance(problem, UpdateProblem):
            return self._update(problem, node)
        if node.changes or (isinstance(problem, PoolProblem) and problem.operator == "sum"):
            return problem
        lowered = _lowered(problem, self.dtype)
        return lowered if isinstance(problem, PRODUCTS) or self._follows(node, lowered) else problem

    def _follows(self, node: Node, lowered: Problem) -> bool:
        """Return whether a problem takes 16 bits because all that it reads in them is there; gradients do not count.

        A gradient alone counts where nothing else is read.
        """
        pairs = zip(node.problem.arguments(), lowered.arguments(), node.arguments)
        read = [(old.name, name) for old, new, name in pairs if old.role == "in" and old.dtype != new.dtype]
        values = [name for argument, name in read if not argument.startswith("d")] or [name for _, name in read]
        return bool(values) and all(name in self.natural for name in values)

    def _pointwise(self, problem: PointwiseProblem, node: Node) -> PointwiseProblem:
        """Return a pointwise problem that reads values as they are, and writes those in 16 bits that may be."""
        count = len(problem.inputs)
        small = {f"x{i}" for i, name in enumerate(node.reads[:count]) if name in self.natural}
        if not small:
            return problem
        sensitive = _sensitive_outputs(problem)
        for output, reduction in enumerate(problem.reductions):
            read = problem.assignments.reads((output,))
            sizes = {f"x{i}": math.prod(shape) for i, shape in enumerate(problem.inputs) if f"x{i}" in read}
            largest = {name for name, size in sizes.items() if size == max(sizes.values())}
            if reduction is None and not problem.beta and output not in sensitive and largest and largest <= small:
                small.add(f"y{output}")
        names = [argument.name for argument in problem.arguments()]
        return replace(problem, dtype=self.dtype, float32_arguments=tuple(name for name in names if name not in small))

    def _update(self, problem: UpdateProblem, node: Node) -> UpdateProblem:
        """Return an update that reads values as they are: what it changes stays float32."""
        names = {argument.name: name for argument, name in zip(problem.arguments(), node.arguments)}
        wide = tuple(name for name, value in names.items() if value not in self.natural)
        if len(wide) == len(names):
            return problem
        return UpdateProblem(replace(problem.step, dtype=self.dtype, float32_arguments=wide))


def _lowered(problem: Problem, dtype: str) -> Problem:
    """Return a problem in 16 bits; a batch norm keeps its parameters and statistics."""
    more: dict[str, Any] = {"float32_parameters": True} if isinstance(problem, BatchNormProblem) else {}
    return replace(problem, dtype=dtype, **more)  # type: ignore[type-var]


def _sensitive_outputs(problem: PointwiseProblem) -> set[int]:
    """Return the outputs that 16 bits would spoil.

    What a function makes of broadcast values, such as the scale of a norm, is one factor among others.
    """
    sizes = {f"x{i}": math.prod(shape) for i, shape in enumerate(problem.inputs)}
    whole = {name for name, size in sizes.items() if size == max(sizes.values())}
    found: dict[str, bool] = {}
    for statement in problem.assignments.statements:
        target, value = statement.target, statement.value
        found[target] = _is_sensitive(value, found, whole) or (is_output(target) and _is_power(value, whole))
        if whole & value.reads:
            whole.add(target)
    return {output for output in range(problem.assignments.outputs) if found[f"y{output}"]}


def _is_power(term: Term, whole: Collection[str]) -> bool:
    """Return whether a value is a square or a reciprocal, which as outputs are powers."""
    operator, operands = term.operator, term.operands
    if operator not in ("*", "/") or term.reads.isdisjoint(whole):
        return False
    if operator == "*":
        return operands[0] == operands[1]
    return operands[0].operator == "number" and operands[1].operator != "number" and not _is_logistic(operands[1])


def _is_sensitive(term: Term, known: Mapping[str, bool], whole: Collection[str]) -> bool:
    """Return whether a value is that of a sensitive function, or is computed from one without being bounded again."""
    operator, operands = term.operator, term.operands
    if operator == "name":
        return known.get(term.word, False)
    if operator == "number":
        value = CONSTANTS[term.word] if term.word in CONSTANTS else float(term.word)
        return LARGEST < abs(value) < math.inf
    if operator in SENSITIVE_FUNCTIONS:
        return not term.reads.isdisjoint(whole)
    if operator in BOUNDED_FUNCTIONS or operator in TRUTHS:
        return False
    if operator == "/" and _is_logistic(operands[1]):
        return _is_sensitive(operands[0], known, whole)
    return any(_is_sensitive(operand, known, whole) for operand in (operands[1:] if operator == "?" else operands))


def _is_logistic(term: Term) -> bool:
    """Return whether a divisor is a positive number and an exponential: what is divided by it does not grow."""
    if term.operator != "+" or len(term.operands) != 2:
        return False
    kinds = {operand.operator for operand in term.operands}
    return "number" in kinds and bool(kinds & {"exp", "exp2", "exp10"})
