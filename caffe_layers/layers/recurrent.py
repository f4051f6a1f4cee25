"""Recurrent layers: LSTM and RNN over steps of several streams, and one step of an LSTM."""

from __future__ import annotations

import math
from typing import ClassVar

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.core.nn import recurrent
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor


class _Recurrent(BuiltLayer):
    """Base class of both: bottoms x (steps, streams, ...), and whether a step goes on with its stream (steps, streams).

    Further ones are an input of all steps (streams, ...), and with `expose_hidden` the first states (1, streams,
    num_output), of which the last ones are tops then. Without it the first states are 0: Caffe's own layer goes on from
    those of its last forward pass, which is the same for streams that begin in the first step.

    Attributes
    ----------
    cell : str
        Of `recurrent_cells.CELLS`.
    order : str
        The gates of its weights, by their letters.
    states : int
        Arrays that steps hand on.
    """

    may_be_in_place: ClassVar[bool] = False
    bottoms: ClassVar[tuple] = (2, 5)
    tops: ClassVar[tuple] = (1, 3)
    cell: ClassVar[str]
    order: ClassVar[str]
    states: ClassVar[int] = 1

    def configure(self, shapes: list) -> None:
        given = self.parameters.recurrent_param
        self.size, exposed = given.num_output, self.states if given.expose_hidden else 0
        self.expect(self.size > 0, f"num_output {self.size}", "at least 1")
        self.static = len(shapes) == 3 + exposed
        self.expect(
            self.static or len(shapes) == 2 + exposed, f"{len(shapes)} bottom blobs", f"{2 + exposed} or one more"
        )
        self.expect(self.top_count == 1 + exposed, f"{self.top_count} top blobs", 1 + exposed)
        self.expect(len(shapes[0]) >= 2, f"shape {shapes[0]}", "at least 2 axes")
        rows, filler = len(self.order) * self.size, given.weight_filler
        blobs: list = [((rows, math.prod(shapes[0][2:])), filler), ((rows,), given.bias_filler)]
        if self.static:
            blobs.append(((rows, math.prod(shapes[2][1:])), filler))
        blobs.append(((rows, self.size), filler))
        self.make_blobs(*blobs, *self.more_blobs())

    def more_blobs(self) -> list:
        """Return further blobs, as `make_blobs` takes them."""
        return []

    def prepare(self, shapes: list) -> list:
        x, goes_on, *more = shapes
        self.expect(goes_on == x[:2], f"shape {goes_on} of bottom 1", f"{x[:2]}, steps and streams")
        self.expect(x[0] > 0, f"shape {x}", "at least 1 step")
        if self.static:
            static, *more = more
            self.expect(static[:1] == x[1:2], f"shape {static} of bottom 2", f"{x[1]} streams")
        for shape in more:
            self.expect(shape == (1, x[1], self.size), f"first states of shape {shape}", (1, x[1], self.size))
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> tuple:
        x, goes_on, *more = bottoms
        static = more.pop(0) if self.static else None
        own, rest = blobs[: 3 + self.static], blobs[3 + self.static :]
        given = {"static": static, "order": self.order}
        y, *last = recurrent.continued(build, self.cell, x, own, goes_on, more, **given)
        shape = (1, x.shape[1], self.size)  # of the last states, which have no gradient in Caffe
        tops = [build.without_gradient(moves.copied(build, one, shape)) for one in last[: self.top_count - 1]]
        return (self.shown(build, y, rest), *tops)

    def shown(self, build: Build, y: Tensor, blobs: list) -> Tensor:
        """Return the first top from the states of all steps."""
        return y


class OclLSTM(_Recurrent):
    """LSTM (Hochreiter and Schmidhuber 1997); blobs W_xc, b_c, with a static input W_xc_static, and W_hc.

    Their rows are those of the input, forget and output gate, and of the new memory.
    """

    word: ClassVar[str] = "lstm"
    cell: ClassVar[str] = "lstm"
    states: ClassVar[int] = 2
    order: ClassVar[str] = "ifog"


class OclRNN(_Recurrent):
    """``h = tanh(W_xh x + W_hh h + b_h)``, ``y = tanh(W_ho h + b_o)``; blobs in that order, W_xh_static after b_h."""

    word: ClassVar[str] = "rnn"
    cell: ClassVar[str] = "tanh"
    order: ClassVar[str] = "h"

    def more_blobs(self) -> list:
        given = self.parameters.recurrent_param
        return [((self.size, self.size), given.weight_filler), ((self.size,), given.bias_filler)]

    def shown(self, build: Build, y: Tensor, blobs: list) -> Tensor:
        return recurrent.read_out(build, y, *blobs)


class OclLSTMUnit(BuiltLayer):
    """A step of an LSTM: bottoms memory (1, streams, size), gates (1, streams, 4 size), and what goes on (1, streams).

    Tops are the new memory and the state.
    """

    word: ClassVar[str] = "lstm_unit"
    bottoms: ClassVar[tuple] = (3, 3)
    tops: ClassVar[tuple] = (2, 2)
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        memory, gates, goes_on = shapes
        self.expect(len(memory) == 3 and memory[0] == 1, f"shape {memory}", "(1, streams, size)")
        wanted = (*memory[:2], 4 * memory[2])
        self.expect(gates == wanted, f"shape {gates} of bottom 1", wanted)
        self.expect(goes_on == memory[:2], f"shape {goes_on} of bottom 2", memory[:2])
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> tuple:
        memory, gates, goes_on = bottoms
        return recurrent.lstm_unit(build, memory, gates, goes_on, OclLSTM.order)
