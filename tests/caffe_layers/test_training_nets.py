"""Whole nets that train on batch statistics, and what a training may do between its steps: native against swapped."""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from clgraft.caffe_layers.swap import swap_net
from tests.caffe_layers.caffe_nets import close, inputs, native_learns, written
from tests.caffe_layers.net_comparison import FLOOR, NUDGE, distance
from tests.caffe_layers.net_styles import small

pytestmark = pytest.mark.skipif(not native_learns(), reason="the BatchNorm of this Caffe computes no batch statistics")

FORKS = ("DepthwiseConvolution", "ConvolutionDepthwise")


def solver_of(net: str, folder, extra: str = ""):
    """Make a solver of SGD with momentum and weight decay."""
    with (
        written(net) as path,
        written(
            f'net: "{path}" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.01 random_seed: 5 '
            f'display: 0 solver_mode: CPU snapshot_prefix: "{folder}/snap" {extra}'
        ) as solver,
    ):
        return caffe.get_solver(solver)


def step(solver, data: dict) -> dict:
    """Go one step of the solver; return the loss, every parameter's update, and the statistics."""
    for name, values in data.items():
        solver.net.blobs[name].data[...] = values
    solver.step(1)
    values = {"loss": solver.net.blobs["loss"].data.copy()}
    for name, blobs in solver.net.params.items():
        for index, blob in enumerate(blobs):
            part = blob.data if name.startswith("bn") else blob.diff
            values[f"{name}[{index}]"] = part.astype(np.float64)
    return values


def with_forks(text: str) -> str:
    """Return a net whose depthwise convolutions have the names of two forks of Caffe in turn."""
    lines = text.splitlines(keepends=True)
    found = 0
    for index, line in enumerate(lines):
        if "group:" in line:
            lines[index - 1] = lines[index - 1].replace('"Convolution"', f'"{FORKS[found % 2]}"')
            found += 1
    assert found
    return "".join(lines)


@pytest.mark.parametrize(
    "style",
    ["resnet50", "mobilenet_v1", "mobilenet_v2", "mobilenet_v1 of forks", "resnet50 regions", "mobilenet_v2 regions"],
)
def test_three_steps_follow_the_native_ones(style, tmp_path):
    """Losses, updates and statistics: within ten times of what nudged weights do to the native net."""
    text = small(style.split()[0]).replace("dim: 2", "dim: 6")
    swapped, _ = swap_net(with_forks(text) if "forks" in style else text, regions="regions" in style)
    native, ours, nudged = (solver_of(part, tmp_path) for part in (text, swapped, text))
    rng = np.random.default_rng(20)
    for name, blobs in native.net.params.items():
        for index, blob in enumerate(blobs):
            assert np.array_equal(ours.net.params[name][index].data, blob.data)
            nudged.net.params[name][index].data[...] = blob.data * (1 + NUDGE * rng.choice([-1, 1], blob.data.shape))
    classes = native.net.blobs[native.net.bottom_names["loss"][0]].data.shape[1]
    shape = native.net.blobs["data"].data.shape
    for _ in range(3):
        data = {"data": rng.standard_normal(shape), "label": rng.integers(0, classes, shape[0])}
        expected, got, moved = (step(solver, data) for solver in (native, ours, nudged))
        assert list(got) == list(expected)
        for name, value in expected.items():
            assert value.any(), f"nothing to compare in {name}"
            assert distance(got[name], value) <= FLOOR + 10 * distance(moved[name], value), name


