"""Generated kernels of GPUs, which read four elements at once: shapes, broadcasts, addresses, work-items that share."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core import PointwiseProblem, Reduction
from clgraft.core.operators.pointwise import generate
from tests.core.pointwise_checks import MACHINES, ROUNDING, planning_for, run

GPU = MACHINES[1]
# name: shapes of the operands; together they are of one row, of rows that four elements divide or not, and broadcast
SHAPES = {
    "one-row": ((1021,), (1021,)),
    "rows-of-four": ((7, 3, 36), (3, 1)),
    "rows-of-any": ((5, 3, 49), (3, 1)),
    "rows-of-five": ((7, 3, 5), (3, 1)),
    "rows-of-three": ((9, 5, 3), (5, 1)),
    "rows-of-five-of-both": ((7, 1, 5), (3, 5)),
    "inner-operand": ((9, 5, 24), (24,)),
    "odd-inner-operand": ((9, 5, 27), (27,)),
    "middle-operand": ((4, 9, 20), (4, 1, 20)),
    "crossed": ((6, 1, 40), (5, 1)),
    "one-number": ((3, 700), (1, 1)),
    # whole work-groups without branches, and a rest
    "groups-of-rows": ((35, 9, 24), (35, 1, 24)),
    "groups-of-crossed-rows": ((7, 1, 9, 24), (5, 1, 1)),
    "groups-of-one-number": ((3, 2700), (1, 1)),
}


@pytest.mark.parametrize("dtype", ["", "f16 ", "f64 "])
@pytest.mark.parametrize("name", SHAPES)
def test_maps(name: str, dtype: str) -> None:
    first, second = ("[" + ",".join(map(str, shape)) + "]" for shape in SHAPES[name])
    problem = core.parse(f"pointwise {dtype}x0{first} x1{second} : y0 = x0 * x1 - 1; y1 = x0 > x1 ? x0 : x1")
    rng = np.random.default_rng(1)
    arrays = {a.name: rng.standard_normal(a.shape).astype(a.dtype) for a in problem.arguments() if a.role == "in"}
    exact = [array.astype("float64") for array in arrays.values()]
    with planning_for(GPU) as context:
        assert [step.kernel.function_name for step in context.choose(problem).launches.launches] == ["pointwise_quads"]
        results = run(context, problem, arrays)
        sums = {"y0": core.accumulate(np.full_like(results["y0"], 2)), "y1": None}
        context.plan(problem).run(**arrays, **sums)
    unit = 2 * ROUNDING[problem.dtype]
    np.testing.assert_allclose(results["y0"], exact[0] * exact[1] - 1, rtol=unit, atol=unit * 16)
    np.testing.assert_array_equal(results["y1"], np.maximum(*exact))
    np.testing.assert_allclose(sums["y0"].array, exact[0] * exact[1] + 1, rtol=2 * unit, atol=unit * 16)


@pytest.mark.parametrize("name", ["rows-of-any", "crossed", "groups-of-crossed-rows"])
def test_positions_too_large_for_multiplications(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "MOST_DIVIDED", 0)
    test_maps(name, "")


@pytest.mark.parametrize("dtype", ["", "f16 ", "f64 "])
@pytest.mark.parametrize("length", [1021, 2048, 2052, 5001])
def test_maps_of_one_input(length: int, dtype: str) -> None:
    """A work-item has two quads, of which the last ones are not whole or not there."""
    problem = core.parse(f"pointwise {dtype}x0[{length}] : y0 = x0 > 0 ? x0 : 0")
    x = np.random.default_rng(2).standard_normal(length).astype(problem.dtype)
    with planning_for(GPU) as context:
        (launch,) = context.choose(problem).launches.launches
        assert (launch.global_size, launch.local_size) == ((-(-length // 1024) * 128,), (128,))
        results = run(context, problem, {"x0": x})
        large = core.parse(f"pointwise x0[{context.device.kept_in_caches // 4}] : y0 = x0 * x0")
        (launch,) = context.choose(large).launches.launches
        assert launch.global_size == (context.device.kept_in_caches // 16,), "results past the caches gain nothing"
    np.testing.assert_array_equal(results["y0"], np.maximum(x, 0))


def test_a_long_sum_has_few_parts() -> None:
    """As many as a device's units run at once: a second launch reads them one after the other."""
    problem = core.parse("pointwise x0[300001] y0=sum[0] : y0 = x0")
    x = np.random.default_rng(2).standard_normal(300001).astype(np.float32)
    with planning_for(GPU) as context:
        first, second = context.choose(problem).launches.launches
        assert (first.global_size, second.kernel.function_name) == ((4 * 256,), "reduce_finish")
        results = run(context, problem, {"x0": x})
    np.testing.assert_allclose(results["y0"], x.sum(dtype=np.float64), rtol=1e-4)


