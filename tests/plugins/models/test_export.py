"""Models of MXNet and Caffe as ONNX models: checked by onnx, and the same results in ONNX Runtime."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

import clgraft  # noqa: E402
from clgraft.caffe_layers.nets.net import CaffeNet, read_net  # noqa: E402
from clgraft.core.model import ModelError  # noqa: E402
from clgraft.plugins.command_line.main import main  # noqa: E402
from clgraft.plugins.models.loaded import LoadedSession  # noqa: E402
from tests.caffe_layers.net_styles import STYLES, small  # noqa: E402
from tests.plugins.models import symbols  # noqa: E402
from tests.plugins.models import test_caffe_forks as caffe_forks  # noqa: E402
from tests.plugins.models import test_caffe_nets as caffe_nets  # noqa: E402
from tests.plugins.models import test_mxnet_nets as mxnet_nets  # noqa: E402
from tests.plugins.onnx import mxnet_exports  # noqa: E402

ROUNDING = 2e-6
NETS = Path(__file__).resolve().parents[2] / "caffe_layers" / "nets"


def loaded(net) -> LoadedSession:
    return LoadedSession(net._net)


def compare(session: LoadedSession, given: dict[str, np.ndarray], opset: int = 17, rounding: float = ROUNDING):
    """Return the ONNX model after its results were compared with the session's."""
    data = session.export(opset=opset, shapes={name: array.shape for name, array in given.items()})
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    runtime = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    expected = session.run(given)
    assert [port.name for port in runtime.get_outputs()] == list(expected)
    for found, (name, values) in zip(runtime.run(None, given), expected.items()):
        assert found.dtype == values.dtype and found.shape == values.shape, name
        limit = rounding * max(1, np.abs(values.astype(float)).max(initial=0))
        np.testing.assert_allclose(found.astype(float), values.astype(float), rtol=0, atol=limit, err_msg=name)
    return model


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_a_net_of_caffe(opset):
    session = loaded(caffe_nets.session(caffe_nets.SMALL, caffe_nets.WEIGHTS))
    model = compare(session, {"data": caffe_nets.random(2, 3, 8, 8)}, opset)
    assert {"conv[0]", "conv[1]", "fc[1]", "scale[0]"} <= {each.name for each in model.graph.initializer}
    assert [each.name for each in model.graph.input] == ["data"]
    assert {"pool", "fc", "prob"} <= {name for node in model.graph.node for name in node.output}
    assert {"Conv", "MaxPool", "Gemm", "Softmax"} <= {node.op_type for node in model.graph.node}


def test_a_net_of_mxnet(tmp_path, capfd):
    net, x, _ = mxnet_nets.small()
    model = compare(loaded(net), {"data": x})
    assert set(net.parameters) <= {each.name for each in model.graph.initializer} | {"data"}
    symbol = mxnet_nets.FILES / "small-symbol.json"
    target = tmp_path / "small.onnx"
    assert main(["export", str(symbol), "--shape", "data=2,3,8,8", "-o", str(target), "--opset", "18"]) == 0
    assert "opset 18" in capfd.readouterr().out
    session = clgraft.load(symbol)
    assert target.read_bytes() == session.export(opset=18, shapes={"data": (2, 3, 8, 8)})


POOL = "layer {{ name: 'y' type: 'Pooling' bottom: 'data' top: 'y' pooling_param {{ {} }} }}"
LAYERS = {
    **{
        f"pool {text}": POOL.format(text)
        for text in (
            "pool: AVE kernel_size: 3 stride: 2",
            "pool: AVE kernel_size: 3 stride: 2 pad: 1",
            "pool: MAX kernel_size: 3 stride: 2 pad: 1",
            "pool: AVE global_pooling: true",
        )
    },
    "lrn": "layer { name: 'y' type: 'LRN' bottom: 'data' top: 'y' lrn_param { local_size: 3 alpha: 0.5 k: 2 } }",
    **{
        kind: f"layer {{ name: 'y' type: '{kind}' bottom: 'data' top: 'y' }}"
        for kind in (
            "ReLU",
            "ELU",
            "Sigmoid",
            "TanH",
            "AbsVal",
            "Power",
            "Exp",
            "BNLL",
            "Threshold",
            "MVN",
            "Softmax",
            "Flatten",
        )
    },
    "leaky": "layer { name: 'y' type: 'ReLU' bottom: 'data' top: 'y' relu_param { negative_slope: 0.2 } }",
    "eltwise": "layer { name: 'y' type: 'Eltwise' bottom: 'data' bottom: 'data' top: 'y'"
    " eltwise_param { operation: SUM coeff: 2 coeff: -0.5 } }",
    "concat": "layer { name: 'y' type: 'Concat' bottom: 'data' bottom: 'data' top: 'y' }",
    "slice": "layer { name: 'y' type: 'Slice' bottom: 'data' top: 'y' top: 'z' slice_param { slice_point: 1 } }",
    "reduction": "layer { name: 'y' type: 'Reduction' bottom: 'data' top: 'y' reduction_param { axis: 1 } }",
    "tile": "layer { name: 'y' type: 'Tile' bottom: 'data' top: 'y' tile_param { axis: 1 tiles: 3 } }",
}


