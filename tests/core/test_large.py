"""Tensors over 2^31 bytes or elements: offsets are 64 bits wide. They repeat a short pattern, and so do results."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from clgraft import core
from clgraft.core import BatchNormProblem
from clgraft.core.nn import activations

GIGABYTE = 2**30


def available() -> int:
    """Bytes of memory that are available."""
    words = Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()
    return int(words[0]) * 1024


def need(gigabytes: float) -> None:
    if available() < gigabytes * GIGABYTE:
        pytest.skip(f"needs {gigabytes} GiB of memory")


@pytest.fixture(autouse=True)
def give_back():
    yield
    gc.collect()


def repeated(pattern: np.ndarray, times: int) -> np.ndarray:
    """A pattern many times."""
    out = np.empty((times, *pattern.shape), pattern.dtype)
    out[:] = pattern
    return out


def expect_repeated(got: np.ndarray, expected: np.ndarray, tolerance: float = 0.0) -> None:
    """Compare every repetition, a piece at a time; without a tolerance bit by bit."""
    if not tolerance:  # NumPy compares integers many times faster than float16
        bits = f"u{got.itemsize}"
        got, expected = got.view(bits), expected.view(bits)
    for i in range(len(got)):
        if tolerance:
            error = np.abs(got[i] - expected).max()
            assert error <= tolerance, f"repetition {i} of {len(got)}: off by {error}"
        else:
            assert np.array_equal(got[i], expected), f"repetition {i} of {len(got)}"


def run(text_or_problem, scalars=None, **arrays):
    problem = core.parse(text_or_problem) if isinstance(text_or_problem, str) else text_or_problem
    core.context().plan(problem).run(scalars, **arrays)


@pytest.mark.parametrize(("dtype", "times"), [("float32", 33), ("float16", 130)])
def test_function_per_element(dtype, times, rng):
    """9 times 2^28 bytes of float32, and more than 2^31 elements of float16, in place."""
    need(6)
    pattern = rng.standard_normal(2**24 + 3).astype(dtype)
    x = repeated(pattern, times)
    assert x.nbytes > 2**31 and (dtype == "float32" or x.size > 2**31)
    run(activations.forward("relu", x.shape, dtype), x0=x, y0=x)
    expect_repeated(x, np.maximum(pattern, 0))


def test_pooling(rng):
    need(5)
    pattern = rng.standard_normal((4099, 4096)).astype(np.float32)
    x = repeated(pattern, 33)[None]
    y = np.full((1, 33, 2049, 2048), np.nan, np.float32)
    run("pool max n1 c33 ih4099 iw4096 kh2 kw2 sh2 sw2", x=x, y=y)
    expected = pattern[:4098].reshape(2049, 2, 2048, 2).max((1, 3))
    expect_repeated(y[0], expected)


def test_batch_norm(rng):
    need(8)
    pattern = rng.standard_normal((3, 2**22 + 1)).astype(np.float32)
    x = repeated(pattern, 45)
    y = np.full_like(x, np.nan)
    gamma, beta = (rng.standard_normal(3).astype(np.float32) for _ in range(2))
    mean, var = (np.full(3, np.nan, np.float32) for _ in range(2))
    problem = BatchNormProblem("forward_training", 45, 3, 2**22 + 1)
    run(problem, {"eps": 1e-5}, x=x, gamma=gamma, beta=beta, y=y, mean=mean, var=var)
    wide = pattern.astype(np.float64)
    assert np.abs(mean - wide.mean(1)).max() < 1e-5
    assert np.abs(var - wide.var(1)).max() < 1e-5
    normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    expect_repeated(y, normal * gamma[:, None] + beta[:, None], 1e-4)


def test_convolution_reads_and_sums(rng):
    """1x1 forward and its filter's gradient over 9 channels of 2^26 pixels."""
    need(6)
    pattern = rng.standard_normal((9, 4096)).astype(np.float32)
    x = np.empty((1, 9, 16384, 4096), np.float32)
    x[:] = pattern[:, None]
    w = rng.standard_normal((2, 9, 1, 1)).astype(np.float32)
    y = np.full((1, 2, 16384, 4096), np.nan, np.float32)
    text = "n1 ic9 ih16384 iw4096 oc2 kh1 kw1"
    run(f"conv {text}", x=x, w=w, y=y)
    expected = w[:, :, 0, 0].astype(np.float64) @ pattern
    for channel in range(2):
        expect_repeated(y[0, channel], expected[channel], 1e-4)
    dw = np.full_like(w, np.nan)
    run(f"conv backward_filter {text}", x=x, dy=y, dw=dw)
    sums = 16384 * (expected @ pattern.T.astype(np.float64))
    assert np.abs(dw[:, :, 0, 0] - sums).max() < 1e-4 * np.abs(sums).max()  # 2^26 products each


@pytest.mark.parametrize("direction", ["forward", "backward_data"])
def test_depthwise_and_gather(direction, rng):
    """3x3 with padding: outputs over 2^31 bytes, by the depthwise kernels; every plane is the same."""
    need(8)
    pattern = rng.standard_normal((4099, 4096)).astype(np.float32)
    x = repeated(pattern, 33)[None]
    w = np.zeros((33, 1, 3, 3), np.float32)
    w[:, 0, 1, 1], w[:, 0, 0, 2] = 2, -1
    y = np.full_like(x, np.nan)
    names = {"forward": ("x", "y"), "backward_data": ("dy", "dx")}[direction]
    text = f"conv {direction} g33 n1 ic33 ih4099 iw4096 oc33 kh3 kw3 ph1 pw1"
    run(text, **{names[0]: x, "w": w, names[1]: y})
    wide = np.pad(pattern.astype(np.float64), 1)
    shift = {"forward": (slice(0, -2), slice(2, None)), "backward_data": (slice(2, None), slice(0, -2))}[direction]
    expect_repeated(y[0], 2 * wide[1:-1, 1:-1] - wide[shift], 1e-5)


def test_outputs_of_a_dense_convolution(rng):
    need(6)
    pattern = rng.standard_normal((2, 4096)).astype(np.float32)
    x = np.empty((1, 2, 16384, 4096), np.float32)
    x[:] = pattern[:, None]
    w = rng.standard_normal((9, 2, 1, 1)).astype(np.float32)
    y = np.full((1, 9, 16384, 4096), np.nan, np.float32)
    run("conv n1 ic2 ih16384 iw4096 oc9 kh1 kw1", x=x, w=w, y=y)
    for channel in range(9):
        expect_repeated(y[0, channel], w[channel, :, 0, 0].astype(np.float64) @ pattern, 1e-4)
