"""The training batch norm of GPUs in one launch: against float64, at any address, and what it declines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.batchnorm import channels, generated, rows_gpu, rows_teams
from clgraft.core.problem import ceil_div
from clgraft.core.runtime.toolchains.nvidia import REGISTERS, units_of
from clgraft.core.session.context import Context
from tests.core.pointwise_checks import MACHINES, planning_for
from tests.core.test_batchnorm import (
    EPS,
    SCALARS,
    check,
    check_nan_stays_in_its_channel,
    parse,
    random_arrays,
    reference,
    with_activation,
)

# channels that registers hold, in vectors and one by one; in parts; of one row, and of a few elements
LINES = (
    "n8 c5 s196",
    "n5 c3 s49",
    "n3 c2 s12544",
    "n33 c2 s2001",
    "n5 c40 s10000",
    "n1 c3 s9",
    "f16 n4 c6 s36",
    "bf16 n5 c3 s500",
    "f64 n4 c3 s35",
    "n13 c2 s49",
)
GPU = MACHINES[1]
DIRECTION = "forward_training"


def run_into_nan(problem, arrays, algorithm="channels"):
    results = {a.name: np.full(a.shape, np.nan, a.dtype) for a in problem.arguments() if a.role == "out"}
    with planning_for(GPU) as context:
        plan = context.plan(problem, algorithm=algorithm)
        plan.run(scalars={"eps": EPS, **SCALARS.get(problem.activation, {})}, **arrays, **results)
    return results


@pytest.mark.parametrize("direction", ["forward_training", "backward_training"])
@pytest.mark.parametrize("line", LINES)
def test_matches_float64(line: str, direction: str) -> None:
    problem = parse(f"batchnorm {line}", direction)
    arrays = random_arrays(problem, 3.0)
    check(run_into_nan(problem, arrays), reference(problem, arrays), problem.dtype, 300)
    first = run_into_nan(problem, arrays)
    again = run_into_nan(problem, arrays)
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)


@pytest.mark.parametrize(
    ("line", "direction", "group"),
    [
        ("n8 c2 s3136", "forward_training", 512),
        ("f16 n7 c2 s3136", "backward_training", 512),
        ("n16 c2 s3136", "forward_training", 256),
    ],
)
def test_devices_with_many_registers_hold_longer_channels(line: str, direction: str, group: int) -> None:
    problem = parse(f"batchnorm {line}", direction)
    context = Context.on(None)
    changes = {"is_cpu": False, "is_gpu": True, "compute_units": 2, "registers": REGISTERS}
    context.device = replace(context.device, **changes)
    arrays = random_arrays(problem, 3.0)
    results = {a.name: np.full(a.shape, np.nan, a.dtype) for a in problem.arguments() if a.role == "out"}
    (launch,) = channels.plan(problem, context).launches
    assert (launch.global_size, launch.local_size) == ((2 * group,), (group,))
    context.plan(problem, algorithm="channels").run(scalars={"eps": EPS}, **arrays, **results)
    check(results, reference(problem, arrays), problem.dtype, 300)
    context.device = replace(context.device, compute_units=3)
    launch = channels.plan(problem, context).launches[0]
    assert launch.local_size == (1024,) or "batchnorm_channels" not in launch.kernel.function_name


def teams_plan(monkeypatch, problem):
    """Return a plan of the kernels in which work-groups meet; on a CPU device each team is one work-group."""
    context = Context.on(None)
    if context.device.is_gpu and not context.device.runs_groups_at_once:
        pytest.skip("as one work-group a team is too large for this device")
    context.device = replace(context.device, is_cpu=False, is_gpu=True, registers=REGISTERS)
    monkeypatch.setattr(channels, "MOST_HELD", 0)  # one work-group keeps no channel
    monkeypatch.setattr(channels, "LONE_GROUPS", dict.fromkeys(channels.GROUPS, ()))
    launches = channels.plan(problem, context)
    (launch,) = launches.launches
    assert "batchnorm_teams" in launch.kernel.function_name
    return context.plan_launches(problem, launches, "channels")


def test_teams_that_a_device_cannot_run_at_once_do_not_meet() -> None:
    context = Context.on(None)
    changes = {"is_cpu": False, "is_gpu": True, **units_of(90)}
    problem = parse("batchnorm n64 c256 s3136", "forward_training")  # 25 work-groups for each channel
    for units, launches in ((50, 1), (49, 2)):
        context.device = replace(context.device, **changes, compute_units=units)
        assert len(channels.plan(problem, context).launches) == launches


@pytest.mark.parametrize("activation", ["", "relu"])
@pytest.mark.parametrize("direction", ["forward_training", "backward_training"])
@pytest.mark.parametrize("line", ["n16 c2 s3136", "f16 n9 c3 s2116"])
def test_work_groups_that_meet(monkeypatch: pytest.MonkeyPatch, line: str, direction: str, activation: str) -> None:
    if activation:
        problem, arrays = with_activation(f"batchnorm {line}", direction, activation)
    else:
        problem = parse(f"batchnorm {line}", direction)
        arrays = random_arrays(problem, 3.0)
    plan = teams_plan(monkeypatch, problem)
    results = {a.name: np.full(a.shape, np.nan, a.dtype) for a in problem.arguments() if a.role == "out"}
    for _ in range(2):  # the counters are 0 again
        plan.run(scalars={"eps": EPS}, **arrays, **results)
    exact = reference(problem, arrays)
    if activation and direction == "forward_training":  # any shift will do: the same norm
        shift = exact.pop("shift") - results.pop("shift").astype(np.float64)
        exact["offset"] = exact["offset"] - shift * exact["scale"]
    check(results, exact, problem.dtype, 300)


@pytest.mark.parametrize("direction", ["forward_training", "backward_training"])
@pytest.mark.parametrize("line", ["n13 c2 s49", "n3 c2 s12544"])
def test_places_in_64_bits(monkeypatch: pytest.MonkeyPatch, line: str, direction: str) -> None:
    """What large tensors need gives the same bits."""
    problem = parse(f"batchnorm {line}", direction)
    arrays = random_arrays(problem, 3.0)
    narrow = run_into_nan(problem, arrays)
    monkeypatch.setattr(channels, "COUNTED_IN_32_BITS", 1)
    with planning_for(GPU) as context:
        wide = context.plan_launches(problem, channels.plan(problem, context), "channels")
        results = {name: np.full_like(array, np.nan) for name, array in narrow.items()}
        wide.run(scalars={"eps": EPS}, **arrays, **results)
    assert all(results[name].tobytes() == narrow[name].tobytes() for name in narrow)


@pytest.mark.parametrize("activation", ["relu", "clip"])
@pytest.mark.parametrize("direction", ["forward_training", "backward_training"])
@pytest.mark.parametrize("line", [LINES[0], LINES[2], LINES[4], LINES[5]])
def test_activations(line: str, direction: str, activation: str) -> None:
    problem, arrays = with_activation(f"batchnorm {line}", direction, activation)
    results = run_into_nan(problem, arrays)
    exact = reference(problem, arrays)
    if direction == "forward_training":  # any shift will do: the same norm
        shift = exact.pop("shift") - results.pop("shift").astype(np.float64)
        exact["offset"] = exact["offset"] - shift * exact["scale"]
    check(results, exact, problem.dtype, 300)


@pytest.mark.parametrize("line", ["n2 c3 s49", "n5 c3 s10000"])
def test_nan_stays_in_its_channel(line: str) -> None:
    check_nan_stays_in_its_channel(run_into_nan, line)


@pytest.mark.parametrize(("mean", "outlier"), [(1000.0, None), (-3e4, None), (1000.0, 0.0), (1000.0, 1e4)])
@pytest.mark.parametrize("line", ["n32 c2 s100", "n33 c1 s2001", "n16 c1 s4096"])
def test_large_means_keep_their_digits(line: str, mean: float, outlier: float | None) -> None:
    """Also where the first image, from which the shift of long channels is taken, is constant and far away."""
    problem = parse(f"batchnorm {line}", "forward_training")
    arrays = random_arrays(problem, mean)
    if outlier is not None:
        arrays["x"][0] = outlier
    exact = reference(problem, arrays)
    results = run_into_nan(problem, arrays)
    assert (np.abs(results["mean"] - exact["mean"]) <= 2.0**-23 * abs(mean) + 1e-6 * np.sqrt(exact["var"])).all()
    np.testing.assert_allclose(results["var"], exact["var"], rtol=1e-5)
    np.testing.assert_allclose(results["y"], exact["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("direction", ["forward_training", "backward_training"])
@pytest.mark.parametrize(
    ("line", "algorithm"),
    [("n3 c2 s20", "channels"), ("f16 n300 c12 s1", "rows_gpu"), ("f16 n3000 c12 s1", "rows_gpu")],
)
def test_addresses_and_write_modes(line: str, algorithm: str, direction: str) -> None:
    """Four elements are read at once only where memory allows it; outputs are added to, or left out."""
    problem = parse(f"batchnorm {line}", direction)
    arrays = random_arrays(problem)
    aligned = run_into_nan(problem, arrays, algorithm)
    with planning_for(GPU) as context:
        plan = context.plan(problem, algorithm=algorithm)
        for shifted in (*(a.name for a in problem.arguments() if len(a.shape) == 3), "none of them"):
            given = {}
            for argument in problem.arguments():
                whole = np.full(argument.size + 8, np.nan, argument.dtype)
                part = whole[int(argument.name == shifted) :][: argument.size].reshape(argument.shape)
                part[...] = arrays.get(argument.name, np.nan)
                given[argument.name] = part
            plan.run(scalars={"eps": EPS}, **given)
            assert all(np.array_equal(given[name], array) for name, array in aligned.items())
        for name, array in aligned.items():
            target = np.full_like(array, 2)
            others = dict.fromkeys(set(aligned) - {name})
            plan.run(scalars={"eps": EPS}, **arrays, **others, **{name: core.accumulate(target)})
            rounding = 1e-6 if array.dtype == np.float32 else 2e-3
            np.testing.assert_allclose(target, array + 2, rtol=rounding, atol=rounding)


def test_what_it_declines() -> None:
    with pytest.raises(Declined, match="made for GPUs"), planning_for("a CPU") as context:
        channels.plan(parse("batchnorm n3 c2 s20", "forward_training"), context)
    with planning_for(GPU) as context:
        for line, direction, reason in (
            ("n3 c2 s20", "forward_inference", "forward_inference"),
            ("n0 c2 s20", "forward_training", "0 elements"),
            ("n64 c2 s1", "backward_training", "1 pixels"),
        ):
            problem = parse(f"batchnorm {line}", direction)
            with pytest.raises(Declined, match=reason):
                channels.plan(problem, context)
            assert generated.plan(problem, context).launches or not problem.batch


def expect_right_twice(problem: core.Problem) -> None:
    """Run a problem of rows twice: right, with the same bits."""
    far = problem.direction == "forward_training" and problem.dtype == "float32"
    arrays = random_arrays(problem, 1000.0 if far else 3.0)
    first = run_into_nan(problem, arrays, "rows_gpu")
    check(first, reference(problem, arrays), problem.dtype, 300)
    again = run_into_nan(problem, arrays, "rows_gpu")
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)


# a few rows, channels one by one, many channels, several parts of which the last is short
@pytest.mark.parametrize(
    "line", ["n3 c7 s1", "n1601 c20 s1", "f16 n999 c160 s1", "bf16 n1203 c36 s1", "f64 n1501 c6 s1"]
)
@pytest.mark.parametrize("direction", ["forward_training", "backward_training"])
@pytest.mark.usefixtures("rows_in_several_launches")
def test_rows_of_channels(line: str, direction: str) -> None:
    """Where a pixel's channels lie together."""
    expect_right_twice(parse(f"batchnorm {line}", direction))


