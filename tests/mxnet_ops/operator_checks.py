"""What the suites of the MXNet operators share: evaluation of a symbol with poisoned outputs, and comparison."""

from __future__ import annotations

from dataclasses import dataclass

import mxnet as mx
import numpy as np

import clgraft.mxnet_ops  # noqa: F401  (before MXNet)

# relative to the largest value: sums of some hundred terms, rounded
TOLERANCE = {"float32": 1e-5, "float64": 1e-13, "float16": 4e-3}
MODES = ("plain", "hybrid", "static")


@dataclass
class Result:
    """What an evaluation gave, as numpy arrays."""

    outputs: list
    gradients: dict
    auxiliary: dict


def random(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def evaluate(symbol, arrays, heads=None, *, requests="write", start=None, train=True, auxiliary=None) -> Result:
    """Run a symbol forward and backward in an executor; outputs and gradients hold NaN before.

    Parameters
    ----------
    arrays : dict of str to numpy array
        The arguments.
    heads : list of numpy arrays
        Gradients of the outputs; forward only if not given.
    requests : str or dict
        Write requests of the gradients.
    start : float
        What a gradient that is added to holds before.
    """
    names = symbol.list_arguments()
    wanted = {name: requests if isinstance(requests, str) else requests[name] for name in names}
    arguments = {name: mx.nd.array(arrays[name], dtype=arrays[name].dtype) for name in names}
    gradients = {}
    for name in names:
        full = mx.nd.zeros if wanted[name] == "add" else None
        value = start if wanted[name] == "add" else np.nan
        gradients[name] = (
            full(arrays[name].shape, dtype=arrays[name].dtype) + value
            if full
            else mx.nd.full(arrays[name].shape, np.nan, dtype=arrays[name].dtype)
        )
    states = {name: mx.nd.array(value, dtype=value.dtype) for name, value in (auxiliary or {}).items()}
    executor = symbol.bind(mx.cpu(), arguments, gradients, wanted, states)
    for output in executor.outputs:
        output[:] = np.nan
    outputs = executor.forward(is_train=train)
    found = [output.asnumpy() for output in outputs]
    if heads is not None:
        executor.backward([mx.nd.array(head, dtype=head.dtype) for head in heads], is_train=train)
    mx.nd.waitall()
    return Result(
        found,
        {name: array.asnumpy() for name, array in gradients.items()},
        {name: array.asnumpy() for name, array in states.items()},
    )


def assert_close(got: np.ndarray, expected: np.ndarray, dtype: str = "float32", what: str = "") -> None:
    """Compare to rounding, relative to the largest expected value."""
    assert got.shape == expected.shape, f"{what}: got shape {got.shape}, expected {expected.shape}"
    if not expected.size:
        return
    scale = max(float(np.abs(expected).max()), 1e-30)
    error = float(np.abs(got.astype("float64") - expected.astype("float64")).max()) / scale
    assert error <= TOLERANCE[dtype], f"{what}: error {error:.2e} of the largest value, allowed {TOLERANCE[dtype]:.0e}"


def compare(ours, native, arrays, rng, *, dtype="float32", train=True, auxiliary=None, requests=None) -> None:
    """Compare outputs, every gradient under every write request, and auxiliary states with MXNet's own operator."""
    plain = evaluate(native, arrays, train=train, auxiliary=auxiliary)
    heads = [random(rng, *output.shape, dtype=output.dtype.name) for output in plain.outputs]
    expected = evaluate(native, arrays, heads, train=train, auxiliary=auxiliary)
    names = native.list_arguments()
    assert ours.list_arguments() == names
    mixes = requests or [
        "write",
        "add",
        *({name: "write" if name == lone else "null" for name in names} for lone in names[1:]),
    ]
    for mix in mixes:
        got = evaluate(ours, arrays, heads, requests=mix, start=3.0, train=train, auxiliary=auxiliary)
        for i, (one, other) in enumerate(zip(got.outputs, expected.outputs)):
            assert_close(one, other, dtype, f"output {i}")
        for name in names:
            request = mix if isinstance(mix, str) else mix[name]
            if request == "null":
                # whole numbers have no NaN
                kept = np.isnan(got.gradients[name]).all() or arrays[name].dtype.kind != "f"
                assert kept, f"gradient of {name} was written, requested null"
            elif request == "add":
                assert_close(got.gradients[name], expected.gradients[name] + 3, dtype, f"gradient of {name}, added")
            else:
                assert_close(got.gradients[name], expected.gradients[name], dtype, f"gradient of {name}")
        for name, value in expected.auxiliary.items():
            assert_close(got.auxiliary[name], value, dtype, name)


def numeric_gradients(symbol, arrays, rng, *, train=True, auxiliary=None) -> None:
    """Compare gradients with central differences along a random direction, in float64."""
    outputs = evaluate(symbol, arrays, train=train, auxiliary=auxiliary).outputs
    heads = [random(rng, *output.shape, dtype="float64") for output in outputs]
    gradients = evaluate(symbol, arrays, heads, train=train, auxiliary=auxiliary).gradients

    def value(shifted) -> float:
        found = evaluate(symbol, shifted, train=train, auxiliary=auxiliary).outputs
        return sum(float((head * output).sum()) for head, output in zip(heads, found))

    for name, array in arrays.items():
        direction, step = random(rng, *array.shape, dtype="float64"), 1e-5
        difference = value({**arrays, name: array + step * direction}) - value(
            {**arrays, name: array - step * direction}
        )
        expected = difference / (2 * step)
        got = float((gradients[name] * direction).sum())
        scale = float(np.abs(gradients[name] * direction).sum()) + 1e-12
        assert abs(got - expected) <= 1e-7 * scale, f"gradient of {name}: got {got}, numerically {expected}"


def expect_rounded_half_precision(ours, native, arrays: dict[str, np.ndarray], rng) -> None:
    """Compare a symbol on float16 with MXNet's own on the same numbers in float32."""
    wide = {key: value.astype("float32") for key, value in arrays.items()}
    head = random(rng, *evaluate(native, wide).outputs[0].shape, dtype="float16")
    expected = evaluate(native, wide, [head.astype("float32")])
    got = evaluate(ours, arrays, [head])
    assert got.outputs[0].dtype == np.float16
    assert_close(got.outputs[0], expected.outputs[0], "float16", "output")
    for key in arrays:
        assert_close(got.gradients[key], expected.gradients[key], "float16", key)
