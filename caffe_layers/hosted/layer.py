"""A layer of ours that describes itself: what blobs it has, and which plans it runs on which memory."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from clgraft import caffe_layers, core
from clgraft.caffe_layers.hosted.blobs import BOTTOM, TOP, Blob, Blobs, Host
from clgraft.caffe_layers.hosted.classes import Parameterized, class_name
from clgraft.caffe_layers.layers import fillers
from clgraft.caffe_layers.layers.layer import OclLayer
from clgraft.caffe_layers.layers.loss import Loss
from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.prototxt.marks import without_marks
from clgraft.caffe_layers.regions.memory import Memory, buffer
from clgraft.core.graph import Graph, Value, arguments_of
from clgraft.core.graph.identity import identity
from clgraft.core.problem import Argument, Problem, ceil_div


class Run(NamedTuple):
    """A run of a plan; a number that is not known yet is a function."""

    plan: NotedPlan
    buffers: Sequence[core.Buffer]
    scalars: Sequence[float | Callable[[], float]]


class NotedPlan:
    """Stands for a plan, which C++ makes: its runs are noted.

    Parameters
    ----------
    runs : list of Run
        Where they are noted.
    arguments : tuple of Argument
    head, rest : str
        How a line of a run begins and ends.
    lines : tuple of str
        What follows it.
    """

    def __init__(
        self, runs: list[Run], arguments: tuple[Argument, ...], head: str, rest: str, lines: Sequence[str] = ()
    ) -> None:
        self.arguments, self.head, self.rest, self.lines = arguments, head, rest, lines
        self._runs = runs

    def bind(self, buffers: Sequence[core.Buffer]) -> list[core.Buffer]:
        """Return what `run_bound` takes."""
        return list(buffers)

    def move(self, bound: list[core.Buffer], place: int, array: Any) -> None:
        """Let an argument lie elsewhere."""
        bound[place] = bound[place]._replace(address=buffer(array).address, nbytes=array.nbytes)

    def run_bound(self, buffers: Sequence[core.Buffer], scalars: Sequence[Any] = ()) -> None:
        """Note a run."""
        self._runs.append(Run(self, tuple(buffers), tuple(scalars)))


class NotedGraph:
    """Stands for a compiled graph.

    Parameters
    ----------
    runs : list of Run
    graph : Graph
    passes, precision : str
        As `Context.compile` takes them.
    """

    def __init__(self, runs: list[Run], graph: Graph, passes: str, precision: str) -> None:
        self.graph, self._runs, self._options = graph, runs, f"{passes} {precision}"

    def prepared(self, outputs: Sequence[str], added: Collection[str]) -> tuple[NotedPlan, dict]:
        """Return the plan of a run that writes these outputs and adds to some of them; it has no constants."""
        lines = str(self.graph).splitlines()
        words = " ".join(f"{name}+" if name in added else name for name in outputs)
        head = f"graph {len(lines)} {self._options}"
        return NotedPlan(self._runs, arguments_of(self.graph.with_outputs(outputs)), head, words, lines), {}


class Described:
    """Takes the place of a context: what a layer plans and runs is noted, and C++ runs it.

    Parameters
    ----------
    dtype : str
        The type of Caffe's numbers, in place of a problem's float32.

    Attributes
    ----------
    runs : list of Run
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.runs: list[Run] = []

    def plan(self, problem: Problem) -> NotedPlan:
        """Return what stands for a plan."""
        problem = self._typed(problem)
        return NotedPlan(self.runs, problem.arguments(), "run", str(problem))

    def compile(self, graph: Graph, passes: str, *, precision: str) -> NotedGraph:
        """Return what stands for a compiled graph."""
        if self.dtype != "float32":
            inputs, states = (
                tuple(replace(one, dtype=self.dtype) if one.dtype == "float32" else one for one in values)
                for values in (graph.inputs, graph.states)
            )
            nodes = tuple(replace(node, problem=self._typed(node.problem)) for node in graph.nodes)
            graph = replace(graph, nodes=nodes, inputs=inputs, states=states)
        return NotedGraph(self.runs, graph, passes, precision)

    def _typed(self, problem: Problem) -> Problem:
        """Return a problem in the type of Caffe's numbers."""
        if self.dtype == "float32" or problem.dtype != "float32":
            return problem
        return replace(problem, dtype=self.dtype)  # type: ignore[type-var]