# a few rows, channels one by one, several blocks of channels of which the last is short
@pytest.mark.parametrize("line", ["n3 c7 s1", "n601 c20 s1", "f16 n999 c164 s1", "bf16 n1203 c36 s1", "f64 n501 c6 s1"])
@pytest.mark.parametrize("direction", ["forward_training", "backward_training"])
def test_few_rows_of_channels(line: str, direction: str) -> None:
    """One launch serves those that a work-group holds."""
    problem = parse(f"batchnorm {line}", direction)
    expect_right_twice(problem)
    with planning_for(GPU) as context:
        chosen = context.choose(problem)
    assert chosen.algorithm == "rows_gpu" and len(chosen.launches.launches) == 1


def rows_of_teams(monkeypatch: pytest.MonkeyPatch, problem: core.Problem) -> core.Plan:
    """Return a plan of small work-groups that meet; on a CPU device each team is one work-group."""
    context = Context.on(None)
    if context.device.is_gpu and not context.device.runs_groups_at_once:
        pytest.skip("as one work-group a team is too large for this device")
    monkeypatch.setattr(rows_teams, "GROUPS", (64,))
    monkeypatch.setattr(rows_teams, "MOST_TEAM", 16)
    changes = {"is_cpu": False, "is_gpu": True, "registers": REGISTERS, "max_work_group_size": 1024}
    context.device = replace(context.device, **changes)
    launches = rows_teams.plan(problem, context)
    assert launches.workspace_bytes  # they meet
    return context.plan_launches(problem, launches, "rows_gpu")


