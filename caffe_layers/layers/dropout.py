"""The dropout layer; its random numbers are its own and follow from Caffe's seed."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from clgraft import core
from clgraft.caffe_layers.layers.layer import TRAIN, OclLayer, buffer
from clgraft.caffe_layers.prototxt import schema
from clgraft.core.operators.dropout.problem import KEY_WORDS

HALVES = "type: 'uniform' min: 0 max: 65536"  # 16 bits of the seed each
HALF = 65535
WORD = 2**32


class OclDropout(OclLayer):
    """When training, every element is multiplied by 1 / (1 - dropout_ratio), or with that probability by 0.

    The seed is drawn from Caffe's random numbers at the first training forward, so `random_seed` makes runs repeat;
    the numbers are not those of Caffe's own layer. The gradient draws them again. A dropout_ratio of 0 is the identity.
    """

    word: ClassVar[str] = "dropout"
    given: ClassVar[tuple] = ("key",)

    def configure(self, shapes: list) -> None:
        ratio = self.parameters.dropout_param.dropout_ratio
        self.expect(0 <= ratio < 1, f"dropout_ratio {ratio}", "a number from 0 to below 1")
        self.rate = (1 - ratio, 1 / (1 - ratio))
        self.drops = self.phase == TRAIN and ratio > 0
        self.key = np.zeros(KEY_WORDS, np.uint32)
        self.count = -1

    def prepare(self, shapes: list) -> list:
        self.problem = core.DropoutProblem("forward", "dropout", shapes[0])
        self.same = core.PointwiseProblem((tuple(shapes[0]),), "y0 = x0;")
        return shapes

    def begin(self) -> None:
        """Set the next key, and before the first one the seed."""
        if not self.drops:
            return
        if self.count < 0:
            filler = schema.parse("FillerParameter", HALVES)
            halves = [min(int(number), HALF) for number in self.drawn((4,), filler)]
            self.key[:2] = halves[0] | halves[1] << 16, halves[2] | halves[3] << 16
        self.count += 1
        self.key[3] = self.count % WORD

    def apply(self, problem: core.DropoutProblem, source: np.ndarray, target: np.ndarray) -> None:
        """Multiply; the identity where nothing is dropped."""
        if not self.drops:
            self.context.plan(self.same).execute((buffer(source), buffer(target)))
            return
        key = core.Buffer(self.key.ctypes.data, self.key.nbytes, "int32")
        self.context.plan(problem).execute((buffer(source), key, buffer(target)), self.rate)

    def compute(self, bottom: Any, top: Any) -> None:
        if self.drops or not self.in_place:
            self.apply(self.problem, bottom[0].data, top[0].data)

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0] and (self.drops or not self.in_place):
            self.apply(self.problem.with_direction("backward"), top[0].diff, bottom[0].diff)
