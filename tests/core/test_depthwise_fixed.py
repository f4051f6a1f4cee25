"""Depthwise convolution of planes of a fixed size on CPU devices: what is served, and every setting to the bit.

test_depthwise.py runs it over its problems, with those of the other implementations.
"""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.depthwise import cpu_fixed
from clgraft.core.operators.conv.depthwise.axes import PlaneAxis
from tests.core.conv_checks import OUTPUTS, check, random_arrays
from tests.core.guarded_memory import check_within_pages

NAME = "depthwise_fixed"

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="made for CPU devices")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("conv backward_filter g2 n1 ic2 ih5 iw5 oc2 kh3 kw3", "has no backward_filter"),
        ("conv backward_data g2 n1 ic2 ih9 iw9 oc2 kh3 kw3 sh2 sw2", "backward_data at stride 1"),
        ("conv backward_data g2 n1 ic2 ih9 iw9 oc4 kh3 kw3", "one filter a channel"),
        ("conv g2 n1 ic2 ih9 iw9 oc2 kh6 kw6", "6 x 6 taps"),
        ("conv g2 n1 ic2 ih19 iw9 oc2 kh8 kw1", "8 x 1 taps"),
        ("conv g2 n1 ic2 ih9 iw9 oc2 kh3 kw3 sh3 sw3", "strides of 1, or of 2 without dilation"),
        ("conv g2 n1 ic2 ih9 iw9 oc2 kh3 kw3 sh2 sw2 dh2 dw2", "strides of 1, or of 2 without dilation"),
        ("conv g2 n1 ic2 ih9 iw9 oc2 kh3 kw3 dh2 dw1", "dilated rows of at least"),
        ("conv g9999 n1 ic9999 ih9 iw3000 oc9999 kh3 kw3 pw1", "blocks whose lines stay in the L1 cache"),
        ("conv g9999 n1 ic9999 ih99 iw99 oc9999 kh3 kw3 dh2 dw2", "dilated rows of planes that stay in the L1 cache"),
        ("conv g2 n1 ic2 ih999 iw9 oc2 kh3 kw3", "does not cut planes into tiles"),
        ("conv g2 n1 ic2 ih60 iw9 oc2 kh3 kw3 ph20 pw1", "the first and the last rows meet alone"),
    ],
)
def test_declines(text: str, reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        cpu_fixed.plan(core.parse(text), core.context().planner)


def test_unusual_planes_build_no_programs_of_their_own(monkeypatch) -> None:
    """As images of all sizes would; for the usual sizes, and where it is asked for, it serves."""
    monkeypatch.setenv("CLGRAFT_TUNE", "off")
    for size in (7, 28, 35, 56, 112, 9, 31, 57):
        problem = core.parse(f"conv g999 n2 ic999 ih{size} iw{size} oc999 kh3 kw3 ph1 pw1")
        chosen = core.context().choose(problem)
        if size % 7 == 0:
            assert chosen.algorithm == NAME
        else:  # the other two need no program for each size; the length of vectors decides between them
            assert chosen.algorithm in ("grouped_planes", "depthwise_rows")
            assert (
                NAME,
                f"is the default for planes of usual images, got {size} elements along an axis",
            ) in chosen.declined
            assert core.context().choose(problem, NAME).algorithm == NAME


@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("most", [3, 4, 5, 6, 8])
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("size", range(1, 36))
def test_blocks_between_the_first_and_the_last_meet_no_other_rows(size: int, step: int, most: int, taps: int) -> None:
    height = PlaneAxis(size, size, taps, 1, -(taps // 2) * step, step)

    def met(rows: int) -> set[int]:
        between = []
        for d in range(step):  # the rows from d on that lie `step` apart
            count = len(range(d, size, step))
            assert count >= rows
            between += [d + (u + k) * step for u in range(rows, count - rows, rows) for k in range(rows)]
        return {u + height.begin + i * step for u in between for i in range(taps)}

    if size < step:
        with pytest.raises(Declined):
            cpu_fixed.rows_of_block(height, most)
        return
    try:
        assert met(cpu_fixed.rows_of_block(height, most)) <= set(range(size))
        assert cpu_fixed.rows_of_block(height, most) <= most
    except Declined:
        assert not any(met(rows) <= set(range(size)) for rows in range(1, min(most, size // step) + 1))


def test_vectors_are_short_only_where_rows_are() -> None:
    chosen = {width: cpu_fixed.lanes_of_rows(width, 16) for width in (1, 5, 8, 9, 16, 17, 24, 33)}
    assert chosen == {1: 4, 5: 8, 8: 8, 9: 16, 16: 16, 17: 16, 24: 16, 33: 16}


@pytest.mark.parametrize("settings", [{"rows": 0}, {"rows": 9}, {"lanes": 5}, {"items": 2}])
def test_refuses_other_settings(settings: dict[str, int]) -> None:
    with pytest.raises(Declined, match="got settings"):
        cpu_fixed.plan(core.parse("conv g2 n1 ic2 ih9 iw9 oc2 kh3 kw3"), core.context().planner, settings)


# rows that share pairs of vectors: an even and an odd number of elements, the last rows beyond the plane, two filters a
# channel, planes shorter than a vector
JOINED = (
    "conv forward bf16 g5 n3 ic5 ih14 iw14 oc5 kh3 kw3 ph1 pw1",
    "conv backward_data bf16 g5 n3 ic5 ih7 iw7 oc5 kh3 kw3 ph1 pw1",
    "conv forward bf16 g3 n2 ic3 ih13 iw13 oc3 kh5 kw5 ph2 pw2",
    "conv forward bf16 g3 n2 ic3 ih9 iw7 oc6 kh3 kw3 ph1 pw1",
    "conv forward bf16 g3 n2 ic3 ih16 iw16 oc3 kh3 kw1 ph1",
    "conv backward_data bf16 g7 n1 ic7 ih1 iw2 oc7 kh3 kw3 ph1 pw1",
)


def test_rows_are_joined_where_a_plane_fits_the_registers() -> None:
    axes = {size: PlaneAxis(size, size, 3, 1, -1, 1) for size in (5, 7, 14, 16)}
    found = {size: cpu_fixed.joined_rows(axis, axis, 32, 8) for size, axis in axes.items()}
    assert found == {5: 5, 7: 4, 14: 2, 16: 2}
    assert cpu_fixed.joined_rows(axes[14], axes[14], 32, 6) == 1
    assert cpu_fixed.joined_rows(axes[7], PlaneAxis(7, 5, 3, 1, 0, 1), 32, 8) == 1  # without padding


def test_results_below_the_smallest_normal_number_are_zeros() -> None:
    """Where the device multiplies pairs of bfloat16: as its products have it, in vectors and one by one."""
    context = core.context()
    if not context.device.has_pair_products:
        pytest.skip("the device does not multiply pairs of bfloat16")
    problem = core.parse("conv forward bf16 g3 n1 ic3 ih7 iw7 oc3 kh1 kw1")
    x, w = (np.ones(argument.shape, argument.dtype) for argument in problem.arguments()[:2])
    x *= x.dtype.type(2.0**-126)
    w[:, 0, 0, 0] = 1, 0.5, -0.5
    y = np.full(x.shape, np.nan, x.dtype)
    context.plan(problem, NAME).run(x=x, w=w, y=y)
    assert (y[0, 0] == 2.0**-126).all() and not y[0, 1:].any()


@pytest.mark.parametrize(
    "text",
    [
        "conv forward g5 n3 ic5 ih5 iw5 oc5 kh3 kw3 ph1 pw1",  # vectors are longer than rows
        "conv backward_data g3 n2 ic3 ih23 iw3 oc3 kh3 kw3 ph1 pw1",  # three blocks of rows, the last one overlaps
        "conv forward g3 n2 ic3 ih35 iw35 oc3 kh3 kw3 ph1 pw1",
        "conv forward g3 n2 ic3 ih18 iw33 oc3 kh5 kw5 ph2 pw2",
        "conv forward g3 n2 ic3 ih29 iw29 oc6 kh3 kw3 sh2 sw2 ph1 pw1",  # two filters a channel
        "conv backward_data g3 n1 ic3 ih9 iw17 oc3 kh3 kw3 ph1 pw2 dw2",
        "conv forward g3 n2 ic3 ih17 iw17 oc3 kh5 kw5 ph2 pw2",  # the second vector has one element
        "conv forward f64 g3 n2 ic3 ih17 iw11 oc3 kh3 kw3 ph1 pw1",
        "conv forward g5 n1 ic5 ih1 iw1 oc5 kh3 kw3 ph1 pw1",  # vectors are longer than planes
        "conv forward g301 n3 ic301 ih2 iw1 oc301 kh3 kw3 ph1 pw1",  # in many work-items
        "conv backward_data g7 n1 ic7 ih1 iw2 oc7 kh3 kw3 ph1 pw1",
        # 16 bits that are converted next to the products: rows of several vectors
        "conv forward f16 g3 n2 ic3 ih35 iw35 oc3 kh3 kw3 ph1 pw1",
        "conv backward_data f16 g3 n2 ic3 ih18 iw33 oc3 kh5 kw5 ph2 pw2",
        "conv forward f16 g3 n2 ic3 ih35 iw57 oc6 kh3 kw3 sh2 sw2 ph1 pw1",
        "conv forward bf16 g3 n2 ic3 ih19 iw33 oc3 kh3 kw4 ph1 pw2",
        *JOINED,
        # rows that lie a dilation apart, of equal and of other numbers, in one block, in two and in many
        "conv forward g3 n2 ic3 ih20 iw20 oc6 kh3 kw3 ph2 pw2 dh2 dw2",
        "conv backward_data g3 n2 ic3 ih35 iw19 oc3 kh3 kw3 ph3 pw1 dh3",
        "conv forward g3 n2 ic3 ih64 iw17 oc3 kh3 kw3 ph1 pw2 dh2 dw2",
        "conv forward bf16 g3 n2 ic3 ih23 iw33 oc3 kh3 kw3 ph2 pw2 dh2 dw2",
        # rows of many vectors, of which those between the first and the last mask nothing, or all of them do
        "conv forward g3 n2 ic3 ih11 iw113 oc3 kh3 kw3 ph1 pw1",
        "conv forward g3 n2 ic3 ih9 iw83 oc6 kh3 kw5 ph1 pw4",
        "conv forward g3 n2 ic3 ih3 iw80 oc3 kh1 kw3 pw40 dw40",
        "conv backward_data g3 n2 ic3 ih7 iw96 oc3 kh3 kw3 ph1 pw1",
        "conv forward g3 n2 ic3 ih14 iw225 oc3 kh3 kw3 sh2 sw2 ph1 pw1",
        "conv forward f16 g3 n2 ic3 ih9 iw99 oc3 kh3 kw3 ph1 pw1",
        "conv forward bf16 g3 n2 ic3 ih9 iw161 oc3 kh3 kw3 ph1 pw1",
        "conv forward g17 n4 ic17 ih77 iw113 oc17 kh3 kw3 ph1 pw1",  # planes larger than the L1 cache
        "conv forward bf16 g17 n4 ic17 ih77 iw113 oc17 kh3 kw3 ph1 pw1",
    ],
)
def test_settings_change_no_bit(text: str) -> None:
    """A sum has one order, whatever the lanes and rows, and in planes whose results are computed one by one."""
    problem, context = core.parse(text), core.context()
    for at_end in (False, True):
        check_within_pages(problem, NAME, at_end, context)
    check(context, problem, NAME, accumulate=True, seed=7)
    expected = check(context, problem, NAME)
    arrays = random_arrays(problem)
    most = context.device.vector_width // (2 if problem.dtype == "float64" else 1)
    for settings in ({"rows": 3}, {"rows": 4, "lanes": max(most // 2, 4)}):
        try:
            launches = cpu_fixed.plan(problem, context.planner, settings)
        except Declined:
            continue
        plan = context.plan_launches(problem, launches, NAME)
        result = np.full(expected.shape, np.nan, problem.dtype)
        given = {argument.name: arrays[argument.name] for argument in plan.arguments if argument.role == "in"}
        plan.run(**given, **{OUTPUTS[problem.direction]: result})
        assert result.tobytes() == expected.tobytes(), settings