FORKS = {
    **{
        kind: f"layer {{ name: 'y' type: '{kind}' bottom: 'data' top: 'y' {text} }}"
        for kind, text in {
            "ReLU6": "",
            "ShuffleChannel": "shuffle_channel_param { group: 3 }",
            "Interp": "interp_param { zoom_factor: 2 pad_beg: -1 }",
            "Upsample": "upsample_param { scale: 2 }",
            "Permute": "permute_param { order: 0 order: 2 order: 3 order: 1 }",
            "PriorBox": "prior_box_param { min_size: 2 img_size: 8 aspect_ratio: 2 }",
        }.items()
    },
    "Axpy": "layer { name: 'g' type: 'Pooling' bottom: 'data' top: 'g' pooling_param { global_pooling: true } }"
    " layer { name: 'y' type: 'Axpy' bottom: 'g' bottom: 'data' bottom: 'data' top: 'y' }",
}


@pytest.mark.parametrize("name", [*LAYERS, *FORKS])
def test_layers_of_caffe(name):
    session = loaded(caffe_nets.session(caffe_nets.INPUT + {**LAYERS, **FORKS}[name]))
    compare(session, {"data": caffe_nets.random(2, 3, 8, 8, seed=3)}, rounding=1e-5)


def test_detections_of_ssd():
    """A row for each detection, as many as there are; in the session a row of -1 where there are none."""
    shapes = {"at": (2, 48), "score": (2, 36), "prior": (1, 2, 48)}
    text = caffe_forks.inputs(**shapes) + "layer { name: 'y' type: 'DetectionOutput' bottom: 'at' bottom: 'score'"
    text += " bottom: 'prior' top: 'y' detection_output_param { num_classes: 3 code_type: CENTER_SIZE keep_top_k: 9"
    text += " confidence_threshold: 0.7 nms_param { nms_threshold: 0.45 top_k: 8 } } }"
    session = loaded(caffe_nets.session(text))
    rng = np.random.default_rng(2)
    corner = rng.uniform(0, 0.7, (12, 2))
    prior = np.stack([np.concatenate([corner, corner + rng.uniform(0.1, 0.3, (12, 2))], 1), np.full((12, 4), 0.1)])
    given = {
        "at": rng.standard_normal((2, 48)).astype("f4"),
        "score": rng.uniform(0, 1, (2, 36)).astype("f4"),
        "prior": prior.reshape(1, 2, -1).astype("f4"),
    }
    model = compare(session, given)
    assert {"NonMaxSuppression", "TopK", "Compress"} <= {node.op_type for node in model.graph.node}
    assert 4 < session.run(given)["y"].shape[2] < 18


def test_rows_of_a_filter():
    session = loaded(caffe_nets.session(caffe_nets.INPUT + caffe_nets.FILTER))
    for selector in ([0, 1], [0, 0]):
        compare(session, {"data": caffe_nets.random(2, 3, 8, 8), "s": np.float32(selector)}, rounding=0)


@pytest.mark.parametrize(
    "attributes",
    [
        {"overlap_thresh": 0.4, "id_index": 0, "topk": 30},
        {"overlap_thresh": 0.4, "topk": -1, "force_suppress": True, "valid_thresh": 0.2},
        {"overlap_thresh": 0.5, "id_index": 0, "background_id": 1, "in_format": "center", "out_format": "center"},
    ],
)
def test_boxes_of_gluoncv(attributes):
    """`box_nms`, as SSD, YOLO and Faster R-CNN have it: with labels only boxes of one class remove each other."""
    given = {"coord_start": 2, "score_index": 1, "in_format": "corner", "out_format": "corner", **attributes}
    session = loaded(symbols.session(symbols.symbol([("_contrib_box_nms", "y", given, ["data"])])))
    rng = np.random.default_rng(3)
    corner = rng.uniform(0, 20, (2, 40, 2))
    columns = [rng.integers(0, 3, (2, 40, 1)), rng.permutation(80).reshape(2, 40, 1) / 80, corner]
    data = np.concatenate([*columns, corner + rng.uniform(4, 12, (2, 40, 2))], 2).astype("f4")
    compare(session, {"data": data})
    (found,) = session.run({"data": data}).values()
    assert 10 < (found[..., 1] >= 0).sum() < 70


