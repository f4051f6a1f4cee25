"""Recurrent layers of the core with PyTorch's parameters: results and gradients are those of its modules."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from clgraft import core  # noqa: E402
from clgraft.core.nn import recurrent  # noqa: E402
from clgraft.core.nn.builder import Build, Tensor  # noqa: E402
from tests.core.nn.functions import built  # noqa: E402

STEPS, BATCH, INPUTS, SIZE, LAYERS, WAYS = 5, 3, 4, 6, 2, 2
ORDER = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
MODULES = {"lstm": "LSTM", "gru": "GRU", "tanh": "RNN"}


@pytest.mark.parametrize("cell", MODULES)
def test_like_its_modules(cell: str) -> None:
    torch.manual_seed(3)
    module = getattr(torch.nn, MODULES[cell])(INPUTS, SIZE, LAYERS, bidirectional=True)
    named = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    states = ("h", "c")[: 1 + (cell == "lstm")]
    given = {"x": torch.randn(STEPS, BATCH, INPUTS)}
    given |= {name: torch.randn(LAYERS * WAYS, BATCH, SIZE) for name in states}

    def function(build: Build, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        first, parameters = rest[: len(states)], dict(zip(named, rest[len(states) :]))
        weights = [
            recurrent.Weights(*(parameters[f"{kind}_l{layer}{way}"] for kind in ORDER))
            for layer in range(LAYERS)
            for way in ("", "_reverse")
        ]
        found = recurrent.layers(build, cell, x, weights, *first, ways=WAYS)
        return tuple(one for one in found if one is not None)

    values = {name: tensor.requires_grad_() for name, tensor in given.items()}
    own = values["h"] if cell != "lstm" else (values["h"], values["c"])
    y, last = module(values["x"], own)
    expected = [y, *(last if cell == "lstm" else (last,))]
    seeds = [torch.randn_like(one) for one in expected]
    torch.autograd.backward(expected, seeds)
    arrays = {**{name: tensor.detach().numpy() for name, tensor in given.items()}, **named}
    arrays |= {f"dy{i}": seed.numpy() for i, seed in enumerate(seeds)}
    made = built(function, arrays)
    got = core.context().compile(made.graph).run(made.given(arrays))
    pairs = [(got[name], one.detach().numpy()) for name, one in zip(made.outputs, expected)]
    gradients = {**{name: one.grad for name, one in given.items()}, **{n: p.grad for n, p in module.named_parameters()}}
    pairs += [(got[made.passes.found[name]], gradient.numpy()) for name, gradient in gradients.items()]
    for found, wanted in pairs:
        assert np.abs(found.reshape(wanted.shape) - wanted).max() <= 3e-6 * np.abs(wanted).max()
