"""Gradients of batch norms that take the sums which data gradients leave: matrix units are computed here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.graph import Graph, GraphBuilder
from clgraft.core.graph.assembly import norms_of_layers
from clgraft.core.graph.reference import evaluate
from clgraft.core.graph.structure import Node
from clgraft.core.operators.conv.gemm_gpu import halves
from clgraft.core.operators.conv.gemm_gpu.halves_costs import PhaseChoice
from clgraft.core.session.context import Context
from tests.core.conv_checks import ROUNDING, SMALLEST, an_h200, force_smallest, on_units, run_after_sums
from tests.core.graphs import sample

pytestmark = pytest.mark.usefixtures("rows_in_several_launches")

SLOPE = 0.25
SUM_AND_MASK = "with whole whole : y0 = x2 > 0 ? x0 + x1 : 0"
# data gradients whose rows and columns end in the middle of tiles, of one and several tiles, of groups (merged ones,
# too), with what follows them; the last ones by windows with so many stages
LAYERS = {
    "conv backward_data f16 n2 ic40 ih9 iw9 oc24 kh1 kw1 layout=nhwc": 0,
    "conv backward_data bf16 n3 ic24 ih4 iw5 oc16 kh1 kw1 layout=nhwc": 0,
    f"fused conv backward_data f16 n3 ic72 ih7 iw9 oc136 kh1 kw1 layout=nhwc {SUM_AND_MASK}": 0,
    "conv backward_data f16 n2 ic72 ih6 iw7 oc16 kh3 kw3 ph1 pw1 layout=nhwc": 0,
    "conv backward_data f16 g2 n3 ic48 ih5 iw8 oc32 kh1 kw1 layout=nhwc": 0,
    f"fused conv backward_data bf16 g8 n2 ic32 ih5 iw7 oc32 kh3 kw3 ph1 pw1 layout=nhwc {SUM_AND_MASK}": 0,
    "conv backward_data f16 n3 ic24 ih7 iw9 oc40 kh3 kw3 ph1 pw1 layout=nhwc": 2,
    f"fused conv backward_data bf16 n2 ic136 ih15 iw6 oc72 kh3 kw3 ph1 pw1 layout=nhwc {SUM_AND_MASK}": 3,
}


def layer_and_gradient(text: str, activation: str = "relu", wide: bool = True) -> Graph:
    """Return a data gradient and the gradient of the norm whose result it belongs to; both results are outputs."""
    layer = core.parse(text)
    *inputs, dx = layer.arguments()
    channels = dx.shape[-1]
    words = [f"batchnorm backward_training {'bf16' if ' bf16 ' in text else 'f16'} n{dx.size // channels} c{channels}"]
    words += ["s1", *([activation] if activation else []), *(["f32_parameters"] if wide else [])]
    norm = core.parse(" ".join(words))
    on = GraphBuilder()
    read = [on.input(f"layer.{a.name}", a.shape, a.dtype) for a in inputs]
    own = {a.name: on.input(a.name, a.shape, a.dtype) for a in norm.arguments() if a.role == "in" and a.name != "dy"}
    (dy,) = on.add(layer, *read, scalars=dict.fromkeys(layer.scalars(), SLOPE))
    scalars = {name: norm.usual_scalars[name] for name in norm.scalars()}
    results = on.add(norm, own["x"], dy, *list(own.values())[1:], scalars=scalars)
    return on.graph(dy, *results)


def arrays_of(graph: Graph, mean: float = 0.0) -> dict[str, np.ndarray]:
    """Return random inputs, of which those of the norm belong together; its x has about this mean."""
    rng = np.random.default_rng(3)
    layer, norm = (node.problem for node in graph.nodes)
    found = norm.sample(rng)
    if mean:
        found["x"] = (rng.standard_normal(norm.shape) + mean).astype(norm.dtype)
        exact = found["x"].astype(np.float64)
        found["mean"], found["var"] = exact.mean((0, 2)).astype(np.float32), exact.var((0, 2)).astype(np.float32)
        if "shift" in found:
            found["shift"] = found["mean"]
    del found["dy"]
    for argument in layer.arguments()[:-1]:
        array = rng.standard_normal(argument.shape)
        array = array / np.sqrt(array[..., 0].size) if argument.name == "w" else array
        found[f"layer.{argument.name}"] = array.astype(argument.dtype)
    return found


def run_and_check(context: Context, graph: Graph, mean: float = 0.0) -> dict[str, np.ndarray]:
    """Run twice into NaN, compare with the norm's gradient from the stored dy in float64; return the results."""
    layer, norm = (node.problem for node in graph.nodes)
    arrays = arrays_of(graph, mean)
    results = run_after_sums(context, graph, arrays)
    dy = results[graph.nodes[0].writes[0]]
    given = {a.name: arrays[f"layer.{a.name}"] for a in layer.arguments()[:-1]}
    (exact,) = layer.reference(given, dict.fromkeys(layer.scalars(), SLOPE)).values()
    unit = ROUNDING[norm.dtype]
    assert np.abs(dy - exact).max() <= 2 * unit * np.abs(exact).max()
    scalars = dict(zip(norm.scalars(), (norm.usual_scalars[name] for name in norm.scalars())))
    stored = {**{a.name: arrays.get(a.name) for a in norm.arguments() if a.role == "in"}, "dy": dy.reshape(norm.shape)}
    expected = norm.reference(stored, scalars)
    for argument, name in zip((a for a in norm.arguments() if a.role == "out"), graph.nodes[1].writes):
        value, wanted = results[name].astype(np.float64), expected[argument.name]
        kind = unit if argument.dtype == norm.dtype else 4e-6 * (1 + abs(mean) / 8)
        assert np.abs(value - wanted).max() <= 2 * kind * max(1, np.abs(wanted).max()), name
    return results


