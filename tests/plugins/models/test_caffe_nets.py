"""Nets of Caffe with their parameters, without Caffe: what they compute, phases, sharing, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import clgraft
from clgraft.caffe_layers.nets.net import CaffeNet, read_net
from clgraft.caffe_layers.nets.weights import LayerWeights, write_caffemodel
from clgraft.core.errors import ClgraftError
from clgraft.core.model import ModelError, NetSession, UnsupportedOperators
from clgraft.plugins.command_line.main import main
from tests.plugins.models.damaged import mutated
from tests.plugins.models.test_mxnet_nets import near, random

FILES = Path(__file__).parent / "files"
INPUT = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } } '
SMALL = (
    INPUT
    + """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "drop" type: "Dropout" bottom: "pool" top: "pool" }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc" inner_product_param { num_output: 5 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
)
FILTER = 'input: "s" input_shape { dim: 2 } layer { name: "f" type: "Filter" bottom: "data" bottom: "s" top: "a" } '
RNG = np.random.default_rng(2)
WEIGHTS = [
    LayerWeights("conv", "Convolution", (random(4, 3, 3, 3), random(4))),
    LayerWeights("bn", "BatchNorm", (random(4), np.abs(random(4)) + 1, np.float32([2.0]))),
    LayerWeights("scale", "Scale", (random(4, seed=3), random(4, seed=4))),
    LayerWeights("fc", "InnerProduct", (random(5, 36), random(5))),
]


def session(text: str, weights=()) -> NetSession:
    return NetSession(CaffeNet(read_net(text.encode()), weights))


def expected_of_small(x: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the small net computes, in double precision."""
    (w, b), (mean, var, count), (gamma, beta), (v, c) = (one.blobs for one in WEIGHTS)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("f8"), (3, 3), axis=(2, 3))
    conv = np.einsum("nchwij,ocij->nohw", windows, w) + b[:, None, None]
    normed = (conv - (mean / count)[:, None, None]) / np.sqrt((var / count)[:, None, None] + 1e-5)
    conv = np.maximum(normed * gamma[:, None, None] + beta[:, None, None], 0)
    pool = conv.reshape(len(x), 4, 3, 2, 3, 2).max((3, 5))
    fc = pool.reshape(len(x), -1) @ v.T + c
    exp = np.exp(fc - fc.max(1, keepdims=True))
    return {"conv": conv, "pool": pool, "fc": fc, "prob": exp / exp.sum(1, keepdims=True)}


def test_a_net_computes_what_its_layers_say() -> None:
    net = session(SMALL, WEIGHTS)
    assert [(port.name, port.usual) for port in net.inputs] == [("data", (2, 3, 8, 8))]
    assert [port.name for port in net.outputs] == ["prob"]
    for count in (2, 5):
        x = random(count, 3, 8, 8, seed=count)
        expected = expected_of_small(x)
        near(net.run({"data": x})["prob"], expected["prob"], 1e-5)
        for name in ("conv", "pool", "fc"):
            near(net.values(name), expected[name], 1e-5)
    assert list(net.parameters)[:2] == ["conv[0]", "conv[1]"] and net.parameters["fc[0]"].shape == (5, 36)
    assert any("conv forward n2" in text for text, _ in net.report().algorithms)


def test_files_on_disk_and_the_command(tmp_path, capsys) -> None:
    (tmp_path / "deploy.prototxt").write_text(SMALL)
    write_caffemodel(tmp_path / "net.caffemodel", WEIGHTS)
    x = random(2, 3, 8, 8)
    found = clgraft.load(tmp_path / "deploy.prototxt", tmp_path / "net.caffemodel").run({"data": x})["prob"]
    near(found, expected_of_small(x)["prob"], 1e-5)
    words = ["run", str(tmp_path / "deploy.prototxt"), "--weights", str(tmp_path / "net.caffemodel")]
    assert main(words) == 0
    assert "prob: float32 [2, 5]" in capsys.readouterr().out
    script = (
        "import sys, clgraft; clgraft.load(*sys.argv[1:]).run({'data': [[[[0.0] * 8] * 8] * 3]});"
        "sys.exit(bool({'mxnet', 'caffe', 'onnx'} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", script, words[1], words[3]]
    assert subprocess.run(arguments, check=False).returncode == 0


OLDER = """
input: "data" input_dim: 2 input_dim: 3 input_dim: 8 input_dim: 8
layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv" blobs_lr: 1 blobs_lr: 2
  convolution_param { num_output: 4 kernel_size: 3 } }
