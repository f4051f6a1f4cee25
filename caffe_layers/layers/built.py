"""Layers that are functions of `clgraft.core.nn`: what they build runs on Caffe's blobs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from clgraft import core
from clgraft.caffe_layers.layers.layer import TRAIN, OclLayer
from clgraft.caffe_layers.regions.memory import buffer
from clgraft.caffe_layers.regions.passes import Fetch, Pass
from clgraft.core.errors import ClgraftError
from clgraft.core.graph import Call, Node, single_call
from clgraft.core.graph.identity import copied_along, is_copy
from clgraft.core.nn.builder import Build, Passes, Tensor
from clgraft.core.problem import Argument

BOTTOM, TOP, BLOB = range(3)


class BuiltLayer(OclLayer):
    """Base class of layers that define `build` in place of `compute` and `differentiate`.

    In a region they are part of its graph. A scalar of the graph is what a method returns for the tops when it runs.

    Attributes
    ----------
    changed : tuple of int
        Blobs that a forward pass changes in place.
    first_top : int
        Tops in front of this one the host writes in `end`, from the arrays of `results`.
    keeps_tops : bool
        Whether tops that the backward pass reads are copied: a layer that works in place may overwrite them.
    zeros : bool
        Whether a gradient that does not exist is written as zeros; else it is left alone.
    """

    changed: ClassVar[tuple] = ()
    first_top: ClassVar[int] = 0
    keeps_tops: ClassVar[bool] = False
    zeros: ClassVar[bool] = False

    def build(self, *values: Any, **more: Any) -> Any:
        """Return what `results` names, and the tops.

        Its arguments are a builder, lists of bottoms and of blobs, and the arrays of `given` by their names.
        """
        raise NotImplementedError

    def parts(self, build: Build, bottoms: list, blobs: list, given: Mapping[str, Tensor]) -> tuple[tuple, tuple]:
        """Return what `build` returns: what `results` names, and the tops."""
        made = self.build(build, bottoms, blobs, **given)
        made, count = made if isinstance(made, tuple) else (made,), len(self.results)
        return made[:count], made[count:]

    def scalar(self, build: Build, method: str) -> str:
        """Return a scalar of the graph, whose name begins with that of the method that computes it."""
        return str(build.graph.scalar(method if self.member is None else f"{method}.{self.member.mark.place}"))

    def learned_blobs(self) -> list[int]:
        """Return the numbers of the blobs whose gradients are wanted."""
        return [i for i, _ in self._blob_names if self.learns(i)]

    def prepare(self, shapes: list) -> list:
        self._own: dict[tuple, core.Buffer] = {}  # a value's name and size -> memory of the layer's own
        self._arrays: dict[tuple, Any] = {}
        self._runs: dict[tuple, Pass] = {}  # the gradients that are wanted -> the pass; the forward pass has none
        self._sides: tuple = ()  # the bottoms, tops and blobs of the current call
        self._has_blobs = len(self.blobs) > 0
        self._passes: dict[tuple, Passes] = {}  # what is wanted, and whether in place -> the passes
        self._bottom_shapes = shapes
        self._bottom_names = tuple(f"bottom{i}" for i in range(len(shapes)))
        numbers = range(len(self.blobs)) if self.learned else ()
        self._blob_names = [(i, f"blob{i}") for i in numbers if i not in self.changed]
        self._all = (*self._bottom_names, *(name for _, name in self._blob_names))
        found = self._widest() if self.phase == TRAIN and self.member is None else self._built(())
        return [tensor.shape for tensor in found.outputs[len(self.results) :]]

    def compute(self, bottom: Any, top: Any) -> None:
        self._sides = bottom, top, self.blobs if self._has_blobs else ()
        forward = self._runs.get(()) or self._forward()
        if self._copies:
            self.copy(self._saved, bottom[0].data)
        forward.run()
        if self._kept and self.phase == TRAIN:
            for j, array in self._kept.items():
                self.copy(array, top[j].data)

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        wanted = tuple([name for i, name in enumerate(self._bottom_names) if propagate_down[i]])
        if self._blob_names:
            wanted += tuple([name for i, name in self._blob_names if self.learns(i)])
        if not wanted:
            return
        self._sides = bottom, top, self.blobs if self._has_blobs else ()
        backward = self._runs.get(wanted) or self._backward(wanted)
        if self._kept and self.phase != TRAIN:  # a net for predictions is rarely differentiated: it keeps nothing
            self._again.run()
        backward.run()

    def _built(self, wanted: tuple) -> Passes:
        """Return the passes with some gradients; values have the same names in all of them."""
        key = wanted, self.in_place
        if key not in self._passes:
            overwritten = "bottom0" if self.in_place else ""
            build = Build(training=self.phase == TRAIN, overwritten=overwritten)
            results, tops = self.recorded(build)
            self._passes[key] = build.passes((*results, *tops), wanted, zeros=self.zeros)
            for name, array in build.constants.items():
                is_real, value = array.dtype.kind == "f", array.flat[0] if array.size else 0
                if is_real and bool((array == value).all()):
                    held = self.constant(array.size, value)
                else:
                    typed = array.astype(self.real, copy=False) if is_real else array
                    held = self._arrays.setdefault((name, array.size), typed)
                self._own[name, array.size] = buffer(held, core.OVERWRITE, array.dtype.name)
        return self._passes[key]

    def recorded(self, build: Build) -> tuple[tuple, tuple]:
        """Return what `build` returns of inputs and states of a graph: what `results` names, and the tops."""
        bottoms = [build.input(f"bottom{i}", shape) for i, shape in enumerate(self._bottom_shapes)]
        blobs = [
            (build.state if i in self.changed else build.input)(f"blob{i}", tuple(self.blobs[i].data.shape))
            for i in range(len(self.blobs))
        ]
        return self.parts(build, bottoms, blobs, {name: self._array_input(build, name) for name in self.given})

    def _widest(self) -> Passes:
        """Return the passes with all gradients; without any if there are none, as the backward pass will say."""
        try:
            return self._built(self._all)
        except ClgraftError:
            return self._built(())

    def _array_input(self, build: Build, name: str) -> Tensor:
        array = getattr(self, name)
        return build.input(name, array.shape, "float32" if array.dtype.kind == "f" else "int32")

    def _forward(self) -> Pass:
        """Return the forward pass, after it is known what the backward pass reads."""
        widest = self._widest()
        read = {name for node in widest.backward for name in node.reads}
        tops = [tensor.name for tensor in widest.outputs[len(self.results) :]]
        shapes = [tensor.shape for tensor in widest.outputs[len(self.results) :]]
        lost = [j for j, name in enumerate(tops) if self.keeps_tops and name in read]
        self._kept = {j: self._array(f"kept{j}", shapes[j]) for j in lost}
        self._saves = self.in_place and "bottom0" in read  # which the layer overwrites
        forward = widest if self.phase == TRAIN else self._built(())
        nodes, self._copies = forward.forward, False
        if self._saves:
            self._saved = self._array("saved", self._bottom_shapes[0])
            saving = copied_along(nodes, "bottom0", "saved")
            nodes, self._copies = saving or nodes, saving is None
        places = self._places(forward)
        if not self._copies:
            places["bottom0"] = BOTTOM, 0, "data", core.OVERWRITE
        read |= {"saved", *(tensor.name for tensor in forward.outputs[: len(self.results)])}
        if self._kept and self.phase != TRAIN:
            kept = {tops[j] for j in self._kept}
            others = {name: place for name, place in places.items() if name not in kept}
            self._again = self._made(forward, nodes, others, read)
        self._runs[()] = self._made(forward, nodes, places, read)
        self._lost = {name for node in nodes for name in node.writes} - read - set(places)
        return self._runs[()]

    def _backward(self, wanted: tuple) -> Pass:
        """Return the backward pass for some gradients."""
        if () not in self._runs:  # a layer without any value
            self._forward()
        found = self._built(wanted)
        assert not self._lost.intersection(name for node in found.backward for name in node.reads)
        places = self._places(found)
        for j in self._kept:
            del places[found.outputs[len(self.results) + j].name]
        self._runs[wanted] = self._made(found, found.backward, places)
        return self._runs[wanted]

    def _places(self, found: Passes) -> dict:
        """Return which values are in Caffe's blobs."""
        places: dict[str, tuple] = {}
        for i in range(len(self._bottom_shapes)):
            if i or not self._saves:
                places[f"bottom{i}"] = BOTTOM, i, "data", core.OVERWRITE
        for i in range(len(self.blobs)):
            places[f"blob{i}"] = BLOB, i, "data", core.OVERWRITE
        for j, tensor in enumerate(found.outputs[len(self.results) :], self.first_top):
            places[tensor.name] = TOP, j, "data", core.OVERWRITE
            if tensor.name in found.incoming:
                places[found.incoming[tensor.name].name] = TOP, j, "diff", core.OVERWRITE
        for name, gradient in found.found.items():
            if not gradient:
                continue
            if name.startswith("bottom"):
                places[gradient] = BOTTOM, int(name[len("bottom") :]), "diff", core.OVERWRITE
            else:
                places[gradient] = BLOB, int(name[len("blob") :]), "diff", core.ACCUMULATE
        return places

    def _made(
        self, found: Passes, nodes: Sequence[Node], places: Mapping[str, tuple], kept: Collection[str] = ()
    ) -> Pass:
        """Return a pass.

        Parameters
        ----------
        found : Passes
            What the nodes are of.
        nodes : sequence of Node
        places : mapping of str to tuple
            Values in Caffe's blobs: what holds them (`BOTTOM`, `TOP` or `BLOB`), its number, ``data`` or ``diff``, and
            how they are written.
        kept : collection of str
            Values that others read afterwards.
        """
        nodes = [node for node in nodes if not self._stays(node, places)]
        made = dict.fromkeys(name for node in nodes for name in node.writes if name not in node.changes)
        graph = found.graph(nodes, [name for name in made if name in places or name in kept])
        arrays = {name: (self._fetch(*place), mode) for name, (*place, mode) in places.items()}
        added = [name for name in graph.outputs if name in places and places[name][-1] == core.ACCUMULATE]

        def call() -> Call | None:
            return single_call(self.context, graph, graph.outputs, added) if graph.nodes else None

        return Pass(call, arrays, self.own_buffer, self._number)

    def _fetch(self, side: int, index: int, part: str) -> Fetch:
        """Return what returns a blob's array in the current call."""
        if part == "diff":
            return lambda: self._sides[side][index].diff
        return lambda: self._sides[side][index].data

    def _number(self, name: str) -> Any:
        """Return a scalar of the current call."""
        return self.deferred_scalar(getattr(self, name), self._sides[TOP])

    def _stays(self, node: Node, places: Mapping[str, tuple]) -> bool:
        """Return whether a node copies a value to its own memory, that of a layer in place."""
        if not (self.in_place and is_copy(node.problem)):
            return False
        homes = [places.get(name, ()) for name in node.arguments]
        shared = all(home[:2] in ((BOTTOM, 0), (TOP, 0)) for home in homes)
        return shared and len({home[2] for home in homes}) == 1

    def own_buffer(self, argument: Argument) -> core.Buffer:
        """Return the buffer of a value of the layer's own."""
        outputs, count = self._widest().outputs, len(self.results)
        kept = {tensor.name: name for tensor, name in zip(outputs, self.results)}
        kept.update({tensor.name: f"kept{j}" for j, tensor in enumerate(outputs[count:]) if j in self._kept})
        if self._saves:
            kept["bottom0"] = "saved"
        name = kept.get(argument.name, argument.name)
        if name in self.given or name in self.results:
            array = getattr(self, name)
            return core.Buffer(array.ctypes.data, array.nbytes, argument.dtype)
        key = (name, argument.size)
        if key not in self._own:
            array = self._array(name, argument.shape, argument.dtype)
            self._own[key] = buffer(array, core.OVERWRITE, argument.dtype)
        return self._own[key]

    def _array(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Any:
        """Return memory of the layer's own by its name and size; it has the first shape that was asked for."""
        key = (name, math.prod(shape))
        if key not in self._arrays:
            self._arrays[key] = self.array(tuple(shape), None if dtype.startswith("float") else np.dtype(dtype))
        return self._arrays[key]