@pytest.mark.parametrize("units", SMALLEST)
@pytest.mark.parametrize(("text", "stages"), LAYERS.items())
def test_matches_float64(text: str, stages: int, units: str, forced: list, monkeypatch: pytest.MonkeyPatch) -> None:
    text = force_smallest(forced, units, text, stages, monkeypatch)
    run_and_check(on_units(units), layer_and_gradient(text, "relu" if text.startswith("conv") else ""))


@pytest.mark.parametrize(
    ("activation", "wide"), [("clip", True), ("leaky_relu", True), ("", False), ("relu", False), ("clip", False)]
)
def test_what_follows_and_other_parameters(activation: str, wide: bool, forced: list) -> None:
    forced[:] = [SMALLEST["wgmma"], 1]
    run_and_check(on_units("wgmma"), layer_and_gradient(next(iter(LAYERS)), activation, wide))


@pytest.mark.parametrize("units", ["wgmma", "mma"])
@pytest.mark.parametrize("parts", [2, 3])
def test_joined_parts_on_gpus_leave_sums(parts: int, units: str, forced: list) -> None:
    """The work-group that adds a tile's parts has the sums, whichever it is."""
    forced[:] = [SMALLEST[units], parts, True]
    text = f"fused conv backward_data f16 n2 ic72 ih9 iw9 oc136 kh1 kw1 layout=nhwc {SUM_AND_MASK}"
    run_and_check(on_units(units), layer_and_gradient(text, ""))


