"""Swap on text: what changes, what stays to the letter, what is refused, and the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from clgraft.caffe_layers import LAYERS
from clgraft.caffe_layers.prototxt import Document, PrototxtError, schema
from clgraft.caffe_layers.swap import RULES, SwapError, restore_file, swap_back, swap_file, swap_net

NETS = Path(__file__).parent / "nets"
PRESENT = sorted(path.stem for path in NETS.glob("*.prototxt") if not path.stem.endswith(("_v0", "_v1")))


def net_text(name):
    return (NETS / f"{name}.prototxt").read_text(encoding="utf-8")


def layers_of(text):
    """All layers as messages, by place."""
    return list(schema.parse("NetParameter", text).layer)


@pytest.mark.parametrize("name", PRESENT)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_back_restores_every_letter(name, newline):
    text = net_text(name).replace("\n", newline)
    swapped, report = swap_net(text)
    assert swapped != text
    restored, back = swap_back(swapped)
    assert restored == text
    assert len(back.swapped) == len(report.swapped) > 0


@pytest.mark.parametrize("name", PRESENT)
def test_only_type_and_own_parameters_change(name):
    text = net_text(name)
    swapped, report = swap_net(text)
    before, after = layers_of(text), layers_of(swapped)
    assert len(before) == len(after) == len(report.rows)
    for native, ours, row in zip(before, after, report.rows):
        assert (row.name, row.kind) == (native.name, native.type)
        if not row.became:
            assert ours == native
            assert row.reason
            continue
        assert ours.type == "Python"
        assert ours.python_param.module == "clgraft.caffe_layers"
        assert ours.python_param.layer == row.became
        assert row.became in LAYERS
        carried = schema.parse_layer(ours.python_param.param_str)
        assert carried.type == native.type
        for field in native.DESCRIPTOR.fields:
            if field.name in ("type", "python_param") or (field.name == "param" and native.type == "BatchNorm"):
                continue
            rule = RULES[native.type]
            if field.name == "loss_weight" and rule.loss and not native.loss_weight:
                assert ours.loss_weight == [1]  # Caffe sets it by itself
            elif field.name in (rule.parameters, rule.more):
                assert getattr(carried, field.name) == getattr(native, field.name)
                assert not ours.HasField(field.name)
            else:
                assert getattr(ours, field.name) == getattr(native, field.name), field.name
        if native.type == "BatchNorm":
            assert [(spec.lr_mult, spec.decay_mult) for spec in ours.param] == [(0, 0)] * 3


@pytest.mark.parametrize("name", PRESENT)
def test_comments_survive(name):
    comments = [line.split("#", 1)[1].strip() for line in net_text(name).splitlines() if "#" in line]
    swapped, _ = swap_net(net_text(name))
    for comment in comments:
        assert comment in swapped


@pytest.mark.parametrize("name", PRESENT)
def test_swapping_twice_changes_nothing(name):
    once, _ = swap_net(net_text(name))
    twice, report = swap_net(once)
    assert twice == once
    assert not report.swapped


def test_the_form_that_the_layers_rely_on():
    text = 'layer { name: "c" type: "Convolution" bottom: "x" top: "y" convolution_param { num_output: 64 } }\n'
    swapped, _ = swap_net(text)
    assert swapped == (
        'layer { name: "c" type: "Python" bottom: "x" top: "y" python_param { module: "clgraft.caffe_layers" '
        'layer: "OclConvolution" param_str: '
        '\'name: "c" type: "Convolution" convolution_param { num_output: 64 }\' } }\n'
    )


def test_layout_of_a_layer_in_lines():
    text = """layer {
  name: "c"
  type: "Convolution"  # kind
  convolution_param {
    num_output: 2  # two

    weight_filler { type: 'msra' }
  }  # end
}
"""
    expected = r"""layer {
  name: "c"
  type: "Python"  # kind
  python_param {
    module: "clgraft.caffe_layers"
    layer: "OclConvolution"
    param_str: 'name: "c" type: "Convolution"\n'
               'convolution_param {\n'
               '  num_output: 2  # two\n'
               '\n'
               '  weight_filler { type: \'msra\' }\n'
               '}'
  }  # end
}
"""
    assert swap_net(text)[0] == expected


@pytest.mark.parametrize(
    ("parameters", "kind", "expected"),
    [
        ("convolution_param { num_output: 8 group: 8 }", "Convolution", "OclDepthwiseConvolution"),
        ("convolution_param { num_output: 8 group: 4 }", "Convolution", "OclConvolution"),
        ("convolution_param { num_output: 1 group: 1 }", "Convolution", "OclConvolution"),
        ("convolution_param { num_output: 1 }", "Convolution", "OclConvolution"),
        ("", "Convolution", "OclConvolution"),
        ("convolution_param { kernel_size: 3 }", "ConvolutionDepthwise", "OclDepthwiseConvolution"),
        ("convolution_param { num_output: 8 group: 8 }", "DepthwiseConvolution", "OclDepthwiseConvolution"),
    ],
)
def test_depthwise_convolutions(parameters, kind, expected):
    _, report = swap_net(f'layer {{ name: "c" type: "{kind}" {parameters} }}')
    assert [row.became for row in report.rows] == [expected]


def test_every_rule_names_a_layer_and_a_field():
    fields = schema.descriptor("LayerParameter").fields_by_name
    for kind, rule in RULES.items():
        assert rule.layer in LAYERS, kind
        assert not rule.parameters or rule.parameters in fields


BATCH_NORMS = {
    "none given": "",
    "one given": "param { lr_mult: 0 }",
    "two given, frozen": "param { lr_mult: 0 decay_mult: 0 } param { lr_mult: 0 decay_mult: 0 }",
    "three with a rate, which Caffe takes": "param { lr_mult: 1 } param { lr_mult: 2 } param { name: 'f' lr_mult: 3 }",
    "in brackets": "param < lr_mult: 0 > param: < lr_mult: 0.0 > param < lr_mult: 0 decay_mult: 0e0 >",
    "with comments": "param {  # mean\n lr_mult: 1;  # fixed\n } param {} param { decay_mult: 2  # f\n }",
    "after the parameters": "batch_norm_param { eps: 0.001 } param { lr_mult: 0 }",
}


@pytest.mark.parametrize("name", BATCH_NORMS)
@pytest.mark.parametrize(
    "form",
    [
        "layer {{ name: 'bn' type: 'BatchNorm' {} bottom: 'x' top: 'x' }}",
        "layer {{\n  name: 'bn'\n  type: 'BatchNorm'  # kind\n  {}\n}}\n",
        "layer {{\n  name: 'bn'\n  {}\n  type: 'BatchNorm' }}\n",
    ],
)
def test_statistics_of_batch_norms_do_not_learn(name, form):
    text = form.format(BATCH_NORMS[name])
    swapped, report = swap_net(text)
    (layer,) = layers_of(swapped)
    assert layer.type == "Python", report
    assert [(spec.lr_mult, spec.decay_mult) for spec in layer.param] == [(0, 0)] * 3
    assert all(comment in swapped for comment in ("# kind", "# mean", "# fixed", "# f") if comment in text)
    assert [spec.name for spec in layer.param] == (["", "", "f"] if "'f'" in text else [""] * 3)
    assert swap_back(swapped)[0] == text


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ("param { lr_mult: 1 }", "learning rate"),
        ("param { lr_mult: 0 } param { }", "learning rate"),
        ("param { lr_mult: 0 } " * 4, "4 params"),
        ("param [{}, {}]", "list"),
    ],
)
def test_batch_norms_that_are_left_alone(params, reason):
    text = f"layer {{ name: 'bn' type: 'BatchNorm' {params} }}"
    swapped, report = swap_net(text)
    assert swapped == text
    assert reason in report.rows[0].reason


FROZEN = {
    "param { lr_mult: 0 } param { lr_mult: 0 }": "param { lr_mult: 0 } param { lr_mult: 0 } ",
    "param { lr_mult: 0.0 decay_mult: 1 } param { lr_mult: 2 }": "param { lr_mult: 0 } ",
    "param { name: 'w' } param { lr_mult: 0f }": "param { } param { lr_mult: 0 } ",
    "param [{ lr_mult: 1 }, { lr_mult: 0 }]": "param { } param { lr_mult: 0 } ",
    "param { lr_mult: 1 } param { lr_mult: 2 }": "",
}


@pytest.mark.parametrize("params", FROZEN)
def test_the_layer_is_told_which_blobs_are_frozen(params):
    text = f"layer {{ name: 'c' type: 'Convolution' {params} convolution_param {{ num_output: 2 }} }}"
    swapped, _ = swap_net(text)
    (layer,) = layers_of(swapped)
    assert f"{FROZEN[params]}convolution_param" in layer.python_param.param_str
    expected = [spec.lr_mult for spec in layer.param][: FROZEN[params].count("param")]
    told = schema.parse_layer(layer.python_param.param_str).param
    assert [spec.lr_mult == 0 for spec in told] == [rate == 0 for rate in expected]
    assert swap_back(swapped)[0] == text


def test_a_net_that_forces_gradients_has_those_of_frozen_blobs_too():
    layer = "layer { name: 'c' type: 'Convolution' param { lr_mult: 0 } }"
    (forced,) = layers_of(swap_net(f"force_backward: true {layer}")[0])
    assert "lr_mult" not in forced.python_param.param_str


def test_choosing():
    text = net_text("mobilenet_deploy")

    def became(**choice):
        return [row.name for row in swap_net(text, **choice)[1].swapped]

    assert became(types=["relu"]) == ["relu1", "relu2/dw"]
    assert became(types="ReLU", exclude=["relu1"]) == ["relu2/dw"]
    assert became(names=["conv1/*"]) == ["conv1/bn", "conv1/scale"]
    assert became(names=["conv1", "conv2/dw"], types=["Convolution"]) == ["conv1", "conv2/dw"]
    assert became(exclude=["Convolution", "relu?", "relu2/dw", "Scale"]) == ["conv1/bn"]
    assert became(names=[]) == []
    _, report = swap_net(text, names=["conv9", "conv1"], exclude=["nothing*"])
    assert report.notes == ["no layer matches conv9", "no layer matches nothing*"]
    reasons = {row.name: row.reason for row in swap_net(text, types=["ReLU"], exclude=["relu1"])[1].left}
    assert reasons == {
        "data": "no OpenCL counterpart",
        "conv1": "type not chosen",
        "conv1/bn": "type not chosen",
        "conv1/scale": "type not chosen",
        "relu1": "excluded by relu1",
        "conv2/dw": "type not chosen",
        "conv2/sep": "type not chosen",
    }
    with pytest.raises(SwapError, match=r"got type Silence, expected one of Convolution"):
        swap_net(text, types=["Silence"])


def test_a_name_with_characters_of_patterns_is_a_name():
    text = "layer { name: 'a[1]' type: 'ReLU' } layer { name: 'a1' type: 'ReLU' }"
    assert [row.name for row in swap_net(text, names=["a[1]"])[1].swapped] == ["a[1]", "a1"]


def test_layers_of_users_stay():
    swapped, report = swap_net(net_text("fcn"))
    assert "voc_layers" in swapped
    assert report.rows[0].reason == "a Python layer of the user's"
    text = "layer { name: 'c' type: 'Convolution' python_param { module: 'mine' } }"
    assert swap_net(text)[0] == text


def test_forks_fields_stay_and_are_reported():
    swapped, report = swap_net(net_text("ssd"))
    for kept in ("resize_param", "annotated_data_param", "prior_box_param", "quantized"):
        assert kept in swapped
        assert any(kept in note for note in report.notes)
    known = {row.became for row in report.swapped if row.kind in ("Normalize", "Permute")}
    assert known == {"OclNormalize", "OclPermute"} and "norm_param" in swapped and "permute_param" in swapped
    assert [row.became for row in report.rows if row.kind in ("DepthwiseConvolution", "ConvolutionDepthwise")] == [
        "OclDepthwiseConvolution"
    ] * 2


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("layer {\n  name: 'a'\n", (3, 1)),
        ("layer { }\nlayers { }", (1, 1)),
        ("layers { type: NOVEL }", (1, 16)),
        ("layers { type: 99 }", (1, 16)),
        ("layers {\n layer { name: 'a'\n  type: 'relu' } }\nlayers {\n layer {\n  type: 'novel' } }", (6, 9)),
        ("layers {\n layer { type: 'relu' } }\nlayers { type: NOVEL }", (3, 16)),
        ("layers {\n layer { type: 'padding' } }", (1, 1)),
        ("layer { convolution_param { num_output: ten } }", (1, 41)),
        ("layers [{ name: 'a' }]", (1, 1)),
    ],
)
def test_refusals_name_line_and_column(text, place):
    with pytest.raises(PrototxtError) as caught:
        swap_net(text)
    assert (caught.value.line, caught.value.column) == place


STAYING = {
    "convolution_param { num_output: 2 strid: 2 dilaton: 2 }": "strid is not a field of Caffe's; dilaton is not",
    "convolution_param { num_output: 2 weight_filler { typ: 'msra' } }": "typ is not a field of Caffe's",
    "convolution_param { num_output: 2 } quantize: true": "quantize is not a field of Caffe's",
    "convolution_param { num_output: 2 engine: MKLDNN }": "engine: MKLDNN is not one of DEFAULT, CAFFE, CUDNN",
    "convolution_param { num_output: 2 engine: 3 }": "engine: 3 is not one of DEFAULT, CAFFE, CUDNN",
}


@pytest.mark.parametrize("fields", STAYING)
def test_a_layer_with_an_unknown_field_or_value_stays(fields):
    """It is a fork's or a typing error: ours would compute something else than the user's Caffe, or nothing."""
    text = f"layer {{ name: 'c' type: 'Convolution' {fields} }} layer {{ name: 'r' type: 'ReLU' }}"
    swapped, report = swap_net(text)
    assert fields in swapped
    assert [row.became for row in report.rows] == ["", "OclReLU"]
    assert report.rows[0].reason.startswith(STAYING[fields])
    assert report.notes and all("and is kept as it is" in note for note in report.notes)


def test_pooling_of_unknown_kind_stays():
    text = "layer { name: 'p' type: 'Pooling' pooling_param { pool: MAXIMUM kernel_size: 2 } }"
    swapped, report = swap_net(text)
    assert swapped == text
    assert report.rows[0].reason == "pool: MAXIMUM is not one of MAX, AVE, STOCHASTIC"


@pytest.mark.parametrize(
    ("fields", "became"),
    [
        ("ceil_mode: false", "OclPooling"),
        ("ceil_mode: true round_mode: CEIL", "OclPooling"),
        ("ceil_mode: false round_mode: CEIL", ""),
        ("ceil_mode: true round_mode: FLOOR", ""),
    ],
)
def test_ceil_mode_of_forks_is_served(fields, became):
    _, report = swap_net(f"layer {{ name: 'p' type: 'Pooling' pooling_param {{ kernel_size: 2 {fields} }} }}")
    assert report.rows[0].became == became
    assert not report.notes


def test_an_unknown_field_inside_a_solvers_net(tmp_path):
    layers = "layer { name: 'a' type: 'ReLU' relu_param { steep: 1 } } layer { name: 'b' type: 'ReLU' }"
    (tmp_path / "s.prototxt").write_text(f"net_param {{ {layers} }}\nbase_lr: 1\n")
    (report,) = swap_file(tmp_path / "s.prototxt", tmp_path / "o.prototxt")
    assert [row.became for row in report.rows] == ["", "OclReLU"]


def test_back_refuses_a_layer_that_does_not_say_what_it_was():
    text = "layer { type: 'Python' python_param { module: 'clgraft.caffe_layers' layer: 'OclReLU' param_str: '' } }"
    with pytest.raises(SwapError, match="without type"):
        swap_back(text)


def test_back_keeps_what_was_edited_after_the_swap():
    swapped, _ = swap_net(net_text("lenet"))
    swapped = swapped.replace("num_output: 6", "num_output: 9").replace('bottom: "pool1"', 'bottom: "other"')
    restored, _ = swap_back(swapped)
    assert restored == net_text("lenet").replace("num_output: 6", "num_output: 9").replace(
        'bottom: "pool1"', 'bottom: "other"'
    )


def test_bytes_that_are_no_utf8_stay(tmp_path):
    text = (
        b"# caf\xe9\nlayer { name: 'a' type: 'ReLU' }\n"
        b"layer {\n  name: 'b'\n  type: 'ReLU'\n  relu_param {\n    negative_slope: 0.5  # \xff\n  }\n}\n"
    )
    (tmp_path / "a.prototxt").write_bytes(text)
    (report,) = swap_file(tmp_path / "a.prototxt", tmp_path / "b.prototxt")
    assert [bool(row.became) for row in report.rows] == [True, False]
    assert "UTF-8" in report.rows[1].reason
    restore_file(tmp_path / "b.prototxt", tmp_path / "c.prototxt")
    assert (tmp_path / "c.prototxt").read_bytes() == text


def test_v1_is_upgraded():
    swapped, report = swap_net(net_text("lenet_v1"), types=["Convolution"])
    layers = layers_of(swapped)
    assert [layer.type for layer in layers] == [
        "DummyData",
        "Python",
        "ReLU",
        "AbsVal",
        "InnerProduct",
        "Accuracy",
        "SoftmaxWithLoss",
    ]
    assert [(spec.lr_mult, spec.decay_mult) for spec in layers[1].param] == [(1, 1), (2, 0)]
    assert [(spec.name, spec.lr_mult) for spec in layers[4].param] == [("ip_w", 1), ("", 2)]
    assert "# becomes a word" in swapped
    assert "# the bias" in swapped
    assert "older form V1" in report.notes[0]


def test_v1_transformations_move():
    text = """layers {
  type: DATA
  data_param {
    source: "x"
    scale: 0.5  # half
    mirror: true
  }
}
layers { type: IMAGE_DATA transform_param { crop_size: 3 mirror: false } image_data_param { crop_size: 5 source: "y" } }
"""
    (data, image) = layers_of(swap_net(text)[0])
    assert (data.transform_param.scale, data.transform_param.mirror) == (0.5, True)
    assert data.data_param.source == "x"
    assert not data.data_param.HasField("scale")
    assert (image.transform_param.crop_size, image.transform_param.mirror) == (5, False)
    assert not image.image_data_param.HasField("crop_size")


def test_v0_is_upgraded():
    swapped, report = swap_net(net_text("alexnet_v0"), types=["ReLU"])
    layers = {layer.name: layer for layer in layers_of(swapped)}
    assert list(layers) == ["conv1", "relu1", "pool1", "norm1", "fc", "drop", "prob"]
    convolution = layers["conv1"]
    assert list(convolution.bottom) == ["data"]
    parameters = convolution.convolution_param
    assert (parameters.num_output, list(parameters.pad), parameters.group) == (4, [1], 2)
    assert parameters.bias_filler.value == 0.5
    assert [(spec.lr_mult, spec.decay_mult) for spec in convolution.param] == [(1, 1), (2, 0)]
    assert (layers["pool1"].pooling_param.kernel_size, layers["pool1"].pooling_param.stride) == (3, 2)
    assert layers["norm1"].lrn_param.local_size == 3
    assert layers["fc"].inner_product_param.bias_term is False
    assert layers["drop"].dropout_param.dropout_ratio == 0.25
    assert "# in one line" in swapped
    assert "older form V0" in report.notes[0]
    lines = net_text("alexnet_v0").splitlines()
    for row in report.rows:
        assert lines[row.line - 1].startswith("layers {")
        assert f'name: "{row.name}"' in "".join(lines[row.line - 1 : row.line + 3])


def test_v0_fields_without_meaning_are_dropped_with_a_note():
    text = 'layers { layer { name: "r" type: "relu" kernelsize: 3 } bottom: "x" top: "y" }'
    swapped, report = swap_net(text)
    assert "kernel" not in swapped
    assert any("kernelsize means nothing to type relu" in note for note in report.notes)


def test_v0_fields_outside_of_the_layer_are_dropped_with_a_note():
    text = 'layers { type: CONVOLUTION layer { name: "r" type: "relu" } relu_param { } bottom: "x" top: "y" }'
    swapped, report = swap_net(text, types=[])
    (layer,) = layers_of(swapped)
    assert (layer.type, list(layer.bottom), list(layer.top)) == ("ReLU", ["x"], ["y"])
    assert not layer.HasField("relu_param")
    for name in ("type", "relu_param"):
        assert f"r: {name} outside of its layer is dropped, as Caffe does" in report.notes


def test_v0_every_data_field_finds_its_place():
    text = """layers { layer { name: "d" type: "images" source: "s" meanfile: "m" batchsize: 2 cropsize: 3 mirror: true
      scale: 0.5 rand_skip: 4 shuffle_images: true new_height: 5 new_width: 6 } top: "a" }
    layers { layer { name: "w" type: "window_data" source: "s" det_fg_threshold: 0.1 det_bg_threshold: 0.2
      det_fg_fraction: 0.3 det_context_pad: 4 det_crop_mode: "square" batchsize: 2 } top: "b" }
    layers { layer { name: "c" type: "concat" concat_dim: 1 } bottom: "a" bottom: "b" top: "c" }"""
    images, windows, concat = layers_of(swap_net(text)[0])
    assert images.type == "ImageData"
    assert images.image_data_param.source == "s"
    assert (images.image_data_param.new_height, images.image_data_param.new_width) == (5, 6)
    assert images.image_data_param.shuffle is True
    assert (images.transform_param.mean_file, images.transform_param.crop_size) == ("m", 3)
    assert windows.window_data_param.crop_mode == "square"
    assert windows.window_data_param.context_pad == 4
    assert concat.concat_param.concat_dim == 1


SOLVER = """# how to train
net: "{net}"  # one net for both
test_iter: 1 test_interval: 10
base_lr: 0.1 lr_policy: 'fixed' max_iter: 3
solver_mode: CPU
"""


def test_solver_with_its_net(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "lenet.prototxt").write_text(net_text("lenet"))
    (tmp_path / "solver.prototxt").write_text(SOLVER.format(net="models/lenet.prototxt"))
    (report,) = swap_file("solver.prototxt", "out.prototxt")
    assert {"conv1", "conv2", "relu1"} <= {row.name for row in report.swapped}
    solver = schema.parse("SolverParameter", (tmp_path / "out.prototxt").read_text())
    assert solver.net == "lenet_ocl.prototxt"
    assert (tmp_path / "lenet_ocl.prototxt").read_text() == swap_net(net_text("lenet"))[0]
    assert (tmp_path / "models" / "lenet.prototxt").read_text() == net_text("lenet")
    restore_file("out.prototxt", "back.prototxt")
    assert (tmp_path / "back.prototxt").read_bytes() == (tmp_path / "solver.prototxt").read_bytes()
    swap_file("solver.prototxt", "out.prototxt")  # its own files may be written anew


def test_snapshots_of_the_native_solver_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(net_text("lenet"))
    text = "net: 'net.prototxt' base_lr: 1 snapshot_prefix: 'snaps/lenet'\nsnapshot: 5000\n"
    (tmp_path / "s.prototxt").write_text(text)
    (report,) = swap_file("s.prototxt", "o.prototxt")
    solver = schema.parse("SolverParameter", (tmp_path / "o.prototxt").read_text())
    assert (solver.snapshot_prefix, solver.snapshot) == ("snaps/lenet_ocl", 5000)
    assert any("snaps/lenet_ocl" in note for note in report.notes)
    restore_file("o.prototxt", "back.prototxt")
    assert (tmp_path / "back.prototxt").read_text() == text
    # a solver that version 0.1 has swapped
    old = "net: 'net_ocl.prototxt' snapshot_prefix: 's'  # clgraft was 'net.prototxt'\nbase_lr: 1\n"
    (tmp_path / "old.prototxt").write_text(old)
    restore_file("old.prototxt", "native.prototxt")
    assert (tmp_path / "native.prototxt").read_text() == "net: 'net.prototxt' snapshot_prefix: 's'\nbase_lr: 1\n"


@pytest.mark.parametrize("name", ["conv/1", "a \\'quoted\\' \"name\"", "zwei\\nZeilen", "é", ""])
def test_the_layer_is_told_its_name(name):
    literal = name.replace('"', '\\"')
    text = f"layer {{ type: 'ReLU' name: \"{literal}\" relu_param {{ negative_slope: 0.5 }} }}"
    swapped, _ = swap_net(text)
    (layer,) = layers_of(swapped)
    assert schema.parse_layer(layer.python_param.param_str).name == layer.name
    assert swap_back(swapped)[0] == text


def test_solver_with_several_nets_of_one_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.prototxt").write_text(f"# {folder}\n" + net_text("lenet"))
    (tmp_path / "s.prototxt").write_text(
        "train_net: 'a/net.prototxt' test_net: ['b/net.prototxt', 'a/net.prototxt']\r\nbase_lr: 1\r\n"
    )
    (tmp_path / "out").mkdir()
    reports = swap_file("s.prototxt", "out/s.prototxt", names=["conv1"])
    assert [report.source for report in reports] == ["a/net.prototxt", "b/net.prototxt"]
    solver = schema.parse("SolverParameter", (tmp_path / "out" / "s.prototxt").read_text())
    assert solver.train_net == "out/net_ocl.prototxt"
    assert list(solver.test_net) == ["out/net_ocl2.prototxt", "out/net_ocl.prototxt"]
    assert (tmp_path / "out" / "net_ocl2.prototxt").read_text().startswith("# b\n")
    restore_file("out/s.prototxt", "back.prototxt")
    assert (tmp_path / "back.prototxt").read_bytes() == (tmp_path / "s.prototxt").read_bytes()


def test_solver_with_its_net_inside(tmp_path):
    text = "net_param {\n  layer { name: 'r' type: 'ReLU' bottom: 'a' top: 'a' }\n}\nbase_lr: 1\n"
    (tmp_path / "s.prototxt").write_text(text)
    (report,) = swap_file(tmp_path / "s.prototxt", tmp_path / "o.prototxt")
    assert len(report.swapped) == 1
    solver = schema.parse("SolverParameter", (tmp_path / "o.prototxt").read_text())
    assert solver.net_param.layer[0].python_param.layer == "OclReLU"
    restore_file(tmp_path / "o.prototxt", tmp_path / "b.prototxt")
    assert (tmp_path / "b.prototxt").read_text() == text


def test_files_that_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = tmp_path / "n.prototxt"
    net.write_text(net_text("lenet"))
    with pytest.raises(SwapError, match="other than those read"):
        swap_file(net, net)
    with pytest.raises(SwapError, match=r"missing\.prototxt, which does not exist"):
        swap_file("missing.prototxt", "o.prototxt")
    (tmp_path / "s.prototxt").write_text("# a\n" + 'net: "nowhere.prototxt"\nbase_lr: 1')
    with pytest.raises(SwapError, match=r"line 2, column 6: got \"nowhere.prototxt\""):
        swap_file("s.prototxt", "o.prototxt")
    (tmp_path / "s.prototxt").write_text('net: "n.prototxt" base_lr: 1')
    (tmp_path / "n_ocl.prototxt").write_text("somebody's work")
    with pytest.raises(SwapError, match="not written by clgraft"):
        swap_file("s.prototxt", "o.prototxt")
    assert not (tmp_path / "o.prototxt").exists()
    assert (tmp_path / "n_ocl.prototxt").read_text() == "somebody's work"
    (tmp_path / "broken.prototxt").write_text("layer {\n  name 'a'\n}")
    with pytest.raises(PrototxtError, match=r"broken.prototxt: line 2, column 8"):
        swap_file("broken.prototxt", "o.prototxt")
    (tmp_path / "bare.prototxt").write_text("base_lr: 1")
    with pytest.raises(SwapError, match="neither a net nor a solver"):
        swap_file("bare.prototxt", "o.prototxt")
    with pytest.raises(SwapError, match="whose folder does not exist"):
        swap_file(net, "no/such/folder/o.prototxt")


def test_report_reads_well():
    text = str(swap_net(net_text("lenet"), types=["Convolution", "ReLU"])[1])
    assert "3 of 10 layers changed: 2 Convolution, 1 ReLU" in text
    assert any(line.split()[1:4] == ["conv1", "Convolution", "OclConvolution"] for line in text.splitlines())
    document = Document(net_text("lenet"))
    assert document.place(document.root.messages("layer")[2].start)[0] == 29
