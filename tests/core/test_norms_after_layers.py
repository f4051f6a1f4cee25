"""Batch norms that take the sums which the convolution before them leaves: matrix units are computed here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.graph import Graph, GraphBuilder
from clgraft.core.graph.reference import evaluate
from clgraft.core.operators.conv.gemm_gpu import halves
from clgraft.core.operators.conv.gemm_gpu.halves import IMPLEMENTATIONS
from clgraft.core.operators.conv.gemm_gpu.halves_tiles import HalvesTile, tiles
from clgraft.core.session.context import Context
from tests.core.conv_checks import ROUNDING, SMALLEST, an_h200, force_smallest, on_units, run_after_sums
from tests.core.graphs import sample

pytestmark = pytest.mark.usefixtures("rows_in_several_launches")

EPS = 1e-3
# layers whose rows and columns end in the middle of tiles, of one and several tiles, of groups (merged ones, too), of
# few input channels; the last ones by windows with so many stages
LAYERS = {
    "conv forward f16 n2 ic24 ih9 iw9 oc40 kh1 kw1 layout=nhwc": 0,
    "conv forward bf16 n3 ic16 ih4 iw5 oc21 kh1 kw1 b1 layout=nhwc": 0,
    "conv forward f16 n2 ic16 ih13 iw12 oc72 kh3 kw3 sh2 sw2 ph1 pw1 b1 layout=nhwc": 0,
    "conv forward f16 g2 n3 ic32 ih5 iw8 oc48 kh1 kw1 layout=nhwc": 0,
    "conv forward bf16 g8 n2 ic32 ih5 iw7 oc32 kh3 kw3 ph1 pw1 b1 layout=nhwc": 0,
    "conv forward f16 n2 ic3 ih13 iw11 oc16 kh5 kw5 sh2 sw2 ph2 pw2 layout=nhwc": 0,
    "conv forward f16 n3 ic24 ih7 iw9 oc21 kh3 kw3 ph1 pw1 b1 layout=nhwc": 2,
    "conv forward bf16 n2 ic72 ih15 iw6 oc136 kh3 kw3 ph3 pw1 layout=nhwc": 3,
}


def layer_and_norm(text: str, activation: str = "", wide: bool = True) -> Graph:
    """Return a convolution and the norm of a training step after it, whose results are all outputs."""
    conv = core.parse(text)
    *inputs, y = conv.arguments()
    channels = conv.out_channels
    words = [f"batchnorm forward_training {text.split()[2]} n{y.size // channels} c{channels} s1"]
    words += [activation] if activation else []
    words += ["f32_parameters"] if wide else []
    norm = core.parse(" ".join(words))
    on = GraphBuilder()
    read = [on.input(a.name, a.shape, a.dtype) for a in inputs]
    vectors = [on.input(name, (channels,), norm.type_of(name)) for name in ("gamma", "beta")]
    (result,) = on.add(conv, *read)
    scalars = {"eps": EPS, **{name: norm.usual_scalars[name] for name in norm.activation_scalars}}
    return on.graph(result, *on.add(norm, result, *vectors, scalars=scalars))


def arrays_of(graph: Graph, mean: float) -> dict[str, np.ndarray]:
    """Return random inputs; with a bias the convolution's results have about this mean."""
    rng = np.random.default_rng(3)
    found = {value.name: rng.standard_normal(value.shape).astype(value.dtype) for value in graph.inputs}
    if "w" in found:
        found["w"] = (found["w"] / np.sqrt(found["w"][0].size)).astype(found["w"].dtype)
    if "b" in found:
        found["b"] = (found["b"] + mean).astype(found["b"].dtype)
    return found


def run_and_check(context: Context, graph: Graph, mean: float = 3.0) -> dict[str, np.ndarray]:
    """Run twice into NaN, compare with the norm of the stored result in float64; return the results."""
    conv, norm = (node.problem for node in graph.nodes)
    arrays = arrays_of(graph, mean)
    results = run_after_sums(context, graph, arrays)
    found = {a.name: results[name] for a, name in zip(norm.arguments()[3:], graph.nodes[1].writes)}
    y = results[graph.nodes[0].writes[0]]
    exact = conv.reference({name: arrays[name] for name in ("x", "w", "b") if name in arrays})["y"]
    unit = ROUNDING[conv.dtype]
    assert np.abs(y - exact).max() <= 2 * unit * np.abs(exact).max()
    wide = y.reshape(-1, norm.channels).astype(np.float64)
    stored = {"x": wide[:, :, None], "gamma": arrays["gamma"], "beta": arrays["beta"]}
    expected = norm.determined(norm.reference(stored, {"eps": EPS, "low": 0.0, "high": 6.0}))
    deviation = np.sqrt(expected["var"])
    found = norm.determined(found)
    if norm.float32_parameters:
        assert (np.abs(found["mean"] - expected["mean"]) <= 2.0**-22 * np.abs(wide).max(0) + 1e-6 * deviation).all()
        np.testing.assert_allclose(found["var"], expected["var"], rtol=1e-5)
    for name in found:
        kind = 2 * unit if found[name].dtype == conv.dtype or name == "offset" else 1e-5
        assert np.abs(found[name] - expected[name]).max() <= kind * max(1, np.abs(expected[name]).max()), name
    return results