class Hosted(Parameterized):
    """What a layer's class gets in addition: it describes what another one would run."""

    def open(self: Any, parameters: Any, phase: int, host: Host, blobs: list) -> None:
        """Take what Caffe gives a layer."""
        self.take_given(parameters, phase)
        self.host, self.real = host, host.real
        if host.real is not np.float32:  # regions have no other type: their layers run one by one
            self.param_str = without_marks(self.param_str)
        self.blobs = Blobs(host, blobs)
        self.started: list = []  # for each blob that was made, its filler
        self.memory: dict = {}  # address -> number and elements of the layer's own arrays
        self.flags: Sequence[bool] = ()
        self.is_in_place = False
        self.deferred: list = []

    def make_blobs(self: Any, *wanted: tuple) -> None:
        if not len(self.blobs):
            for shape, filler in wanted:
                fillers.check(shape, filler)
                self.blobs.add_blob(*shape)
                self.started.append(filler)
        super().make_blobs(*wanted)  # type: ignore[misc]

    def runner(self: Any) -> Any:
        return Described(np.dtype(self.real).name)

    def learns(self: Any, index: int) -> bool:
        if self.member is not None:  # a region computes the gradients of all its layers before it knows what each wants
            return bool(super().learns(index))  # type: ignore[misc]
        return index >= len(self.flags) or self.flags[index]

    def shares_memory(self, bottom: Any, top: Any) -> bool:
        return self.is_in_place

    def drawn(self, shape: tuple, filler: Any) -> np.ndarray:
        return self.host.drawn(shape, filler)

    def array(self, shape: tuple, dtype: Any = None) -> Any:
        found = Memory(shape, dtype or np.float32)
        nbytes = np.dtype(self.real if dtype is None else dtype).itemsize * found.size
        self.memory[found.address] = (len(self.memory), ceil_div(nbytes, np.dtype(self.real).itemsize))
        return found

    def copy(self: Any, target: Any, source: Any) -> None:
        problem = identity(Value("", (target.size,)))
        self.context.plan(problem).run_bound((buffer(source), buffer(target)))

    def deferred_scalar(self: Any, number: Any, top: Any) -> Any:
        return lambda: float(number(self.tops_live))


@functools.cache
def hosted_class(name: str) -> Any:
    """Return a layer's class that describes itself."""
    return type(name, (Hosted, caffe_layers.layer_class(name)), {})


