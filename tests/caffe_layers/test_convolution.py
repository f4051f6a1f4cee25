"""Convolution layers against the native ones: every shape, several bottoms, axes, shared and frozen weights."""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from caffe_nets import close, compare, gradients, inputs, layer, load, problem_lines  # noqa: E402

from clgraft import core  # noqa: E402

PROBLEMS = {name: core.parse(text) for name, text in problem_lines("conv.txt").items()}
# Caffe pads both sides alike, and a blob that never held anything is fatal to all its layers.
CAFFE = {name: problem for name, problem in PROBLEMS.items() if problem.pad_begin == problem.pad_end and problem.batch}


def repeated(name: str, values: tuple[int, ...]) -> str:
    return " ".join(f"{name}: {value}" for value in values)


def as_prototxt(problem: core.ConvProblem) -> str:
    """Write a problem as convolution_param."""
    return (
        f"convolution_param {{ num_output: {problem.out_channels} group: {problem.groups} "
        f"bias_term: {str(problem.bias).lower()} "
        + " ".join(
            repeated(name, getattr(problem, field))
            for name, field in (
                ("kernel_size", "kernel"),
                ("stride", "stride"),
                ("pad", "pad_begin"),
                ("dilation", "dilate"),
            )
        )
        + " }"
    )


@pytest.mark.parametrize("name", CAFFE)
def test_every_problem_equals_native(name):
    problem = CAFFE[name]
    x = problem.arguments()[0].shape
    cls = "OclDepthwiseConvolution" if problem.depthwise else None
    compare("Convolution", as_prototxt(problem), {"x": x}, cls=cls)