@pytest.mark.parametrize("units", SMALLEST)
@pytest.mark.parametrize(("text", "stages"), LAYERS.items())
def test_matches_float64(text: str, stages: int, units: str, forced: list, monkeypatch: pytest.MonkeyPatch) -> None:
    text = force_smallest(forced, units, text, stages, monkeypatch)
    run_and_check(on_units(units), layer_and_norm(text))


@pytest.mark.exhaustive
@pytest.mark.parametrize("tile", [t for units in SMALLEST for t in tiles(units)], ids=lambda t: f"{t.units}-{t.name}")
def test_every_tile(tile: HalvesTile, forced: list) -> None:
    forced[:] = [tile, 1]
    run_and_check(on_units(tile.units), layer_and_norm("conv forward f16 n3 ic40 ih11 iw13 oc200 kh1 kw1 layout=nhwc"))


@pytest.mark.parametrize(("activation", "wide"), [("relu", True), ("clip", True), ("", False), ("relu", False)])
def test_what_follows_and_other_parameters(activation: str, wide: bool, forced: list) -> None:
    forced[:] = [SMALLEST["wgmma"], 1]
    text = next(iter(LAYERS))
    run_and_check(on_units("wgmma"), layer_and_norm(text, activation, wide))


@pytest.mark.parametrize("units", ["wgmma", "mma"])
@pytest.mark.parametrize("parts", [2, 3])
def test_joined_parts_on_gpus_leave_sums(parts: int, units: str, forced: list) -> None:
    """The work-group that adds a tile's parts has the sums, whichever it is."""
    forced[:] = [SMALLEST[units], parts, True]
    run_and_check(on_units(units), layer_and_norm("conv forward f16 n2 ic136 ih9 iw9 oc72 kh1 kw1 b1 layout=nhwc"))


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("mean", [1000.0, -3e4])
def test_large_means_keep_their_digits(mean: float, windows: bool, forced: list, monkeypatch) -> None:
    """The variance is that of what is stored, whose steps are as large as the deviation."""
    forced[:] = [SMALLEST["wgmma"], 1]
    if windows:
        monkeypatch.setattr(halves._HalvesBuilder, "choose_windows", lambda *sizes: (SMALLEST["wgmma"], 2, 1))
    text = "conv forward f16 n9 ic16 ih9 iw9 oc24 kh3 kw3 ph1 pw1 b1 layout=nhwc"
    run_and_check(on_units("wgmma"), layer_and_norm(text), mean)


def test_many_tiles(forced: list) -> None:
    """More than a work-group of the usual size joins at a time."""
    forced[:] = [SMALLEST["wgmma"], 1]
    run_and_check(on_units("wgmma"), layer_and_norm("conv forward f16 n40 ic16 ih9 iw9 oc16 kh1 kw1 b1 layout=nhwc"))


def test_nan_stays_in_its_channel(forced: list) -> None:
    forced[:] = [SMALLEST["wgmma"], 1]
    graph = layer_and_norm("conv forward f16 n2 ic24 ih9 iw9 oc40 kh1 kw1 b1 layout=nhwc")
    arrays = arrays_of(graph, 1.0)
    arrays["b"][7] = np.nan
    found = on_units("wgmma").compile(graph).run(arrays)
    for name in graph.nodes[1].writes:
        values = found[name].reshape(-1, 40)
        assert np.isnan(values[:, 7]).all() and np.isfinite(np.delete(values, 7, 1)).all(), name


def test_outputs_that_are_added_to(forced: list) -> None:
    """The norm is that of the convolution's own result, also where that is added to what was there."""
    forced[:] = [SMALLEST["wgmma"], 1]
    graph, context = layer_and_norm("conv forward f16 n2 ic24 ih9 iw9 oc40 kh1 kw1 layout=nhwc"), on_units("wgmma")
    arrays = arrays_of(graph, 1.0)
    plain = context.compile(graph).run(arrays)
    start = {name: np.ones_like(array) for name, array in plain.items()}
    context.compile(graph).run({**arrays, **{name: core.accumulate(array) for name, array in start.items()}})
    for name, array in plain.items():
        np.testing.assert_allclose(start[name].astype(np.float64), array.astype(np.float64) + 1, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "text",
    [
        "conv forward f16 g16 n2 ic16 ih9 iw9 oc16 kh3 kw3 layout=nhwc",  # no implementation leaves sums
        "conv forward f16 n2 ic136 ih9 iw9 oc16 kh3 kw3 layout=nhwc",  # in parts of the depth
    ],
)
def test_other_layers_leave_no_sums(text: str, forced: list) -> None:
    forced[:] = [SMALLEST["wgmma"], 2]
    context, graph = on_units("wgmma"), layer_and_norm(text)
    with pytest.raises(Declined):
        context.choose_with_sums(*(node.problem for node in graph.nodes))
    assert "after sums" not in str(context.compile(graph).report().algorithms)