@pytest.mark.parametrize("units", ["wgmma", "mma"])
@pytest.mark.parametrize("of_set", [1, 2, 4])
@pytest.mark.parametrize(
    "text",
    [
        "conv backward_data f16 n3 ic72 ih9 iw12 oc40 kh3 kw3 sh2 sw2 ph1 pw1 layout=nhwc",
        f"fused conv backward_data f16 n2 ic136 ih7 iw9 oc24 kh1 kw1 sh2 sw2 layout=nhwc {SUM_AND_MASK}",
    ],
)
def test_phases_of_strides(text: str, of_set: int, units: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work-groups add up what they store in all phases of a set, some of which are shorter or meet no tap."""
    monkeypatch.setattr(halves, "FULL", 0)
    choice = PhaseChoice(SMALLEST[units], (0, 1, 2, 3), of_set)
    monkeypatch.setattr(halves, "choose_phases", lambda *phases: choice)
    run_and_check(on_units(units), layer_and_gradient(text, "relu" if text.startswith("conv") else ""))


@pytest.mark.parametrize("activation", ["", "clip"])
def test_scalars_of_what_follows_the_layer(activation: str, forced: list) -> None:
    forced[:] = [SMALLEST["wgmma"], 1]
    layer = "conv backward_data f16 n2 ic40 ih9 iw9 oc24 kh1 kw1 layout=nhwc"
    follows = "with whole whole scalars{slope} : y0 = (x0 + x1) * (x2 > 0 ? 1 : slope)"
    run_and_check(on_units("wgmma"), layer_and_gradient(f"fused {layer} {follows}", activation))


@pytest.mark.parametrize("activation", ["", "relu"])
@pytest.mark.parametrize("mean", [300.0, -3e3])
def test_large_means_keep_their_digits(mean: float, activation: str, forced: list) -> None:
    forced[:] = [SMALLEST["wgmma"], 1]
    run_and_check(on_units("wgmma"), layer_and_gradient(next(iter(LAYERS)), activation), mean)


def test_many_tiles(forced: list) -> None:
    """More than a work-group of the usual size joins at a time."""
    forced[:] = [SMALLEST["wgmma"], 1]
    text = "conv backward_data f16 n200 ic16 ih9 iw9 oc16 kh1 kw1 layout=nhwc"
    run_and_check(on_units("wgmma"), layer_and_gradient(text))


def test_nan_stays_in_its_channel(forced: list) -> None:
    forced[:] = [SMALLEST["wgmma"], 1]
    graph = layer_and_gradient(next(iter(LAYERS)))
    arrays = arrays_of(graph)
    arrays["x"][:, 7] = np.nan
    found = on_units("wgmma").compile(graph).run(arrays)
    for name in graph.nodes[1].writes:
        values = found[name].reshape(-1, 40)
        assert np.isfinite(np.delete(values, 7, 1)).all(), name
    assert np.isnan(found[graph.nodes[1].writes[0]].reshape(-1, 40)[:, 7]).all()


def test_outputs_that_are_added_to(forced: list) -> None:
    """The sums are those of the gradient that the layer makes, also where that is added to what was there."""
    forced[:] = [SMALLEST["wgmma"], 1]
    graph, context = layer_and_gradient(next(iter(LAYERS))), on_units("wgmma")
    arrays = arrays_of(graph)
    plain = context.compile(graph).run(arrays)
    start = {name: np.ones_like(array) for name, array in plain.items()}
    context.compile(graph).run({**arrays, **{name: core.accumulate(array) for name, array in start.items()}})
    for name, array in plain.items():
        np.testing.assert_allclose(start[name].astype(np.float64), array.astype(np.float64) + 1, rtol=2e-3, atol=2e-3)


def test_arrays_that_are_not_aligned(forced: list) -> None:
    """The norm's x, and what its channels have, begin at odd addresses."""
    forced[:] = [SMALLEST["wgmma"], 1]
    graph, context = layer_and_gradient(next(iter(LAYERS))), on_units("wgmma")
    arrays = arrays_of(graph)
    plain = context.compile(graph).run(arrays)
    shifted = {}
    for name, array in arrays.items():
        whole = np.zeros(array.size + 1, array.dtype)
        whole[1:] = array.ravel()
        shifted[name] = whole[1:].reshape(array.shape)
    found = context.compile(graph).run(shifted)
    for name, array in plain.items():
        np.testing.assert_allclose(found[name].astype(float), array.astype(float), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "activation"),
    [
        ("conv backward_data f16 g16 n2 ic16 ih9 iw9 oc16 kh3 kw3 layout=nhwc", ""),  # no implementation leaves sums
        ("conv backward_data f16 n2 ic16 ih9 iw9 oc136 kh1 kw1 layout=nhwc", ""),  # in parts of the depth
        # two scalars of one name
        (
            "fused conv backward_data f16 n2 ic16 ih9 iw9 oc16 kh1 kw1 layout=nhwc with scalars{low} : y0 = x0 * low",
            "clip",
        ),
    ],
)
def test_other_layers_leave_no_sums(text: str, activation: str, forced: list) -> None:
    forced[:] = [SMALLEST["wgmma"], 2]
    context, graph = on_units("wgmma"), layer_and_gradient(text, activation)
    with pytest.raises(Declined):
        context.choose_with_sums(*(node.problem for node in graph.nodes))
    assert "after sums" not in str(context.compile(graph).report().algorithms)


