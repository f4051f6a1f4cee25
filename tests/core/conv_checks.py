"""What the suites of the convolution kernels share: problem lines, data, and a bound on rounding errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import Graph
from clgraft.core.operators.conv.gemm_gpu import builder, halves
from clgraft.core.operators.conv.gemm_gpu.gemm import PORTABLE as GPU_GEMM
from clgraft.core.operators.conv.gemm_gpu.halves_tiles import HalvesTile, tiles
from clgraft.core.operators.conv.gemm_gpu.product import TileChoice
from clgraft.core.operators.conv.gemm_gpu.tile import ProductShape, Tile
from clgraft.core.operators.conv.gemm_gpu.tiles import rows
from clgraft.core.operators.fused import FusedProblem
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.halves import name_of
from clgraft.core.problem import SMALL, ceil_div
from clgraft.core.runtime.toolchains.nvidia import units_of
from clgraft.core.session.context import Context

DIRECTIONS = ("forward", "backward_data", "backward_filter")
OUTPUTS = {"forward": "y", "backward_data": "dx", "backward_filter": "dw"}
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}
ARITHMETIC = {"float32": 2.0**-24, "float16": 2.0**-24, "bfloat16": 2.0**-24, "float64": 2.0**-53}

# 5 x 5 kernels with stride 1, which suites of Winograd's method run in addition to the named problems
FIVES = {
    "plain": "conv n2 ic3 ih9 iw8 oc5 kh5 kw5 ph2 pw2",
    "bias": "conv n2 ic70 ih13 iw15 oc67 kh5 kw5 ph2 pw2 b1",
    "no-pad": "conv n3 ic16 ih5 iw7 oc24 kh5 kw5",
    "pad-4": "conv n1 ic20 ih9 iw10 oc12 kh5 kw5 ph4 pw4",
    "pad-above-kernel": "conv n1 ic2 ih4 iw5 oc3 kh5 kw5 ph5 pw6",
    "asymmetric-pad": "conv n2 ic5 ih10 iw9 oc7 kh5 kw5 ph0 pw4 qh3 qw1",
    "one-pixel": "conv n40 ic7 ih1 iw1 oc19 kh5 kw5 ph2 pw2",
    "wide-row": "conv n1 ic2 ih3 iw331 oc3 kh5 kw5 ph2 pw2",
    "f16": "conv f16 n2 ic35 ih12 iw13 oc30 kh5 kw5 ph2 pw2 b1",
}


# of products with operands of 16 bits, by their units
SMALLEST = {
    "wgmma": HalvesTile("wgmma", 64, 64, 3, 0, 64, 0, 1, 1.0, 1.0, 1.0),
    "mma": HalvesTile("mma", 64, 64, 2, 0, 32, 32, 1, 1.0, 1.0),
    **{units: tiles(units)[-1] for units in ("dpas16", "dpas8", "wmma", "mfma", "dot2")},
}


def an_h200() -> DeviceInfo:
    """Return what clgraft knows of an H200."""
    return replace(
        core.context().device,
        device_class="nvidia",
        **units_of(90),
        has_wgmma=True,
        compute_units=132,
        local_memory=48 * 1024,
        max_work_group_size=1024,
    )


def on_units(units: str) -> Context:
    """Return a context that plans for a GPU with matrix units, which kernels compute here."""
    context = Context.on(None)
    names = tuple(filter(None, (name_of(units, dtype) for dtype in SMALL)))
    changes = {"is_cpu": False, "is_gpu": True, "compute_units": 4, "max_work_group_size": 1024}
    context.device = replace(context.device, **changes, halves=names)
    return context


def run_after_sums(context: Context, graph: Graph, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a layer and a norm that takes the layer's sums twice into NaN; return the results, the same both times."""
    compiled = context.compile(graph)
    results = []
    for _ in range(2):
        given = {name: np.full(graph.values[name].shape, np.nan, graph.values[name].dtype) for name in graph.outputs}
        compiled.run({**arrays, **given})
        results.append(given)
    assert "rows_gpu after sums" in dict(compiled.report().algorithms)[str(graph.nodes[1].problem)]
    assert all(results[0][name].tobytes() == results[1][name].tobytes() for name in graph.outputs)
    return results[0]


