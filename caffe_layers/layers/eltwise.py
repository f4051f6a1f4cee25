"""Eltwise: sum, product or maximum of several bottoms."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from clgraft.caffe_layers.layers import programs
from clgraft.caffe_layers.layers.layer import MANY, OclLayer, buffer, same_shapes


class OclEltwise(OclLayer):
    """SUM with `coeff`, PROD, or MAX of two bottoms or more.

    MAX: among equal values of bottoms 0 and 1 the gradient goes to bottom 1, a later one wins only if it is greater.
    PROD: the gradient is dy times the other bottoms; `stable_prod_grad: false` (dy y / x) would differ only near 0.
    In place is refused: the native layer computes something else then.
    """

    word: ClassVar[str] = "eltwise"
    bottoms: ClassVar[tuple] = (2, MANY)
    may_be_in_place: ClassVar[bool] = False

    def configure(self, shapes: list) -> None:
        given = self.parameters.eltwise_param
        count = self.bottom_count
        self.operation = {given.PROD: "PROD", given.SUM: "SUM", given.MAX: "MAX"}[given.operation]
        factors = list(given.coeff)
        self.expect(len(factors) in (0, count), f"{len(factors)} values of coeff", f"none or {count}, one per bottom")
        self.expect(not factors or self.operation == "SUM", f"coeff with {self.operation}", "operation: SUM")
        names = [f"x{i}" for i in range(count)]
        if self.operation == "SUM":
            # Written into the program, not given per run: a net has few of them, and 1 costs nothing.
            terms = [f"{factor!r} * {{}}" if factor != 1 else "{}" for factor in factors or [1.0] * count]
            self.forward_text = "y = " + " + ".join(term.format(name) for term, name in zip(terms, names)) + ";"
            gradients = [term.format("dy") for term in terms]
        elif self.operation == "PROD":
            self.forward_text = "y = " + " * ".join(names) + ";"
            gradients = [" * ".join(["dy", *names[:i], *names[i + 1 :]]) for i in range(count)]
        else:
            self.forward_text = self.winner(names) + f"y = top{count - 1};"
            gradients = [f"who{count - 1} == {i} ? dy : 0" for i in range(count)]
        self.gradients = gradients

    @staticmethod
    def winner(names: list) -> str:
        """Give the assignments that find the greatest value and whose it is."""
        text = "real top1 = x0 > x1 ? x0 : x1; real who1 = x0 > x1 ? 0 : 1;"
        for i in range(2, len(names)):
            greater = f"x{i} > top{i - 1}"
            text += f"real top{i} = {greater} ? x{i} : top{i - 1}; real who{i} = {greater} ? {i} : who{i - 1};"
        return text

    def prepare(self, shapes: list) -> list:
        same_shapes(self, shapes)
        self.shape = (math.prod(shapes[0]),)
        inputs = {f"x{i}": self.shape for i in range(self.bottom_count)}
        self.forward_program = programs.make(self.context, self.forward_text, inputs, {"y": None})
        self.backward_programs: dict = {}
        return shapes[:1]

    def compute(self, bottom: Any, top: Any) -> None:
        buffers = {f"x{i}": buffer(bottom[i].data) for i in range(self.bottom_count)}
        buffers["y"] = buffer(top[0].data)
        self.forward_program.run(buffers)

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        wanted = tuple(i for i in range(self.bottom_count) if propagate_down[i])
        if not wanted:
            return
        if wanted not in self.backward_programs:
            self.backward_programs[wanted] = self.plan_backward(wanted)
        program = self.backward_programs[wanted]
        buffers = {"dy": buffer(top[0].diff)}
        for i in range(self.bottom_count):
            if f"x{i}" in program.names:
                buffers[f"x{i}"] = buffer(bottom[i].data)
            if i in wanted:
                buffers[f"dx{i}"] = buffer(bottom[i].diff)
        program.run(buffers)

    def plan_backward(self, wanted: tuple) -> programs.Program:
        """Plan the gradients of some of the bottoms."""
        text = " ".join(f"dx{i} = {self.gradients[i]};" for i in wanted)
        if self.operation == "MAX":
            text = self.winner([f"x{i}" for i in range(self.bottom_count)]) + text
        shapes = {"dy": self.shape, **{f"x{i}": self.shape for i in range(self.bottom_count)}}
        return programs.make(self.context, text, shapes, {f"dx{i}": None for i in wanted})