@pytest.mark.parametrize("activation", ["", "relu", "clip"])
@pytest.mark.parametrize("direction", ["forward_training", "backward_training"])
@pytest.mark.parametrize("line", ["n601 c20 s1", "f16 n1333 c36 s1", "bf16 n1203 c8 s1", "f64 n301 c7 s1"])
def test_parts_of_rows_that_meet(monkeypatch: pytest.MonkeyPatch, line: str, direction: str, activation: str) -> None:
    """The last part is short; parts of rows may have means of their own."""
    if activation:
        problem, arrays = with_activation(f"batchnorm {line}", direction, activation)
    else:
        problem = parse(f"batchnorm {line}", direction)
        arrays = random_arrays(problem, 3.0)
        if problem.dtype == "float32" and direction == "forward_training":
            arrays["x"] = arrays["x"] + np.linspace(990, 1010, len(arrays["x"]), dtype="float32").reshape(-1, 1, 1)
    plan = rows_of_teams(monkeypatch, problem)
    results = {a.name: np.full(a.shape, np.nan, a.dtype) for a in problem.arguments() if a.role == "out"}
    for _ in range(2):  # the counters are 0 again
        plan.run(scalars={"eps": EPS, **SCALARS.get(activation, {})}, **arrays, **results)
    exact = reference(problem, arrays)
    if activation and direction == "forward_training":  # any shift will do: the same norm
        shift = exact.pop("shift") - results.pop("shift").astype(np.float64)
        exact["offset"] = exact["offset"] - shift * exact["scale"]
    check(results, exact, problem.dtype, 300)