def forced_choice(product: ProductShape, tile: Tile, parts: int) -> TileChoice:
    """Return the choice of a tile and a number of parts of the depth, whatever the device and the estimates say."""
    _, pieces = tile.counts(product)
    length = ceil_div(pieces, parts)
    return TileChoice(tile, ceil_div(pieces, length) if pieces else 1, length)


def force_choices(monkeypatch: pytest.MonkeyPatch) -> list:
    """Return a list for a tile and, if it is not 1, a number of parts, which are then chosen for every product."""
    wanted: list = []

    def choose(product: ProductShape, device: object, size: int, split: bool = True, only: object = None) -> TileChoice:
        tile, *parts = wanted
        assert tile.serves(product)
        return forced_choice(product, tile, *(parts or [1]))

    monkeypatch.setattr(builder, "choose", choose)
    return wanted


def force_smallest(forced: list, units: str, text: str, stages: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Force the smallest tile of units, by windows if these have stages; return the text in a type of the units."""
    forced[:] = [SMALLEST[units], 1]
    if stages:
        monkeypatch.setattr(halves._HalvesBuilder, "choose_windows", lambda *sizes: (SMALLEST[units], stages, 1))
    return text.replace(" bf16 ", " f16 ") if units == "dot2" else text


def force_halves(monkeypatch: pytest.MonkeyPatch) -> list:
    """Return a list for a tile, a number of parts and, if it is to be true, whether they are joined in one launch.

    They are then chosen for every product with operands of 16 bits.
    """
    wanted: list = []

    def choose(
        product: halves.Product, candidates: list, units: int, walks: bool = False, bulk: bool = False
    ) -> halves.Choice:
        tile, parts, *joined = wanted
        steps = ceil_div(product.steps, parts)
        parts = ceil_div(product.steps, steps) if steps else 1
        bulk = bulk and tile.units == "wgmma"  # other units have no boxes, also on a device that copies them
        return halves.Choice(tile, parts, steps, joined=parts > 1 and bool(joined), bulk=bulk)

    monkeypatch.setattr(halves, "choose", choose)
    return wanted


def random_arrays(problem: core.ConvProblem, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random x, w, dy and, with a bias, b."""
    rng = np.random.default_rng(seed)
    shapes = {argument.name: argument.shape for argument in problem.with_direction("forward").arguments()}
    shapes["dy"] = shapes.pop("y")
    if problem.bias:
        shapes["b"] = (problem.out_channels,)
    return {name: rng.standard_normal(shape).astype(problem.dtype) for name, shape in shapes.items()}


def whole_numbers(problem: core.ConvProblem, most: int = 9) -> dict[str, np.ndarray]:
    """Return random whole numbers for the problem's inputs, whose products and sums are exact in TF32 and float32."""
    rng = np.random.default_rng(7)
    inputs = (argument for argument in problem.arguments() if argument.role == "in")
    return {a.name: rng.integers(-most, most + 1, a.shape).astype(problem.dtype) for a in inputs}


def reference(problem: core.ConvProblem, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Compute the problem's result in float64."""
    inputs = {a.name: arrays[a.name] for a in problem.arguments() if a.role == "in"}
    (result,) = problem.reference(inputs).values()
    return result


def check(
    context: core.Context,
    problem: core.ConvProblem,
    algorithm: str | None,
    accumulate: bool = False,
    seed: int = 0,
    spread: float = 0.0,
    rounded_first: bool = False,
) -> np.ndarray:
    """Run a problem into NaN (or onto random numbers) and hold every element to the bound of its own rounding errors.

    The bound is Higham's for a sum of products, (terms + 2) * u * sum |a| |b|, plus the rounding of what is stored.
    With `spread`, every element's error may be so many times the largest bound, for methods that mix a tile's elements.
    With `rounded_first`, what is added to a result is a stored number itself.
    """
    arrays = random_arrays(problem, seed)
    exact = reference(problem, arrays)
    bound = reference(problem, {name: np.abs(array) for name, array in arrays.items()})
    output = OUTPUTS[problem.direction]
    result = np.full(exact.shape, np.nan, problem.dtype)
    added = np.abs(exact) if rounded_first else 0.0
    if accumulate:
        result[...] = base = np.random.default_rng(seed + 1).standard_normal(exact.shape).astype(problem.dtype)
        exact, bound = exact + base, bound + np.abs(base)
    plan = context.plan(problem, algorithm=algorithm)
    given = {argument.name: arrays[argument.name] for argument in plan.arguments if argument.role == "in"}
    given[output] = core.accumulate(result) if accumulate else result
    plan.run(**given)
    summing = (problem.terms + 3) * ARITHMETIC[problem.dtype] * (spread * bound.max() if spread else bound)
    storing = 2 * ROUNDING[problem.dtype] * (np.abs(exact) + added + summing)
    allowed = summing + storing + (2.0**-25 if problem.dtype == "float16" else 0)
    error = np.abs(result.astype(np.float64) - exact)
    wrong = np.argwhere(~(error <= allowed))
    assert not len(wrong), f"{problem}: {len(wrong)} of {error.size} elements wrong, first at {wrong[0]}"
    return result


def expect_little_more_error(context, problem: core.ConvProblem, algorithm: str, direct: str, mean: float) -> None:
    """Expect at most ten times the direct method's error, over all elements and in the worst one.

    `mean` is that of the data and of their gradients.
    """
    arrays = random_arrays(problem)
    for name in ("x", "dy"):
        arrays[name] += np.float32(mean)
    exact = reference(problem, arrays)
    errors = {}
    for each in (algorithm, direct):
        plan = context.plan(problem, algorithm=each)
        result = np.full(exact.shape, np.nan, np.float32)
        given = {argument.name: arrays[argument.name] for argument in plan.arguments if argument.role == "in"}
        plan.run(**given, **{OUTPUTS[problem.direction]: result})
        off = np.abs(result - exact)
        errors[each] = np.linalg.norm(off), off.max()
    assert all(got < 10 * known for got, known in zip(errors[algorithm], errors[direct]))


def expect_nan_in_its_tiles(context, problem: core.ConvProblem, algorithm: str, reached: slice, beyond: int) -> None:
    """Expect a NaN of the first image and channel, in row and column 4, to reach no results but those of its tiles.

    Zeros that fill matrices up must not meet the data: 0 * NaN is NaN. `reached` are rows and columns of results that
    read the NaN, and `beyond` is the first row after its tiles.
    """
    arrays = random_arrays(problem)
    arrays["x" if problem.direction == "forward" else "dy"][0, 0, 4, 4] = np.nan
    plan = context.plan(problem, algorithm=algorithm)
    given = {argument.name: arrays[argument.name] for argument in plan.arguments if argument.role == "in"}
    result = np.zeros(plan.arguments[-1].shape, np.float32)
    plan.run(**given, **{OUTPUTS[problem.direction]: result})
    wrong = np.isnan(result)
    assert not wrong[1:].any()
    if problem.direction == "backward_filter":
        assert wrong[0].all()
    else:
        assert wrong[0, :, reached, reached].all()
        assert not wrong[0, :, beyond:].any()


def expect_near(context, problem: core.ConvProblem, launches, algorithm: str, bound: float) -> None:
    """Run launches for a problem into NaN and expect results within a part of the largest one of float64's."""
    arrays = random_arrays(problem)
    plan = context.plan_launches(problem, launches, algorithm)
    exact = reference(problem, arrays)
    result = np.full(exact.shape, np.nan, np.float32)
    given = {argument.name: arrays[argument.name] for argument in plan.arguments if argument.role == "in"}
    plan.run(**given, **{OUTPUTS[problem.direction]: result})
    assert np.abs(result - exact).max() <= bound * np.abs(exact).max()


def expect_exact_in_tf32(problem: core.ConvProblem) -> None:
    """Expect exact results of whole numbers from the GEMM of GPUs in TF32, written and added."""
    arrays = whole_numbers(problem, 1 if problem.dtype == "float16" else 9)
    exact = reference(problem, arrays)
    plan = Context.on(None).plan(problem, algorithm="gpu_gemm")
    assert plan.precision == "tf32"
    result = np.full(exact.shape, np.nan, problem.dtype)
    output = OUTPUTS[problem.direction]
    plan.run(**arrays, **{output: result})
    np.testing.assert_array_equal(result, exact)
    plan.run(**arrays, **{output: core.accumulate(result)})
    np.testing.assert_array_equal(result, 2 * exact)


def expect_exact_at_odd_addresses(problem: core.ConvProblem, accumulate: bool = False) -> None:
    """Expect exact results of whole numbers in arrays whose first elements are at no multiple of a vector."""
    plan = Context.on(None).plan(problem, algorithm="gpu_gemm")
    arrays = whole_numbers(problem, 1 if problem.dtype in SMALL else 9)
    moved = {name: np.empty(array.size + 1, problem.dtype)[1:].reshape(array.shape) for name, array in arrays.items()}
    for name, array in arrays.items():
        moved[name][:] = array
    exact = reference(problem, arrays)
    result = np.full(exact.size + 1, 7 if accumulate else np.nan, problem.dtype)[1:].reshape(exact.shape)
    plan.run(**moved, **{OUTPUTS[problem.direction]: core.accumulate(result) if accumulate else result})
    np.testing.assert_array_equal(result, exact + 7 if accumulate else exact)


def expect_operands_rounded_to_nearest(problem: core.ConvProblem) -> None:
    """Expect that what TF32 ignores is never more than half of the last bit, and that errors have both signs."""
    arrays = {a.name: np.abs(random_arrays(problem)[a.name]) for a in problem.arguments() if a.role == "in"}
    exact = reference(problem, arrays)
    result = np.full(exact.shape, np.nan, np.float32)
    Context.on(None).plan(problem, algorithm="gpu_gemm").run(**arrays, **{OUTPUTS[problem.direction]: result})
    error = (result - exact) / exact
    assert np.abs(error).max() <= 2.0**-10 + problem.terms * 2.0**-23
    assert abs(error.mean()) < 2.0**-15 < np.abs(error).max()


def products_of(problem: core.ConvProblem, monkeypatch: pytest.MonkeyPatch) -> list[ProductShape]:
    """Return the products that the GEMM of GPUs chooses tiles for."""
    products: list[ProductShape] = []

    def choose(product: ProductShape, device: object, size: int, split: bool = True, only: object = None) -> TileChoice:
        products.append(product)
        return forced_choice(product, rows("gpu", 4)[0], 1)

    monkeypatch.setattr(builder, "choose", choose)
    context = Context.on(None)
    GPU_GEMM.plan(problem, context.planner)
    return products


def expect_what_follows(problem: FusedProblem) -> None:
    """Expect what a fused problem makes of whole numbers that the GEMM of GPUs multiplies."""
    context = Context.on(None)
    launches = GPU_GEMM.plan(problem.base, context.planner, epilogue=problem.epilogue)
    rng, scalars = np.random.default_rng(3), problem.trial_scalars()
    arrays = {
        name: rng.integers(-9, 10, np.shape(array)).astype(problem.dtype) for name, array in problem.sample(rng).items()
    }
    expected = problem.reference(arrays, scalars)["y"]
    result = np.full(expected.shape, np.nan, problem.dtype)
    context.plan_launches(problem, launches, "gpu_gemm").run(scalars=scalars, **arrays, y=result)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-3)