def test_means_of_parts_of_different_sizes():
    net = mxnet_nets.session(
        mxnet_nets.symbol([("_contrib_AdaptiveAvgPooling2D", "y", {"output_size": (3, 2)}, ["data"])]), {}
    )
    compare(loaded(net), {"data": caffe_nets.random(2, 3, 8, 7)})


def test_whole_numbers_of_centernet():
    net, x, _ = mxnet_nets.decoder_of_centernet()
    compare(loaded(net), x)


def test_regions_of_fast_rcnn():
    text = "input: 'rois' input_shape { dim: 5 dim: 5 } layer { name: 'y' type: 'ROIPooling' bottom: 'data'"
    text += " bottom: 'rois' top: 'y' roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.5 } }"
    session = loaded(caffe_nets.session(caffe_nets.INPUT + text))
    rng = np.random.default_rng(2)
    corner = rng.uniform(-2, 12, (5, 2))
    rois = np.concatenate([rng.integers(0, 2, (5, 1)), corner, corner + rng.uniform(0, 9, (5, 2))], 1).astype("f4")
    compare(session, {"data": caffe_nets.random(2, 3, 8, 8), "rois": rois}, rounding=0)


@pytest.mark.parametrize("style", STYLES)
def test_a_net_in_a_style_of_the_field(style):
    """The nets that are compared with Caffe where it is installed, with random parameters."""
    net = read_net(small(style).encode())
    for place in reversed(range(len(net.layer))):
        if net.layer[place].type.endswith("Loss"):
            del net.layer[place]
    whole = CaffeNet(net, whole=True, rng=np.random.default_rng(1))
    whole.fill({port.name: port.usual for port in whole.inputs})
    session = LoadedSession(CaffeNet(net, whole.weights()))
    compare(session, {port.name: caffe_nets.random(*port.usual) for port in session.inputs}, rounding=1e-4)


def test_what_cannot_be_written_is_refused(tmp_path, capfd):
    session = loaded(caffe_nets.session(caffe_nets.SMALL, caffe_nets.WEIGHTS))
    with pytest.raises(ModelError, match=r"\[export\] got opset 7, expected 13 to 23"):
        session.export(opset=7)
    (tmp_path / "x.onnx").write_bytes(b"")
    assert main(["export", str(tmp_path / "x.onnx"), "-o", str(tmp_path / "y.onnx")]) == 2
    assert "which is an ONNX model already" in capfd.readouterr().err


ZOO = ("resnet18_v2", "mobilenet0.25", "mobilenetv2_0.25", "squeezenet1.1", "densenet121")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*mxnet_exports.NETS, *mxnet_exports.OTHERS])
def test_a_net_that_mxnet_has_written(name, request):
    """With the same numbers as in MXNet, whose results lie next to the files."""
    folder = request.config.getoption("--mxnet-models")
    if folder is None:
        pytest.skip("needs --mxnet-models, a folder that tests.plugins.onnx.mxnet_exports has filled")
    if not Path(folder, f"{name}.npz").exists():
        pytest.skip("it is the turn of other nets")
    with np.load(Path(folder, f"{name}.npz")) as arrays:
        x, from_mxnet = arrays["x"], arrays["y"]
    session = clgraft.load(Path(folder, f"{name}-symbol.json"))
    compare(session, {"data": x}, rounding=2e-5)
    (found,) = session.run({"data": x}).values()
    np.testing.assert_allclose(found, from_mxnet, rtol=0, atol=4e-5 * np.abs(from_mxnet).max())


@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="needs MXNet")
@pytest.mark.parametrize("name", ZOO)
def test_a_net_of_mxnets_zoo(name, tmp_path):
    import clgraft.mxnet_ops  # isort: skip  (before MXNet)
    import mxnet as mx
    from mxnet.gluon.model_zoo import vision

    mx.random.seed(3)
    net, x = vision.get_model(name, classes=10), np.random.default_rng(3).uniform(-1, 1, (1, 3, 224, 224)).astype("f4")
    net.initialize(mx.init.Xavier())
    net.hybridize()
    expected = net(mx.nd.array(x)).asnumpy()
    net.export(str(tmp_path / "net"), 0)
    session = clgraft.load(tmp_path / "net-symbol.json")
    model = compare(session, {"data": x}, rounding=1e-4)
    assert {key.split(":")[-1] for key in mx.nd.load(str(tmp_path / "net-0000.params"))} == set(session.parameters)
    assert set(session.parameters) - {each.name for each in model.graph.initializer} <= {
        each
        for each in session.parameters
        if "gamma" in each  # those that fix_gamma leaves unread
    }
    (found,) = session.run({"data": x}).values()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * max(1, np.abs(expected).max()))