@pytest.mark.parametrize("dtype", ["", "f16 ", "f64 "])
@pytest.mark.parametrize("length", [400, 403])
def test_maps_at_every_address(length: int, dtype: str) -> None:
    """Nothing next to the output is written, wherever operands begin."""
    problem = core.parse(f"pointwise {dtype}x0[{length}] x1[{length}] : y0 = x0 - x1")
    with planning_for(GPU) as context:
        plan = context.plan(problem)
        for offsets in ((0, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 3), (1, 1, 1)):
            blocks = np.random.default_rng(0).integers(-9, 9, (3, length + 12)).astype(problem.dtype)
            x0, x1, y0 = (block[4 + offset :][:length] for block, offset in zip(blocks, offsets))
            around = blocks[2].copy()
            around[4 + offsets[2] :][:length] = x0 - x1
            plan.run(x0=x0, x1=x1, y0=y0)
            np.testing.assert_array_equal(blocks[2], around)


def test_a_map_in_place() -> None:
    problem = core.parse("pointwise x0[5,3,49] x1[3,1] : y0 = x0 * x1")
    x = np.random.default_rng(0).standard_normal((5, 3, 49)).astype("float32")
    scale = np.array([[2], [3], [-1]], "float32")
    expected = x * scale
    with planning_for(GPU) as context:
        context.plan(problem).run(x0=x, x1=scale, y0=x)
    np.testing.assert_array_equal(x, expected)


FOLDS = (
    "x0[40,32] y0=sum[1]",  # eight work-items of a group share a row
    "x0[37,49] y0=sum[1]",
    "x0[11,300] y0=sum[1]",
    "x0[3,5,4000] y0=sum[0,2]",
    "x0[3,5,4001] y0=sum[0,2]",
    "x0[7,5,12,33] y0=sum[0,2,3]",
    "x0[90001] y0=sum[0]",
    "x0[64,1,260] x1[3,1] y0=sum[0,2]",
)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", ["", "f16 ", "f64 "])
@pytest.mark.parametrize("text", FOLDS)
def test_folds(text: str, dtype: str, offset: int) -> None:
    value = "x0 * x1" if "x1" in text else "x0"
    problem = core.parse(f"pointwise {dtype}{text} y1=max{text.split('y0=sum')[1]} : y0 = {value}; y1 = {value}")
    rng = np.random.default_rng(2)
    arrays = {}
    for argument in problem.arguments():
        if argument.role == "in":
            block = rng.standard_normal(argument.size + offset).astype(argument.dtype)
            arrays[argument.name] = block[offset:].reshape(argument.shape)
    exact = arrays["x0"].astype("float64") * arrays.get("x1", np.ones(())).astype("float64")
    axes = tuple(int(a) for a in text.split("sum[")[1][:-1].split(","))
    with planning_for(GPU) as context:
        assert context.choose(problem).launches.launches[0].kernel.function_name == "reduce_groups"
        results = run(context, problem, arrays)
    arithmetic = ROUNDING["float64" if problem.dtype == "float64" else "float32"]
    allowed = 12 * arithmetic * np.abs(exact).sum(axes) + 2 * ROUNDING[problem.dtype] * np.abs(exact.sum(axes))
    assert (np.abs(results["y0"] - exact.sum(axes)) <= allowed).all()
    np.testing.assert_allclose(results["y1"], exact.max(axes), rtol=2 * ROUNDING[problem.dtype])


def keys_of(context: core.Context, problem: core.Problem, kernel: str) -> set[bytes]:
    """Return the programs of a problem's launches of a kernel."""
    launches = [launch for launch in context.choose(problem).launches.launches if launch.kernel.function_name == kernel]
    assert launches, (problem, kernel)
    return {launch.kernel.key for launch in launches}