def test_teams_of_rows_need_a_device_that_runs_them_at_once() -> None:
    context = Context.on(None)
    changes = {"is_cpu": False, "is_gpu": True, **units_of(90), "max_work_group_size": 1024}
    problem = parse("batchnorm f16 n6272 c64 s1", "forward_training")  # 4 work-groups for each of 4 blocks of channels
    for units, registers, fits in ((16, REGISTERS, True), (15, REGISTERS, False), (16, REGISTERS - 1, False)):
        context.device = replace(context.device, **changes)
        context.device = replace(context.device, compute_units=units, registers=registers)
        if fits:
            (launch,) = rows_teams.plan(problem, context).launches
            assert launch.global_size == (4 * 4 * 4, 128) and launch.local_size == (4, 128)
        else:
            with pytest.raises(Declined):
                rows_teams.plan(problem, context)
    context.device = replace(context.device, compute_units=1000, registers=REGISTERS)
    with pytest.raises(Declined, match="teams of 5 work-groups, expected 4"):
        rows_teams.plan(replace(problem, batch=8193), context)


@pytest.mark.parametrize(("vectors", "nbytes", "columns"), [(1, 8, 1), (5, 8, 5), (8, 8, 4), (9, 8, 5), (4, 16, 2)])
def test_columns_of_a_work_group(vectors: int, nbytes: int, columns: int) -> None:
    assert rows_teams.columns_of(vectors, nbytes) == columns