class HostedLayer:
    """A layer with its blobs, as the service keeps it.

    Parameters
    ----------
    kind : str
        Its type.
    parameters : LayerParameter
    phase : int
    host : Host
    bottoms, blobs : list of tuple
        Shapes of its bottoms, and of the blobs that it already has.
    tops : int
        Number of its tops.
    """

    def __init__(
        self, kind: str, parameters: Any, phase: int, host: Host, bottoms: list, blobs: list, tops: int
    ) -> None:
        self.host, self.told = host, 0
        self.layer = hosted_class(class_name(kind))()
        self.bottoms = [Blob(host, BOTTOM, i, shape) for i, shape in enumerate(bottoms)]
        self.tops = [Blob(host, TOP, i, ()) for i in range(tops)]
        self.layer.tops_live = self.tops
        self.layer.open(parameters, phase, host, blobs)
        self.layer.setup(self.bottoms, self.tops)
        host.live = self.layer.member is not None  # a region works on Caffe's memory

    def described(self) -> list:
        """Return lines that say which blobs to make, and what else its class demands."""
        layer = self.layer
        lines = [
            f"blob {shaped(blob.shape)} {' '.join(str(filler).split())}"
            for blob, filler in zip(layer.blobs, layer.started)
        ]
        lines += ["fixed"] * (not layer.learned) + ["loss"] * isinstance(layer, Loss)
        if layer.member is not None:
            return [*lines, "region"]
        lines += [step for step in ("begin", "end") if getattr(type(layer), step) is not getattr(OclLayer, step)]
        return lines

    def reshape(self, shapes: list, in_place: bool) -> list:
        """Take bottom shapes; return lines with the tops' shapes."""
        if in_place != self.layer.is_in_place:
            self.layer.is_in_place, self.layer.shapes = in_place, []
        for blob, shape in zip(self.bottoms, shapes):
            blob.reshape(*shape)
        if shapes != self.layer.shapes:
            self.layer.memory.clear()
        self.layer.deferred.clear()  # their programs are gone
        self.layer.reshape(self.bottoms, self.tops)
        return [f"top {shaped(blob.shape)}" for blob in self.tops]

    def forward(self) -> list:
        """Return lines that say what a forward pass runs."""
        layer = self.layer
        layer.compute(self.bottoms, self.tops)
        first = [f"divide {array.ctypes.data} p{index} p{by}" for array, index, by in layer.quotients()]
        last = [f"count p{index} {bits(factor)} {bits(term)}" for index, factor, term in layer.counted()]
        return [*self._lines(), *first, *last]

    def backward(self, propagate_down: list, learns: list) -> list:
        """Return lines that say what a backward pass runs."""
        self.layer.flags = learns
        self.layer.expect_gradients(propagate_down)
        self.layer.differentiate(self.tops, propagate_down, self.bottoms)
        return self._lines()

    def enter(self) -> list:
        """Take part in a region's forward pass; return lines that name tops which are not on the host, once a shape."""
        self.layer.forward(self.bottoms, self.tops)
        if self.told == self.layer.prepared:
            return []
        self.told = self.layer.prepared
        mark = self.layer.member.mark
        last: dict[str, bool] = {}
        for member in self.layer.member.region.members:  # the last layer that writes a blob decides
            last.update(zip(member.mark.tops, member.mark.shows))
        return [f"hidden {place}" for place, name in enumerate(mark.tops) if not last[name]]

    def leave(self, propagate_down: list) -> None:
        """Take part in a region's backward pass."""
        self.layer.backward(self.tops, propagate_down, self.bottoms)

    def on_host(self, step: str) -> None:
        """Do `begin` or `end` on Caffe's memory."""
        self.host.live = True
        try:
            if step == "begin":
                self.layer.begin()
            else:
                self.layer.end(self.bottoms, self.tops)
        finally:
            self.host.live = False

    def number(self, index: int) -> float:
        """Return a scalar that the last backward pass left open."""
        self.host.live = True
        try:
            return float(self.layer.deferred[index]())
        finally:
            self.host.live = False

    def _lines(self) -> list:
        """Return what was noted as lines: `array` for memory of the layer's own, `run` or `graph` for a plan."""
        layer = self.layer
        names: dict = {}
        for blob in (*self.bottoms, *self.tops, *layer.blobs):
            names.update(blob.names())
        names.update({address: f"s{number}" for address, (number, _) in layer.memory.items()})
        lines = [f"array {size}" for _, size in layer.memory.values()]
        for run in layer.context.runs:
            lines += [" ".join(self._words(run, names)), *run.plan.lines]
        layer.context.runs.clear()
        return lines

    def _words(self, run: Run, names: dict) -> list:
        words = [run.plan.head, str(len(run.buffers))]
        for given in run.buffers:
            if given.mode == core.SKIP:
                words.append("-")
            else:
                name = names.get(given.address) or f"h{given.address}:{given.nbytes}"
                words.append(("+" if given.mode == core.ACCUMULATE else "") + name)
        words.append(str(len(run.scalars)))
        for scalar in run.scalars:
            if callable(scalar):
                words.append(f"@{len(self.layer.deferred)}")
                self.layer.deferred.append(scalar)
            else:
                words.append(bits(float(scalar)))
        return [*words, run.plan.rest]


def shaped(shape: Sequence[int]) -> str:
    """Return a shape as a word."""
    return f"[{','.join(map(str, shape))}]"


def bits(number: float) -> str:
    """Return a number as hexadecimal digits, which depend on no locale and lose nothing."""
    return struct.pack(">d", number).hex()


def read_parameters(data: bytes) -> Any:
    """Return the LayerParameter that bytes hold."""
    return schema.parse_bytes("LayerParameter", data)
