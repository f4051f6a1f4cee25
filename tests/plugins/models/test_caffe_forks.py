"""Layers of Caffe's forks in nets without Caffe, against NumPy in float64 from their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clgraft.caffe_layers.nets.weights import LayerWeights
from clgraft.core.errors import ClgraftError
from tests.plugins.models.test_caffe_nets import session
from tests.plugins.models.test_mxnet_nets import near, random


def inputs(**shapes) -> str:
    return "".join(
        f'input: "{name}" input_shape {{ {" ".join(f"dim: {size}" for size in shape)} }} '
        for name, shape in shapes.items()
    )


def one(kind: str, parameters: str, arrays: dict, weights=()) -> np.ndarray:
    """Return what a layer makes of its bottoms."""
    bottoms = " ".join(f'bottom: "{name}"' for name in arrays)
    text = inputs(**{name: array.shape for name, array in arrays.items()})
    net = session(f'{text} layer {{ name: "y" type: "{kind}" {bottoms} top: "y" {parameters} }}', weights)
    return net.run(arrays)["y"]


def test_functions_of_elements_and_channels() -> None:
    x, a = 5 * random(2, 6, 4, 5), random(2, 6, 1, 1, seed=1)
    near(one("ReLU6", "", {"x": x}), np.clip(x, 0, 6))
    near(one("Axpy", "", {"a": a, "x": x, "b": x[::-1].copy()}), a.astype("f8") * x + x[::-1])
    near(one("Axpy", "", {"a": a[:, :, 0, 0], "x": x, "b": x}), a.astype("f8") * x + x)
    expected = np.stack([x[:, c // 3 + 2 * (c % 3)] for c in range(6)], 1)  # channels 0 2 4 1 3 5
    near(one("ShuffleChannel", "shuffle_channel_param { group: 3 }", {"x": x}), expected, 0)


def test_batch_norms_of_pspnet_and_segnet() -> None:
    x = random(3, 4, 5, 6)
    one_of = (1, 4, 1, 1)
    factor, term, mean = (random(*one_of, seed=seed) for seed in range(3))
    var = 1 + random(*one_of) ** 2
    four = [LayerWeights("y", "BN", (factor, term, mean, var))]
    two = [LayerWeights("y", "BN", (factor, term))]
    wide = x.astype("f8")
    normed = (wide - mean) / np.sqrt(var + 1e-3)
    near(one("BN", "bn_param { eps: 1e-3 frozen: true momentum: 0.95 }", {"x": x}, four), factor * normed + term)
    near(one("BN", "bn_param { bn_mode: INFERENCE }", {"x": x}, two), factor * wide + term)
    centred = wide - wide.mean((0, 2, 3), keepdims=True)
    own = centred / np.sqrt((centred**2).mean((0, 2, 3), keepdims=True) + 1e-9)
    near(one("BN", "bn_param { scale_filler { } }", {"x": x}, two), factor * own + term, 1e-5)


def resized(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Compute a bilinear interpolation that keeps the corners."""
    for axis, count in zip((2, 3), size):
        places = np.linspace(0, x.shape[axis] - 1, count) if count > 1 else np.zeros(1)
        x = np.apply_along_axis(lambda line, p=places: np.interp(p, np.arange(len(line)), line), axis, x)
    return x


@pytest.mark.parametrize(
    ("parameters", "cut", "size"),
    [
        ("height: 9 width: 4", 0, (9, 4)),
        ("zoom_factor: 4", 0, (17, 25)),
        ("shrink_factor: 2", 0, (3, 4)),
        ("shrink_factor: 2 zoom_factor: 3", 0, (7, 10)),
        ("zoom_factor: 2 pad_beg: -1 pad_end: -1", 1, (5, 9)),
    ],
)
def test_interp(parameters, cut, size) -> None:
    x = random(2, 3, 5, 7)
    inner = x[:, :, cut : 5 - cut, cut : 7 - cut].astype("f8")
    near(one("Interp", f"interp_param {{ {parameters} }}", {"x": x}), resized(inner, size))
    if not cut:
        like = {"x": x, "z": random(2, 3, *size)}
        near(one("Interp", "", like), resized(inner, size))


