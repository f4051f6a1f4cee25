"""The core's optimizers with PyTorch's conventions, against PyTorch's own in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core.nn.optimizer_steps import GRADIENTS, RATES, WEIGHT, steps

torch = pytest.importorskip("torch")

CASES = [
    ("sgd", {}, torch.optim.SGD, {}),
    ("sgd", {"momentum": 0.9, "dampening": 0.3}, torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3}),
    ("nag", {"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    ("adagrad", {}, torch.optim.Adagrad, {}),
    ("rmsprop", {}, torch.optim.RMSprop, {}),
    (
        "rmsprop",
        {"momentum": 0.9, "centered": True},
        torch.optim.RMSprop,
        {"momentum": 0.9, "centered": True},
    ),
    ("adadelta", {}, torch.optim.Adadelta, {}),
    ("adam", {}, torch.optim.Adam, {}),
    ("adamw", {}, torch.optim.AdamW, {}),
]


@pytest.mark.parametrize(("kind", "options", "made", "given"), CASES)
def test_pytorchs_optimizers(kind, options, made, given):
    weight = torch.tensor(WEIGHT, requires_grad=True)
    optimizer = made([weight], lr=1.0, weight_decay=0.1, **given)
    for gradient, rate in zip(GRADIENTS, RATES):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    found = steps(kind, "pytorch", weight_decay=0.1, **options)
    np.testing.assert_allclose(found, weight.detach().numpy(), rtol=1e-12, atol=1e-12)
