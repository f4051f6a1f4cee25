"""The rule of the swap on random symbols: what MXNet binds and runs does so swapped, with equal results."""

from __future__ import annotations

import contextlib

import mxnet as mx
import pytest

from tests.mxnet_ops.random_comparison import NotNative, compare_block, compare_symbol
from tests.mxnet_ops.random_symbols import make

EVERYDAY = 12  # models for every day
MODELS, CHUNK = 300, 20
CHUNKS = [range(EVERYDAY), *(range(first, first + CHUNK) for first in range(EVERYDAY, MODELS, CHUNK))]


@pytest.fixture(autouse=True)
def no_errors_are_left():
    """Wait for the errors of models that MXNet refused, which would be raised in the next test otherwise."""
    yield
    for _ in range(MODELS):
        with contextlib.suppress(mx.MXNetError):
            mx.nd.waitall()
            break


@pytest.mark.parametrize("compare", [compare_symbol, compare_block], ids=["symbol", "block"])
@pytest.mark.parametrize("seeds", CHUNKS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_what_works_in_mxnet_works_swapped(seeds, compare):
    replaced, refused = [], []
    for seed in seeds:
        try:
            replaced.append(compare(seed))
        except NotNative as reason:
            refused.append(f"{seed}: {reason}")
    assert len(replaced) > len(seeds) / 3, refused
    assert sum(count > 0 for count in replaced) > len(replaced) / 3, f"replaced operators: {replaced}"


def test_the_same_seed_makes_the_same_model():
    models = [make(7) for _ in range(2)]
    assert models[0].symbol.tojson() == models[1].symbol.tojson()
    assert models[0].requests == models[1].requests and models[0].shapes == models[1].shapes