@pytest.mark.parametrize("channels", [1, 7, 36, 53, 64, 100, 256, 257, 1000])
def test_work_items_along_a_row(channels: int) -> None:
    """They fill a work-group but for a quarter, and the blocks of columns cover the row."""
    columns = rows_gpu.columns_of(channels)
    blocks = ceil_div(channels, columns)
    assert columns <= rows_gpu.COLUMNS[1] and columns >= min(channels, rows_gpu.COLUMNS[0])
    assert channels * (rows_gpu.GROUP // columns) >= 0.75 * blocks * rows_gpu.GROUP


@pytest.mark.parametrize("rows", [577, 2100])
@pytest.mark.parametrize("direction", ["forward_training", "backward_training"])
def test_rows_of_channels_with_activations(direction: str, rows: int) -> None:
    problem, arrays = with_activation(f"batchnorm n{rows} c24 s1", direction, "clip")
    results, exact = run_into_nan(problem, arrays, "rows_gpu"), reference(problem, arrays)
    if direction == "forward_training":  # any shift will do: the same norm
        shift = exact.pop("shift") - results.pop("shift").astype(np.float64)
        exact["offset"] = exact["offset"] - shift * exact["scale"]
    check(results, exact, problem.dtype, 300)


@pytest.mark.parametrize("direction", ["forward_training", "backward_training", "forward_inference"])
@pytest.mark.parametrize(
    ("line", "algorithm", "on"),
    [
        ("n8 c21 s49", "channels_cpu", "a CPU"),
        ("n5 c7 s6", "channels_cpu", "a CPU"),
        ("n1070 c20 s1", "rows_cpu", "a CPU"),
        ("n8 c3 s4100", "generated", "a CPU"),
        ("n8 c21 s49", "channels", GPU),
        ("n3 c2 s21000", "channels", GPU),
        ("f16 n3 c2 s37", "channels", GPU),
        ("n1203 c36 s1", "rows_gpu", GPU),
        ("n2203 c36 s1", "rows_gpu", GPU),
        ("n8 c21 s49", "generated", GPU),
    ],
)
def test_results_in_the_place_of_what_is_normalised(line: str, algorithm: str, on: str, direction: str) -> None:
    """As graphs lay them out: y over x, dx over dy, with the same bits."""
    problem, arrays = with_activation(f"batchnorm {line}", direction, "relu")
    results = {a.name: np.full(a.shape, np.nan, a.dtype) for a in problem.arguments() if a.role == "out"}
    ((output, given),) = ((name, problem.replaced(name)) for name in results if problem.replaced(name))
    with planning_for(on) as context:
        plan = context.plan(problem, algorithm=algorithm if direction.endswith("training") else None)
        scalars = {"eps": EPS, **SCALARS["relu"]}
        plan.run(scalars=scalars, **arrays, **results)
        own = {name: array.copy() for name, array in arrays.items()}
        inside = {name: np.full_like(array, np.nan) for name, array in results.items()}
        plan.run(scalars=scalars, **own, **{**inside, output: own[given[0]]})
    inside[output] = own[given[0]]
    assert all(np.array_equal(inside[name], array) for name, array in results.items())


@pytest.mark.parametrize("activation", ["", "relu", "clip"])
@pytest.mark.parametrize(
    ("line", "algorithm"),
    [
        ("n3 c7 s1", "rows_gpu"),
        ("n1601 c20 s1", "rows_gpu"),
        ("f16 n999 c160 s1", "rows_gpu"),
        ("bf16 n1203 c36 s1 f32_parameters", "rows_gpu"),
        ("f16 n2600 c20 s1", "rows_gpu"),
        ("bf16 n2203 c36 s1 f32_parameters", "rows_gpu"),
        ("n5 c3 s49", "generated"),
        ("f16 n4 c6 s36 f32_parameters", "generated"),
    ],
)
def test_residuals(line: str, algorithm: str, activation: str) -> None:
    """They are added before the activation, at any address, also where the result takes their place."""
    words = line.split(" f32_parameters")
    problem = parse(f"batchnorm {words[0]} {activation}{' f32_parameters' * (len(words) - 1)} residual", DIRECTION)
    assert [a.name for a in problem.arguments()] == ["x", "gamma", "beta", "residual", "y", "mean", "var"]
    assert core.parse(str(problem)) == problem
    arrays = random_arrays(problem, 3.0)
    arrays = {a.name: arrays[a.name].astype(a.dtype) for a in problem.arguments() if a.role == "in"}
    exact = reference(problem, arrays)
    plain = reference(replace(problem, residual=False), {n: a for n, a in arrays.items() if n != "residual"})
    assert not np.allclose(exact["y"], plain["y"], atol=0.1)  # it counts
    results = run_into_nan(problem, arrays, algorithm)
    check(results, exact, problem.dtype, 300)
    with planning_for(GPU) as context:
        plan = context.plan(problem, algorithm=algorithm)
        scalars = {"eps": EPS, **SCALARS.get(activation, {})}
        shifted = np.full(problem.arguments()[3].size + 1, np.nan, problem.dtype)[1:].reshape(problem.shape)
        shifted[...] = arrays["residual"]
        inside = {name: np.full_like(array, np.nan) for name, array in results.items()} | {"y": shifted}
        plan.run(scalars=scalars, **{**arrays, "residual": shifted}, **inside)
    assert all(np.array_equal(inside[name], array) for name, array in results.items())


def test_residuals_elsewhere_are_refused() -> None:
    with pytest.raises(core.ProblemError, match="forward_training"):
        parse("batchnorm n3 c7 s1 residual", "forward_inference")
    problem = parse("batchnorm n3 c2 s20 residual", DIRECTION)
    with pytest.raises(core.ProblemError, match="gradient problems"):
        problem.gradients()
    with planning_for(GPU) as context, pytest.raises(Declined, match="residual"):
        channels.plan(problem, context)