def test_tiles_that_are_not_full_leave_no_sums(forced: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "FULL", 0.7)
    forced[:] = [SMALLEST["wgmma"], 1]
    for outputs, leaves in ((64, True), (48, True), (40, False), (88, False), (104, True)):
        graph = layer_and_norm(f"conv forward f16 n2 ic24 ih9 iw9 oc{outputs} kh1 kw1 layout=nhwc")
        algorithms = on_units("wgmma").compile(graph).report().algorithms
        assert ("after sums" in str(algorithms)) == leaves, outputs


def test_the_pass_can_be_switched_off(forced: list) -> None:
    forced[:] = [SMALLEST["wgmma"], 1]
    graph, context = layer_and_norm(next(iter(LAYERS))), on_units("wgmma")
    one, other = context.compile(graph), context.compile(graph, "-statistics")
    assert one.report().launches == other.report().launches - 1
    arrays = arrays_of(graph, 1.0)
    first, second = one.run(arrays), other.run(arrays)
    for name in graph.outputs:
        np.testing.assert_allclose(first[name].astype(float), second[name].astype(float), rtol=2e-3, atol=2e-3)


def test_layers_of_nets_in_mixed_precision() -> None:
    """What gradients, types and layouts leave of a net of float32 in channels first."""
    on = GraphBuilder()
    x, weights = on.input("x", (4, 16, 10, 9)), []

    def normed(value: str, sizes: str, *kernel: int) -> str:
        weights.append(on.input(f"w{len(weights)}", kernel))
        (result,) = on.add(f"conv forward n4 {sizes}", value, weights[-1])
        vectors = [on.input(f"{word}{len(weights)}", kernel[:1]) for word in ("gamma", "beta")]
        return on.add(f"batchnorm forward_training n4 c{kernel[0]} s90", result, *vectors, scalars={"eps": EPS})[0]

    first = normed(x, "ic16 ih10 iw9 oc64 kh3 kw3 ph1 pw1", 64, 16, 3, 3)
    (first,) = on.add("pointwise x0[4,64,90] : y0 = x0 > 0 ? x0 : 0", first)
    second = normed(first, "ic64 ih10 iw9 oc64 kh1 kw1", 64, 64, 1, 1)
    (result,) = on.add("pointwise x0[4,64,90] x1[4,64,90] : y0 = x0 + x1", first, second)
    graph = on.graph(result).gradients(weights)
    context = Context.on(None)
    context.device = replace(an_h200(), halves=("wgmma-float16",), is_cpu=False, is_gpu=True, matrix_units=())
    arrays = sample(graph, np.random.default_rng(1))
    expected = evaluate(graph, arrays)
    summed, plain = (context.compile(graph, passes, precision="float16") for passes in (None, "-statistics"))
    assert [name for _, name in summed.report().algorithms].count("rows_gpu after sums") == 2
    assert summed.report().launches == plain.report().launches - 2
    for name, array in summed.run(arrays).items():
        away = np.linalg.norm(array.ravel() - expected[name].ravel()) / np.linalg.norm(expected[name])
        assert away < 0.01, name


def test_on_an_h200_tiles_of_the_usual_layers_leave_sums() -> None:
    context = Context.on(None)
    context.device = replace(an_h200(), halves=("wgmma-float16",), is_cpu=False, is_gpu=True)
    layers = (
        "n32 ic64 ih56 iw56 oc256 kh1 kw1",
        "n32 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1",
        "n32 ic3 ih224 iw224 oc64 kh7 kw7 sh2 sw2 ph3 pw3",
        "n32 ic512 ih14 iw14 oc1024 kh1 kw1",
    )
    for sizes in layers:
        conv, norm = (node.problem for node in layer_and_norm(f"conv forward f16 {sizes} layout=nhwc").nodes)
        first, second, nbytes = context.choose_with_sums(conv, norm)
        assert first.algorithm == "gpu_halves_wgmma" and len(second.launches.launches) == 2, sizes
        assert 0 < nbytes < norm.nbytes / 8, sizes


assert {form.units for form in IMPLEMENTATIONS} >= set(SMALLEST)
