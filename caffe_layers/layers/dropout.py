"""The dropout layer; its random numbers are its own and follow from Caffe's seed."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.caffe_layers.layers.layer import TRAIN
from clgraft.caffe_layers.prototxt import schema
from clgraft.core.nn import dropout
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.dropout.problem import KEY_WORDS

HALVES = "type: 'uniform' min: 0 max: 65536"  # 16 bits of the seed each
HALF = 65535
WORD = 2**32


class OclDropout(BuiltLayer):
    """When training, every element is multiplied by 1 / (1 - dropout_ratio), or with that probability by 0.

    The seed is drawn from Caffe's random numbers at the first training forward, so `random_seed` makes runs repeat;
    the numbers are not those of Caffe's own layer. The gradient draws them again. A dropout_ratio of 0 is the identity.
    """

    word: ClassVar[str] = "dropout"
    given: ClassVar[tuple] = ("key",)

    def configure(self, shapes: list) -> None:
        ratio = self.parameters.dropout_param.dropout_ratio
        self.expect(0 <= ratio < 1, f"dropout_ratio {ratio}", "a number from 0 to below 1")
        self.ratio = ratio
        self.drops = self.phase == TRAIN and ratio > 0
        self.key = np.zeros(KEY_WORDS, np.uint32)
        self.count = -1

    def build(self, build: Build, bottoms: list, blobs: list, key: Tensor) -> Tensor:
        return dropout.dropout(build, bottoms[0], key, self.ratio) if self.drops else dropout.same(build, bottoms[0])

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