layers { name: "relu" type: RELU bottom: "conv" top: "conv" }
layers { name: "fc" type: INNER_PRODUCT bottom: "conv" top: "fc" inner_product_param { num_output: 5 } }
"""


OLDEST = """
input: "data" input_dim: 2 input_dim: 3 input_dim: 8 input_dim: 8
layers { bottom: "data" top: "conv" layer { name: "conv" type: "conv" num_output: 4 kernelsize: 3 } }
layers { bottom: "conv" top: "conv" layer { name: "relu" type: "relu" } }
layers { bottom: "conv" top: "fc" layer { name: "fc" type: "innerproduct" num_output: 5 } }
"""


@pytest.mark.parametrize("text", [OLDER, OLDEST], ids=["V1", "V0"])
def test_older_prototxts_and_weights_of_four_axes(text) -> None:
    fc = (random(1, 1, 5, 144), random(1, 1, 1, 5))
    conv = (WEIGHTS[0].blobs[0], WEIGHTS[0].blobs[1].reshape(1, 1, 1, 4))
    x = random(2, 3, 8, 8)
    found = session(text, [LayerWeights("conv", "", conv), LayerWeights("fc", "", fc)]).run({"data": x})["fc"]
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("f8"), (3, 3), axis=(2, 3))
    inner = np.einsum("nchwij,ocij->nohw", windows, conv[0]) + conv[1].reshape(4, 1, 1)
    near(found, np.maximum(inner, 0).reshape(2, -1) @ fc[0][0, 0].T + fc[1][0, 0, 0], 1e-5)


def test_phases_several_inputs_splits_and_shared_parameters() -> None:
    text = """
        input: "a" input_shape { dim: 2 dim: 4 } input: "b" input_shape { dim: 2 dim: 4 }
        layer { name: "train" type: "Data" top: "x" include { phase: TRAIN } }
        layer { name: "noise" type: "Data" top: "y" exclude { phase: TEST } }
        layer { name: "stage" type: "Data" top: "z" include { stage: "other" } }
        layer { name: "one" type: "InnerProduct" bottom: "a" top: "one" param { name: "w" } param { name: "b" }
                inner_product_param { num_output: 3 } include { phase: TEST } }
        layer { name: "two" type: "InnerProduct" bottom: "b" top: "two" param { name: "w" } param { name: "b" }
                inner_product_param { num_output: 3 } }
        layer { name: "split" type: "Split" bottom: "one" top: "one_a" top: "one_b" }
        layer { name: "sum" type: "Eltwise" bottom: "one_a" bottom: "two" top: "sum"
                eltwise_param { operation: SUM coeff: 1 coeff: -2 } }
        layer { name: "cat" type: "Concat" bottom: "one_b" bottom: "sum" top: "cat" }
        layer { name: "quiet" type: "Silence" bottom: "a" }
    """
    w, c = random(3, 4), random(3)
    a, b = random(2, 4, seed=1), random(2, 4, seed=2)
    net = session(text, [LayerWeights("one", "", (w, c))])
    assert [port.name for port in net.inputs] == ["a", "b"]
    one, two = a @ w.T + c, b @ w.T + c
    near(net.run({"a": a, "b": b})["cat"], np.concatenate([one, one - 2 * two], 1))
    assert list(net.parameters) == ["one[0]", "one[1]"]


def test_levels_and_stages_of_the_net() -> None:
    factors = {2: 'min_level: 1 stage: "a"', 3: "min_level: 2", 5: 'max_level: 1 not_stage: "b"', 7: 'stage: "b"'}
    text = 'state { level: 1 stage: "a" stage: "c" } input: "y" input_shape { dim: 3 } '
    for factor, rule in factors.items():
        text += f'layer {{ name: "f{factor}" type: "Power" bottom: "y" top: "y" include {{ {rule} }} '
        text += f"power_param {{ scale: {factor} }} }}"
    text += 'layer { name: "e" type: "Power" bottom: "y" top: "y" exclude { stage: "c" } power_param { scale: 11 } }'
    assert session(text).run({"y": np.ones(3, "f4")})["y"].tolist() == [10, 10, 10]


ONE = {
    'type: "ELU" elu_param { alpha: 0.5 }': lambda x: np.where(x > 0, x, 0.5 * (np.exp(x) - 1)),
    'type: "Power" power_param { power: 2 scale: 0.5 shift: 1 }': lambda x: (1 + 0.5 * x) ** 2,
    'type: "AbsVal"': np.abs,
    'type: "Sigmoid"': lambda x: 1 / (1 + np.exp(-x)),
    'type: "Flatten"': lambda x: x.reshape(2, -1),
    'type: "Reshape" reshape_param { shape { dim: 0 dim: -1 } }': lambda x: x.reshape(2, -1),
    'type: "Reduction" reduction_param { axis: 1 }': lambda x: x.reshape(2, -1).sum(1),
    'type: "Permute" permute_param { order: 0 order: 2 order: 3 order: 1 }': lambda x: x.transpose(0, 2, 3, 1),
    'type: "Tile" tile_param { axis: 1 tiles: 2 }': lambda x: np.tile(x, (1, 2, 1, 1)),
    'type: "Pooling" pooling_param { pool: AVE global_pooling: true }': lambda x: x.mean((2, 3), keepdims=True),
    'type: "MVN" mvn_param { normalize_variance: false }': lambda x: x - x.mean((2, 3), keepdims=True),
}


@pytest.mark.parametrize("text", ONE, ids=lambda text: text.split('"')[1])
def test_layers_of_one_bottom(text) -> None:
    x = random(2, 3, 8, 8)
    net = session(f'{INPUT} layer {{ name: "y" {text} bottom: "data" top: "y" }}')
    near(net.run({"data": x})["y"], ONE[text](x.astype("f8")), 1e-5)


def test_a_rectifier_with_learned_slopes() -> None:
    x, slope = random(2, 3, 8, 8), np.float32([0.1, 0.2, 0.3])
    net = session(
        INPUT + 'layer { name: "p" type: "PReLU" bottom: "data" top: "p" }', [LayerWeights("p", "", (slope,))]
    )
    near(net.run({"data": x})["p"], np.where(x > 0, x, x * slope[:, None, None]))


def test_a_filter_keeps_the_rows_of_its_selector(tmp_path) -> None:
    text = 'input: "x" input_shape { dim: 4 dim: 3 } input: "s" input_shape { dim: 4 dim: 1 }'
    text += ' layer { name: "y" type: "Power" bottom: "x" top: "y" power_param { scale: 2 } }'
    text += ' layer { name: "f" type: "Filter" bottom: "y" bottom: "x" bottom: "s" top: "a" top: "b" }'
    text += ' layer { name: "h" type: "HDF5Output" bottom: "a" bottom: "s"'
    text += f' hdf5_output_param {{ file_name: "{tmp_path}/h" }} }}'
    net, x = session(text), random(4, 3)
    assert [port.name for port in net.outputs] == ["a", "b", "s"] and net.output_shapes()["a"] == (4, 3)
    for selector in ([0, 1, 0, -2], [0, 0, 0, 0], [1, 1, 1, np.nan]):
        s = np.float32(selector).reshape(4, 1)
        found = net.run({"x": x, "s": s})
        np.testing.assert_array_equal(found["a"], 2 * x[s[:, 0] != 0])
        np.testing.assert_array_equal(found["b"], x[s[:, 0] != 0])
        np.testing.assert_array_equal(net.values("a"), found["a"])
    assert not list(tmp_path.iterdir())
    with pytest.raises(UnsupportedOperators, match=r"Filter 'f' .*a net for predictions may have it"):
        net.trainer()


@pytest.mark.parametrize(
    ("text", "weights", "words"),
    [
        ('layer { name: "a" type: "WindowData" top: "a" }', (), "clgraft has no layer of this type"),
        ('layer { name: "a" type: "Filter" bottom: "data" top: "a" }', (), "[filter] got 1 bottoms, expected 2"),
        ('layer { name: "a" type: "Filter" bottom: "data" bottom: "data" top: "a" }', (), "one number for each row"),
        (FILTER + 'layer { name: "b" type: "ReLU" bottom: "a" top: "b" }', (),
         "ReLU 'b' (reads 'a' of Filter 'f', whose size depends on elements)"),
        ('layer { name: "a" type: "HDF5Output" bottom: "data" bottom: "data" }', (), "file_name ''"),
        ('layer { name: "a" type: "Python" bottom: "data" top: "a" python_param { module: "m" layer: "L" } }', (),
         "m.L"),
        ('layer { name: "a" type: "SoftmaxWithLoss" bottom: "data" bottom: "data" top: "a" }', (), "a loss: a net for"),
        ('layer { name: "a" type: "ReLU" bottom: "none" top: "a" }', (), "layer 'a' with bottom 'none'"),
        ('layer { name: "a" type: "InnerProduct" bottom: "data" top: "a" inner_product_param { num_output: 2 } }', (),
         "0 blobs in the weights, expected 2"),
        ('layer { name: "a" type: "InnerProduct" bottom: "data" top: "a" inner_product_param { num_output: 2 } }',
         [LayerWeights("a", "", (random(2, 5), random(2)))], "InnerProduct 'a', which does not fit"),
        ('layer { name: "a" type: "Concat" bottom: "data" bottom: "data" top: "a" concat_param { axis: 9 } }', (),
         "'a'"),
        ('layer { name: "i" type: "Input" top: "i" }', (), "input 'i' without a shape"),
        ('input: "i"', (), "input 'i' of shape ()"),
        ("layer {", (), "[prototxt]"),
        ("colour: 3 \xff", (), "["),
    ],
)  # fmt: skip
def test_what_does_not_run_is_named(text, weights, words) -> None:
    with pytest.raises(ClgraftError) as caught:
        session(INPUT + text, weights)
    assert words in str(caught.value)


def test_layers_that_do_not_run_are_listed() -> None:
    text = "".join(f'layer {{ name: "l{i}" type: "Unknown{i}" bottom: "data" top: "t{i}" }}' for i in range(30))
    with pytest.raises(UnsupportedOperators) as caught:
        session(INPUT + text)
    assert len(caught.value.operators) == 30 and "Unknown19" in str(caught.value)


def test_other_precisions_are_refused(tmp_path) -> None:
    (tmp_path / "deploy.prototxt").write_text(SMALL)
    with pytest.raises(ModelError, match="expected float32, which nets of Caffe have"):
        clgraft.load(tmp_path / "deploy.prototxt", precision="float64")


def test_changed_nets_are_read_or_refused() -> None:
    count = 0
    for made in mutated(SMALL.encode(), 150, 5):
        try:
            net = CaffeNet(read_net(made), WEIGHTS)
            shapes = {port.name: port.usual for port in net.inputs}
            if all(np.prod(shape, dtype=float) < 1e6 for shape in shapes.values()):
                net.lower(shapes)
            count += 1
        except ClgraftError as error:
            assert str(error).startswith("["), error
    assert 0 < count < 150
