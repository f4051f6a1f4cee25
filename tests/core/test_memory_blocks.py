"""Blocks of arrays that lie alike."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from clgraft.core.model.memory import APART, Block, Memory
from clgraft.core.session.context import Context

SHAPES = [(3, 5), (APART,), (1,), (2, APART + 1)]


@pytest.fixture(params=["in place", "staged"])
def memory(request, context):
    if request.param == "in place":
        return Memory(context)
    device = dataclasses.replace(context.device, host_access="staged")
    return Memory(Context(context.cl_context, context.cl_device, context.queue, device=device))


def test_arrays_are_parts_of_the_whole(memory, rng):
    block = Block(memory, SHAPES)
    arrays = {kind: [block.array(kind, place) for place in range(len(SHAPES))] for kind in ("weight", "gradient")}
    values = {kind: [rng.standard_normal(shape, np.float32) for shape in SHAPES] for kind in arrays}
    for kind, parts in arrays.items():
        for array, elements in zip(parts, values[kind]):
            assert array.shape == elements.shape and array.flags.c_contiguous
            assert not memory.elements(array).any()
            memory.change(array, elements)
    starts = [0, APART, 2 * APART, 3 * APART, 6 * APART]
    for kind in arrays:
        whole = memory.elements(block.whole(kind, 0, 3))
        expected = np.zeros(6 * APART, np.float32)
        for start, elements in zip(starts, values[kind]):
            expected[start : start + elements.size] = elements.ravel()
        np.testing.assert_array_equal(whole, expected)
        np.testing.assert_array_equal(memory.elements(block.whole(kind, 1, 2)), expected[APART : 3 * APART])


def test_a_place_is_given_once_until_it_is_left(memory):
    block = Block(memory, SHAPES)
    first = block.array("weight", 1)
    assert block.array("weight", 1) is None
    assert block.array("weight", 1, "float16").dtype == np.float16  # others of this kind
    assert block.array("weight", 2) is not None
    del first
    assert block.array("weight", 1) is not None