def test_upsample_of_segnet_and_of_yolo() -> None:
    x = random(2, 3, 6, 8)
    near(one("Upsample", "upsample_param { scale: 3 }", {"x": x}), x.repeat(3, 2).repeat(3, 3), 0)
    text = (
        inputs(x=(2, 3, 5, 8))
        + """
        layer { name: "p" type: "Pooling" bottom: "x" top: "p" top: "mask"
                pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
        layer { name: "y" type: "Upsample" bottom: "p" bottom: "mask" top: "y" upsample_param { %s } }
    """
    )
    x = x[:, :, :5]
    expected = np.zeros_like(x)
    for n, c, h, w in np.ndindex(2, 3, 3, 4):
        part = x[n, c, 2 * h : 2 * h + 2, 2 * w : 2 * w + 2]
        row, column = np.unravel_index(part.argmax(), part.shape)
        expected[n, c, 2 * h + row, 2 * w + column] = part.max()
    for fields in ("scale: 2 pad_out_h: true", "upsample_h: 5 upsample_w: 8"):
        near(session(text % fields).run({"x": x})["y"], expected, 0)


def test_regions_of_fast_rcnn() -> None:
    x = random(2, 3, 11, 14)
    rng = np.random.default_rng(4)
    corner, size = rng.uniform(-20, 200, (9, 2)), rng.uniform(-5, 150, (9, 2))
    rois = np.concatenate([rng.integers(0, 2, (9, 1)), corner, corner + size], 1).astype("f4")
    found = one(
        "ROIPooling", "roi_pooling_param { pooled_h: 4 pooled_w: 3 spatial_scale: 0.0625 }", {"x": x, "rois": rois}
    )
    expected = np.zeros((9, 3, 4, 3))
    for r, (image, *corners) in enumerate(rois):
        left, top, right, bottom = (math.floor(abs(c) / 16 + 0.5) * (1 if c > 0 else -1) for c in corners)
        height, width = max(bottom - top + 1, 1), max(right - left + 1, 1)
        for i, j in np.ndindex(4, 3):
            rows = range(top + math.floor(i * height / 4), top + math.ceil((i + 1) * height / 4))
            columns = range(left + math.floor(j * width / 3), left + math.ceil((j + 1) * width / 3))
            pixels = [x[int(image), :, a, b] for a in rows for b in columns if 0 <= a < 11 and 0 <= b < 14]
            expected[r, :, i, j] = np.max(pixels, 0) if pixels else 0
    assert (expected == 0).any() and (expected != 0).mean() > 0.3
    near(found, expected, 0)


def prior_boxes(size, image, low, high, ratios, step, offset, clip) -> np.ndarray:
    """Compute the corners of prior boxes one by one."""
    found = []
    for row, column in np.ndindex(*size):
        y, x = (row + offset) * step[0], (column + offset) * step[1]
        for i, side in enumerate(low):
            shapes = [(side, side)]
            if high:
                shapes.append((math.sqrt(side * high[i]), math.sqrt(side * high[i])))
            shapes += [(side * math.sqrt(r), side / math.sqrt(r)) for r in ratios]
            for w, h in shapes:
                box = ((x - w / 2) / image[1], (y - h / 2) / image[0], (x + w / 2) / image[1], (y + h / 2) / image[0])
                found += [min(max(c, 0), 1) for c in box] if clip else box
    return np.array(found)


@pytest.mark.parametrize(
    ("parameters", "given", "variance"),
    [
        (
            "min_size: 30 max_size: 60 aspect_ratio: 2 aspect_ratio: 3 variance: 0.1 variance: 0.1 variance: 0.2"
            " variance: 0.2 clip: true",
            ([30], [60], [2, 1 / 2, 3, 1 / 3], (100 / 3, 30), 0.5, True),
            [0.1, 0.1, 0.2, 0.2],
        ),
        (
            "min_size: 20 min_size: 50 aspect_ratio: 2 aspect_ratio: 0.5 aspect_ratio: 1 flip: false step_h: 16"
            " step_w: 8 offset: 0.25 img_h: 100 img_w: 120",
            ([20, 50], [], [2, 0.5], (16, 8), 0.25, False),
            [0.1] * 4,
        ),
    ],
)
def test_prior_boxes_of_ssd(parameters, given, variance) -> None:
    arrays = {"x": random(2, 5, 3, 4), "image": random(2, 3, 100, 120)}
    found = one("PriorBox", f"prior_box_param {{ {parameters} }}", arrays)
    expected = prior_boxes((3, 4), (100, 120), *given)
    assert found.shape == (1, 2, len(expected))
    near(found[0, 0], expected)
    near(found[0, 1], np.resize(variance, len(expected)))