def test_maps_of_all_broadcasts_share_programs() -> None:
    """Shapes, operands that walk rows or not: one program, one where fours are of two rows, another for none."""
    broadcast, same = set(), set()
    with planning_for(GPU) as context:
        for first, second in SHAPES.values():
            problem = PointwiseProblem((first, second), "y0 = x0 * x1 - 2;")
            (same if first == second else broadcast).update(keys_of(context, problem, "pointwise_quads"))
        same |= keys_of(context, PointwiseProblem(((9, 11, 13),) * 2, "y0 = x0 * x1 - 2;"), "pointwise_quads")
    assert (len(broadcast), len(same)) == (2, 1)
    assert not broadcast & same


# shapes of two operands, and the axes that are summed: other numbers of work-items share a result in each
SUMS = (
    ((6, 3, 260), (3, 1), (0, 2)),
    ((5, 7, 400), (7, 1), (0, 2)),
    ((5, 7, 400), (1, 1), (0, 2)),
    ((5, 1, 36), (7, 1), (0, 2)),
    ((9, 2, 60), (60,), (0, 2)),
    ((4, 6, 80), (4, 1, 80), (0, 2)),
)


def test_folds_of_all_broadcasts_share_a_program() -> None:
    shared, whole = set(), set()
    rng = np.random.default_rng(4)
    with planning_for(GPU) as context:
        for first, second, axes in SUMS:
            reduction = Reduction("sum", axes)
            problem = PointwiseProblem((first, second), "y0 = x0 * x1;", (reduction,))
            walking = len(second) > 0 and second[-1] > 1
            (whole if walking else shared).update(keys_of(context, problem, "reduce_groups"))
            x, w = rng.integers(-4, 5, first).astype("float32"), rng.integers(-4, 5, second).astype("float32")
            np.testing.assert_array_equal(run(context, problem, {"x0": x, "x1": w})["y0"], (x * w).sum(axes))
    assert (len(shared), len(whole)) == (1, 1)


def test_small_maps_of_all_broadcasts_share_a_program() -> None:
    keys = set()
    with planning_for(GPU) as context:
        for shapes in (((3, 4), (4,)), ((5, 1), (1, 3)), ((2, 3, 4), (3, 1)), ((7,), (7,)), ((6, 2), ())):
            keys |= keys_of(context, PointwiseProblem(shapes, "y0 = x0 + 3 * x1;"), "pointwise_elements")
    assert len(keys) == 1


@pytest.mark.parametrize("dtype", ["", "f16 ", "bf16 ", "f64 "])
@pytest.mark.parametrize("shape", [(300, 49), (7, 43, 33), (3, 128, 321), (259, 511)])
def test_short_rows_are_folded_in_local_memory(shape: tuple[int, ...], dtype: str) -> None:
    """Rows of a length that four elements do not divide; the last work-group has few, and of any number of elements."""
    size = ",".join(map(str, shape))
    axis = len(shape) - 1
    problem = core.parse(f"pointwise {dtype}x0[{size}] x1[{size}] y0=sum[{axis}] : y0 = x0 * x1 + 1")
    rng = np.random.default_rng(5)
    arrays = {name: rng.standard_normal(shape).astype(problem.dtype) for name in ("x0", "x1")}
    exact = (arrays["x0"].astype("float64") * arrays["x1"].astype("float64") + 1).sum(-1)
    with planning_for(GPU) as context:
        assert [step.kernel.function_name for step in context.choose(problem).launches.launches] == ["reduce_staged"]
        got = run(context, problem, arrays)["y0"]
        added = core.accumulate(np.full_like(got, 2))
        context.plan(problem).run(**arrays, y0=added)
        memory = np.zeros(2 * arrays["x0"].size + 3, problem.dtype)
        odd = memory[3 : 3 + arrays["x0"].size].reshape(shape)
        odd[:] = arrays["x0"]
        again = np.full_like(got, np.nan)
        context.plan(problem).run(x0=odd, x1=arrays["x1"], y0=again)
    unit = ROUNDING[problem.dtype if problem.dtype == "float64" else "float32"] * 64 * shape[-1]
    allowed = unit + 2 * ROUNDING[problem.dtype] * np.abs(exact)
    assert (np.abs(got.astype("float64") - exact) <= allowed).all()
    assert (np.abs(added.array.astype("float64") - exact - 2) <= allowed + 4 * ROUNDING[problem.dtype]).all()
    np.testing.assert_array_equal(again, got)