def test_what_the_norm_reads_is_there_when_the_layer_runs() -> None:
    """A norm whose x is made after the layer, or changed after it, takes no sums of the layer."""
    text = "conv backward_data f16 n2 ic40 ih9 iw9 oc24 kh1 kw1 layout=nhwc"
    graph = layer_and_gradient(text)
    layer, norm = graph.nodes
    assert norms_of_layers(graph, ("sums",)) == {0: 1}
    assert norms_of_layers(graph, ("statistics",)) == {}
    shape = graph.values["x"].shape
    copy = Node(core.parse(f"pointwise f16 x0[{','.join(map(str, shape))}] : y0 = x0"), ("x", "later"))
    reads = tuple("later" if name == "x" else name for name in norm.arguments)
    late = graph.with_nodes((layer, copy, replace(norm, arguments=reads)))
    assert norms_of_layers(late, ("sums",)) == {}
    early = graph.with_nodes((copy, layer, replace(norm, arguments=reads)))
    assert norms_of_layers(early, ("sums",)) == {1: 2}


def test_the_pass_can_be_switched_off(forced: list) -> None:
    forced[:] = [SMALLEST["wgmma"], 1]
    graph, context = layer_and_gradient(next(iter(LAYERS))), on_units("wgmma")
    one, other = context.compile(graph), context.compile(graph, "-sums")
    assert one.report().launches == other.report().launches - 1
    arrays = arrays_of(graph)
    first, second = one.run(arrays), other.run(arrays)
    for name in graph.outputs:
        np.testing.assert_allclose(first[name].astype(float), second[name].astype(float), rtol=2e-3, atol=2e-3)


def test_blocks_with_shortcuts_in_mixed_precision(forced: list) -> None:
    """What gradients, types and layouts leave of a net of float32 in channels first."""
    forced[:] = [SMALLEST["wgmma"], 1]
    on = GraphBuilder()
    x, weights = on.input("x", (4, 64, 10, 9)), []

    def normed(value: str, sizes: str, *kernel: int) -> str:
        weights.append(on.input(f"w{len(weights)}", kernel))
        (result,) = on.add(f"conv forward n4 {sizes}", value, weights[-1])
        vectors = [on.input(f"{word}{len(weights)}", kernel[:1]) for word in ("gamma", "beta")]
        norm = f"batchnorm forward_training n4 c{kernel[0]} s90"
        return on.add(norm, result, *vectors, scalars={"eps": 1e-3})[0]

    value = normed(x, "ic64 ih10 iw9 oc64 kh1 kw1", 64, 64, 1, 1)
    (value,) = on.add("pointwise x0[4,64,90] : y0 = x0 > 0 ? x0 : 0", value)
    for _ in range(2):
        inner = normed(value, "ic64 ih10 iw9 oc64 kh3 kw3 ph1 pw1", 64, 64, 3, 3)
        (inner,) = on.add("pointwise x0[4,64,90] : y0 = x0 > 0 ? x0 : 0", inner)
        inner = normed(inner, "ic64 ih10 iw9 oc64 kh1 kw1", 64, 64, 1, 1)
        (value,) = on.add("pointwise x0[4,64,90] x1[4,64,90] : y0 = x0 + x1", inner, value)
        (value,) = on.add("pointwise x0[4,64,90] : y0 = x0 > 0 ? x0 : 0", value)
    weights.append(on.input("last", (64, 64, 1, 1)))
    (value,) = on.add("conv forward n4 ic64 ih10 iw9 oc64 kh1 kw1", value, weights[-1])
    graph = on.graph(value).gradients(weights)
    context = Context.on(None)
    context.device = replace(an_h200(), halves=("wgmma-float16",), is_cpu=False, is_gpu=True, matrix_units=())
    arrays = sample(graph, np.random.default_rng(1))
    for weight in weights:
        arrays[weight] *= 0.1
    expected = evaluate(graph, arrays)
    summed, plain = (context.compile(graph, passes, precision="float16") for passes in (None, "-sums"))
    assert [name for _, name in summed.report().algorithms].count("rows_gpu after sums") == 5 + 5
    assert summed.report().launches == plain.report().launches - 5
    kept = plain.run(arrays)
    for name, array in summed.run(arrays).items():
        away = np.linalg.norm(array.ravel() - expected[name].ravel()) / np.linalg.norm(expected[name])
        usual = np.linalg.norm(kept[name].ravel() - expected[name].ravel()) / np.linalg.norm(expected[name])
        assert away < 0.05 and away < 1.01 * usual + 1e-4, (name, away, usual)