def siamese() -> str:
    """Return two towers with the same weights, statistics and scales, and a loss between their ends."""

    def tower(side: str) -> str:
        def part(
            kind: str, name: str, bottom: str, shared: str, rates: str, parameters: str = "", top: str = ""
        ) -> str:
            frame = " ".join(f'param {{ name: "{n}" {rates} }}' for n in shared.split())
            return (
                f'layer {{ name: "{name}_{side}" type: "{kind}" bottom: "{bottom}_{side}" top: "{top or name}_{side}" '
                f"{frame} {parameters} }}\n"
            )

        xavier = 'weight_filler { type: "xavier" }'
        return (
            part(
                "Convolution",
                "conv",
                "x",
                "w",
                "lr_mult: 2 decay_mult: 3",
                f"convolution_param {{ num_output: 6 kernel_size: 3 bias_term: false {xavier} }}",
            )
            + part("BatchNorm", "bn", "conv", "mean var factor", "lr_mult: 0", top="conv")
            + part("Scale", "scale", "conv", "gamma beta", "lr_mult: 1", "scale_param { bias_term: true }", "conv")
            + part("ReLU", "relu", "conv", "", "", top="conv")
            + part("Pooling", "pool", "conv", "", "", "pooling_param { kernel_size: 3 stride: 2 pool: AVE }")
            + part(
                "InnerProduct", "end", "pool", "v b", "lr_mult: 1", f"inner_product_param {{ num_output: 3 {xavier} }}"
            )
        )

    # ContrastiveLoss makes its memory once, for the first batch: that has to be the largest
    return (
        inputs({"x_a": (7, 3, 9, 9), "x_b": (7, 3, 9, 9), "same": (7,)})
        + tower("a") + tower("b")
        + 'layer { name: "loss" type: "ContrastiveLoss" bottom: "end_a" bottom: "end_b" bottom: "same" top: "loss" }\n'
    )  # fmt: skip


def pairs(number: int, batch: int) -> dict:
    rng = np.random.default_rng(number)
    images = {name: rng.standard_normal((batch, 3, 9, 9)) for name in ("x_a", "x_b")}
    return {**images, "same": rng.integers(0, 2, batch)}


def train(solver, steps: range, batches: tuple = (4,)) -> list:
    """Go some steps, with batches of these sizes in turn; return the losses."""
    losses = []
    for number in steps:
        data = pairs(number, batches[number % len(batches)])
        for name, values in data.items():
            solver.net.blobs[name].reshape(*values.shape)
        solver.net.reshape()
        losses.append(float(step(solver, data)["loss"]))
    return losses


def both(folder, extra: str = "", regions: bool = False) -> list:
    swapped, report = swap_net(siamese(), regions=regions)
    # both towers: no layer between them reads a value of the first one
    assert [len(region.layers) for region in report.regions] == [12] * regions
    return [solver_of(text, folder, extra) for text in (siamese(), swapped)]


# no batch of one: there the native Scale overwrites the gradient that the other tower left
@pytest.mark.parametrize("batches", [(4,), (4, 7, 2, 5)], ids=["one size", "sizes"])
@pytest.mark.parametrize("extra", ["", "iter_size: 3", 'type: "Nesterov" clip_gradients: 0.5'])
@pytest.mark.parametrize("regions", [False, True], ids=["layers", "regions"])
def test_siamese_nets_learn_the_same(regions, extra, batches, tmp_path):
    native, ours = both(tmp_path, extra, regions)
    np.testing.assert_allclose(train(ours, range(8), batches), train(native, range(8), batches), rtol=2e-4)
    for name, blobs in native.net.params.items():
        for index, blob in enumerate(blobs):
            close(ours.net.params[name][index].data, blob.data, f"{name}[{index}]", 2e-4)
    for net in (native.net, ours.net):
        for name in ("conv", "bn", "scale", "end"):
            for first, second in zip(net.params[f"{name}_a"], net.params[f"{name}_b"]):
                assert np.array_equal(first.data, second.data)


@pytest.mark.parametrize("goes_on", ["ours", "native"])
@pytest.mark.parametrize("regions", [False, True], ids=["layers", "regions"])
def test_solver_states_go_on_across_a_swap(regions, goes_on, tmp_path):
    native, ours = both(tmp_path, regions=regions)
    first, second = (native, ours) if goes_on == "ours" else (ours, native)
    train(first, range(4))
    first.snapshot()
    second.restore(str(tmp_path / "snap_iter_4.solverstate"))
    for name, blobs in first.net.params.items():
        for index, blob in enumerate(blobs):
            assert np.array_equal(second.net.params[name][index].data, blob.data)
    np.testing.assert_allclose(train(second, range(4, 9)), train(first, range(4, 9)), rtol=2e-4)