def decoded(code: str, at: np.ndarray, prior: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Compute a box from what a net says of a prior box."""
    given, size = at * variance, prior[2:] - prior[:2]
    if code == "CORNER":
        return prior + given
    if code == "CORNER_SIZE":
        return prior + given * np.tile(size, 2)
    middle, half = (prior[:2] + prior[2:]) / 2 + given[:2] * size, np.exp(given[2:]) * size / 2
    return np.concatenate([middle - half, middle + half])


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    common = np.prod(np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0))
    return common / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common)


def detections(boxes, scores, background, least, limit, most, kept) -> list:
    """Choose detections one by one; boxes (classes, boxes, 4), scores (boxes, classes)."""
    found = []
    for label in range(scores.shape[1]):
        if label == background:
            continue
        order = [i for i in np.argsort(-scores[:, label], kind="stable") if scores[i, label] > least][:most]
        chosen: list = []
        for i in order:
            if all(overlap(boxes[label, i], boxes[label, j]) <= limit for j in chosen):
                chosen.append(i)
        found += [(label, scores[i, label], *boxes[label, i]) for i in chosen]
    best = sorted(range(len(found)), key=lambda i: -found[i][1])[:kept]
    return [found[i] for i in sorted(best)]


@pytest.mark.parametrize(
    ("fields", "shared", "background", "encoded"),
    [
        ("code_type: CENTER_SIZE keep_top_k: 20", True, 0, False),
        ("code_type: CENTER_SIZE keep_top_k: 7 variance_encoded_in_target: true", True, 0, True),
        ("code_type: CORNER share_location: false background_label_id: 2", False, 2, False),
        ("code_type: CORNER_SIZE share_location: false background_label_id: -1 keep_top_k: 9", False, -1, False),
    ],
)
def test_detections_of_ssd(fields, shared, background, encoded) -> None:
    rng, count, classes = np.random.default_rng(6), 23, 4
    corner = rng.uniform(0, 0.6, (count, 2))
    prior = np.concatenate([corner, corner + rng.uniform(0.2, 0.4, (count, 2))], 1)
    variance = rng.uniform(0.05, 0.2, (count, 4))
    apart = 1 if shared else classes
    location = rng.standard_normal((2, count, apart, 4)) * 0.3
    scores = rng.uniform(0, 1, (2, count, classes)).astype("f4")
    arrays = {
        "at": location.reshape(2, -1).astype("f4"),
        "score": scores.reshape(2, -1),
        "prior": np.stack([prior, variance]).reshape(1, 2, -1).astype("f4"),
    }
    given = f"num_classes: 4 {fields} confidence_threshold: 0.3 nms_param {{ nms_threshold: 0.45 top_k: 15 }}"
    found = one("DetectionOutput", f"detection_output_param {{ {given} }}", arrays)
    kept = int(fields.partition("keep_top_k: ")[2].split()[0]) if "keep_top_k" in fields else None
    code = fields.split()[1]
    expected = []
    for n in range(2):
        boxes = np.array(
            [
                [
                    decoded(code, location[n, i, k % apart], prior[i], np.ones(4) if encoded else variance[i])
                    for i in range(count)
                ]
                for k in range(classes)
            ]
        )
        expected += [(n, *row) for row in detections(boxes, scores[n], background, 0.3, 0.45, 15, kept)]
    assert len(expected) > 10
    near(found, np.array(expected)[None, None], 1e-5)


def test_a_net_without_detections_has_a_row_for_each_image() -> None:
    arrays = {"at": random(3, 8), "score": np.zeros((3, 4), "f4"), "prior": np.abs(random(1, 2, 8))}
    given = "num_classes: 2 code_type: CENTER_SIZE confidence_threshold: 0.5"
    found = one("DetectionOutput", f"detection_output_param {{ {given} }}", arrays)
    assert found.tolist() == [[[[n, *[-1] * 6] for n in range(3)]]]


def test_a_head_of_ssd() -> None:
    """From the convolution of a scale to detections, with two scales; the text has a field of the fork's alone."""
    scale = """
        layer { name: "l%d" type: "Convolution" bottom: "%s" top: "l%d"
                convolution_param { num_output: 16 kernel_size: 3 pad: 1 } }
        layer { name: "lp%d" type: "Permute" bottom: "l%d" top: "lp%d" ORDER }
        layer { name: "lf%d" type: "Flatten" bottom: "lp%d" top: "lf%d" }
        layer { name: "c%d" type: "Convolution" bottom: "%s" top: "c%d"
                convolution_param { num_output: 12 kernel_size: 3 pad: 1 } }
        layer { name: "cp%d" type: "Permute" bottom: "c%d" top: "cp%d" ORDER }
        layer { name: "cf%d" type: "Flatten" bottom: "cp%d" top: "cf%d" }
        layer { name: "b%d" type: "PriorBox" bottom: "%s" bottom: "x" top: "b%d"
                prior_box_param { min_size: 8 max_size: 16 aspect_ratio: 2 flip: true clip: false offset: 0.5 } }
    """.replace("ORDER", "permute_param { order: 0 order: 2 order: 3 order: 1 }")
    text = inputs(x=(1, 3, 16, 16))
    text += 'layer { name: "p" type: "Pooling" bottom: "x" top: "p" pooling_param { kernel_size: 2 stride: 2 } }'
    for i, bottom in enumerate(("x", "p")):
        text += scale.replace("%s", bottom).replace("%d", str(i))
    for name, axis in (("lf", 1), ("cf", 1), ("b", 2)):
        text += (
            f'layer {{ name: "{name}" type: "Concat" bottom: "{name}0" bottom: "{name}1" top: "{name}"'
            f" concat_param {{ axis: {axis} }} }}"
        )
    text += """
        layer { name: "r" type: "Reshape" bottom: "cf" top: "r" reshape_param { shape { dim: 0 dim: -1 dim: 3 } } }
        layer { name: "s" type: "Softmax" bottom: "r" top: "s" softmax_param { axis: 2 } }
        layer { name: "sf" type: "Flatten" bottom: "s" top: "sf" flatten_param { axis: 1 } }
        layer { name: "found" type: "DetectionOutput" bottom: "lf" bottom: "sf" bottom: "b" top: "found"
                include { phase: TEST } detection_output_param { num_classes: 3 share_location: true
                background_label_id: 0 nms_param { nms_threshold: 0.45 top_k: 40 } keep_top_k: 20
                code_type: CENTER_SIZE confidence_threshold: 0.3 visualize: false save_output_param { } } }
    """
    weights = [
        LayerWeights(f"{name}{i}", "Convolution", (0.5 * random(count, 3, 3, 3, seed=i), random(count, seed=i)))
        for i in (0, 1)
        for name, count in (("l", 16), ("c", 12))
    ]
    net = session(text, weights)
    x = random(1, 3, 16, 16, seed=9)
    found = net.run({"x": x})["found"]
    assert 3 < found.shape[2] <= 20 and set(found[..., 1].reshape(-1)) <= {1, 2} and (found[..., 2] > 0.3).all()
    location, scores, both = (net.values(name) for name in ("lf", "sf", "b"))
    prior, variance = both.reshape(2, -1, 4).astype("f8")
    boxes = [decoded("CENTER_SIZE", *three) for three in zip(location.reshape(-1, 4), prior, variance)]
    rows = detections(np.array([boxes] * 3), scores.reshape(-1, 3), 0, 0.3, 0.45, 40, 20)
    near(found, np.array([(0, *row) for row in rows])[None, None], 1e-5)


@pytest.mark.parametrize(
    ("kind", "parameters", "shapes", "words"),
    [
        ("ReLU6", "relu6_param { negative_slope: 0.1 }", [(2, 3)], "negative_slope 0.1"),
        ("ShuffleChannel", "shuffle_channel_param { group: 2 }", [(2, 3)], "a divisor of 3 channels"),
        ("Axpy", "", [(2, 4), (2, 3, 4, 4), (2, 3, 4, 4)], "of bottom 0"),
        ("Interp", "interp_param { pad_beg: 1 }", [(1, 1, 4, 4)], "at most 0"),
        ("Upsample", "upsample_param { scale: 2 }", [(1, 1, 4, 4), (1, 1, 2, 2)], "of bottom 1"),
        ("ROIPooling", "", [(1, 1, 4, 4), (3, 5)], "pooled_h and pooled_w (0, 0)"),
        ("PriorBox", "", [(1, 1, 4, 4)], "min_size []"),
        ("PriorBox", "prior_box_param { min_size: 4 }", [(1, 1, 4, 4)], "no img_size"),
        ("DetectionOutput", "", [(1, 8), (1, 4), (1, 2, 8)], "num_classes 0"),
        (
            "DetectionOutput",
            "detection_output_param { num_classes: 2 nms_param { eta: 0.5 } }",
            [(1, 8), (1, 4), (1, 2, 8)],
            "eta 0.5",
        ),
        ("DetectionOutput", "detection_output_param { num_classes: 3 }", [(1, 8), (1, 4), (1, 2, 8)], "of 3 classes"),
        ("Python", 'python_param { module: "rpn.proposal_layer" layer: "ProposalLayer" }', [(1, 4)], "rpn.proposal"),
    ],
)
def test_what_is_refused(kind, parameters, shapes, words) -> None:
    with pytest.raises(ClgraftError) as caught:
        one(kind, parameters, {f"x{i}": np.zeros(shape, "f4") for i, shape in enumerate(shapes)})
    assert words in str(caught.value)
