"""Small nets of kinds that the zoo has not: detection (SSD) and segmentation (FCN, U-Net), as symbols and blocks."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

CLASSES = 3
SCALES = (((0.2, 0.27), (1, 2, 0.5)), ((0.37, 0.45), (1, 2, 0.5)))  # sizes and ratios of anchors
ANCHORS = 4  # at each place: sizes and ratios, less one


def convolved(x: Any, filters: int, name: str, stride: int = 1, norm: bool = True) -> Any:
    """Return convolution, batch norm and rectifier."""
    x = mx.sym.Convolution(
        x, kernel=(3, 3), pad=(1, 1), stride=(stride, stride), num_filter=filters, no_bias=norm, name=name
    )
    x = mx.sym.BatchNorm(x, fix_gamma=False, eps=1e-3, name=f"{name}_bn") if norm else x
    return mx.sym.Activation(x, act_type="relu", name=f"{name}_relu")


def ssd() -> mx.sym.Symbol:
    """Return a single-shot detector in training: class probabilities, the boxes' loss, and the detections."""
    data, label = mx.sym.var("data"), mx.sym.var("label")
    x = convolved(data, 8, "conv1")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", pooling_convention="full", name="pool1")
    features = [convolved(x, 12, "conv2", stride=2)]
    features.append(convolved(features[0], 12, "conv3", stride=2, norm=False))
    features[0] = mx.sym.broadcast_mul(
        mx.sym.var("scale", shape=(1, 12, 1, 1), init=mx.init.Constant(8.0)),
        mx.sym.L2Normalization(features[0], mode="channel", name="length"),
        name="scaled",
    )
    classes, boxes, anchors = [], [], []
    for i, (feature, (sizes, ratios)) in enumerate(zip(features, SCALES)):
        for parts, filters, word in ((classes, ANCHORS * (CLASSES + 1), "class"), (boxes, ANCHORS * 4, "box")):
            made = mx.sym.Convolution(feature, kernel=(3, 3), pad=(1, 1), num_filter=filters, name=f"{word}{i}")
            parts.append(mx.sym.Flatten(mx.sym.transpose(made, axes=(0, 2, 3, 1)), name=f"{word}{i}_flat"))
        anchor = mx.sym.contrib.MultiBoxPrior(feature, sizes=sizes, ratios=ratios, clip=True, name=f"anchors{i}")
        anchors.append(mx.sym.Flatten(anchor))
    anchor = mx.sym.Reshape(mx.sym.Concat(*anchors, dim=1), shape=(0, -1, 4), name="anchors")
    located = mx.sym.Concat(*boxes, dim=1, name="boxes")
    scored = mx.sym.Reshape(mx.sym.Concat(*classes, dim=1), shape=(0, -1, CLASSES + 1))
    scored = mx.sym.transpose(scored, axes=(0, 2, 1), name="classes")
    targets = mx.sym.contrib.MultiBoxTarget(
        anchor,
        label,
        scored,
        overlap_threshold=0.5,
        ignore_label=-1,
        negative_mining_ratio=3,
        negative_mining_thresh=0.5,
        minimum_negative_samples=0,
        variances=(0.1, 0.1, 0.2, 0.2),
        name="target",
    )
    probability = mx.sym.SoftmaxOutput(
        scored,
        targets[2],
        ignore_label=-1,
        use_ignore=True,
        multi_output=True,
        normalization="valid",
        name="probability",
    )
    distance = mx.sym.smooth_l1(targets[1] * (located - targets[0]), scalar=1.0, name="distance")
    loss = mx.sym.MakeLoss(distance, grad_scale=1.0, normalization="valid", name="loss")
    found = mx.sym.contrib.MultiBoxDetection(probability, located, anchor, nms_threshold=0.45, name="found")
    return mx.sym.Group([probability, loss, mx.sym.BlockGrad(found, name="detections")])


def fcn() -> mx.sym.Symbol:
    """Return a fully convolutional net with one skip: deconvolutions, crops to another array's size, and a sum."""
    data = mx.sym.var("data")
    x = convolved(data, 6, "conv1")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool1")
    skip = convolved(x, 8, "conv2")
    x = mx.sym.Pooling(skip, kernel=(2, 2), stride=(2, 2), pool_type="max", pooling_convention="full", name="pool2")
    x = mx.sym.Dropout(convolved(x, 8, "conv3"), p=0.0, name="drop")
    x = mx.sym.Convolution(x, kernel=(1, 1), num_filter=CLASSES, name="score")
    x = mx.sym.Deconvolution(x, kernel=(4, 4), stride=(2, 2), num_filter=CLASSES, no_bias=True, name="twice")
    side = mx.sym.Convolution(skip, kernel=(1, 1), num_filter=CLASSES, name="side")
    x = mx.sym.elemwise_add(mx.sym.Crop(x, side, num_args=2, offset=(1, 1), name="cropped"), side, name="fused")
    x = mx.sym.Deconvolution(
        x, kernel=(4, 4), stride=(2, 2), num_filter=CLASSES, num_group=CLASSES, no_bias=True, name="whole"
    )
    x = mx.sym.Crop(x, data, num_args=2, center_crop=True, name="score_whole")
    return mx.sym.SoftmaxOutput(x, multi_output=True, use_ignore=True, ignore_label=255, name="softmax")


def unet() -> mx.sym.Symbol:
    """Return a U-Net of two levels: nearest and learned upsampling, joined with what was there before the poolings."""
    data = mx.sym.var("data")
    first = convolved(data, 6, "down1")
    second = convolved(mx.sym.Pooling(first, kernel=(2, 2), stride=(2, 2), pool_type="max", name="p1"), 8, "down2")
    x = convolved(mx.sym.Pooling(second, kernel=(2, 2), stride=(2, 2), pool_type="avg", name="p2"), 10, "middle")
    x = mx.sym.UpSampling(x, scale=2, sample_type="nearest", num_args=1, name="up2")
    x = convolved(mx.sym.Concat(x, second, dim=1, name="join2"), 8, "up2_conv")
    x = mx.sym.UpSampling(x, scale=2, sample_type="bilinear", num_filter=8, num_args=2, name="up1")
    x = convolved(mx.sym.Concat(x, first, dim=1, name="join1"), 6, "up1_conv")
    x = mx.sym.Convolution(x, kernel=(1, 1), num_filter=CLASSES, name="score")
    return mx.sym.SoftmaxOutput(x, multi_output=True, normalization="batch", name="softmax")


class Detector(gluon.HybridBlock):
    """A single-shot detector as a Gluon net: anchors, class scores and boxes."""

    def __init__(self) -> None:
        super().__init__(prefix="ssd_")
        with self.name_scope():
            self.stages, self.classes, self.boxes = (nn.HybridSequential() for _ in range(3))
            for stage in (self.stages, self.classes, self.boxes):
                self.register_child(stage)
            for i in range(len(SCALES)):
                stage = nn.HybridSequential()
                stage.add(nn.Conv2D(8 + 4 * i, 3, 2, 1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
                self.stages.add(stage)
                self.classes.add(nn.Conv2D(ANCHORS * (CLASSES + 1), 3, padding=1))
                self.boxes.add(nn.Conv2D(ANCHORS * 4, 3, padding=1))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        anchors, classes, boxes = [], [], []
        for stage, scored, located, (sizes, ratios) in zip(
            self.stages._children.values(), self.classes._children.values(), self.boxes._children.values(), SCALES
        ):
            x = stage(x)
            anchors.append(F.contrib.MultiBoxPrior(x, sizes=sizes, ratios=ratios))
            classes.append(F.flatten(F.transpose(scored(x), axes=(0, 2, 3, 1))))
            boxes.append(F.flatten(F.transpose(located(x), axes=(0, 2, 3, 1))))
        classes = F.reshape(F.concat(*classes, dim=1), shape=(0, -1, CLASSES + 1))
        return F.concat(*anchors, dim=1), classes, F.concat(*boxes, dim=1)


class Segmenter(gluon.HybridBlock):
    """A U-Net as a Gluon net."""

    def __init__(self) -> None:
        super().__init__(prefix="unet_")
        with self.name_scope():
            self.first = nn.Conv2D(6, 3, padding=1, activation="relu")
            self.second = nn.Conv2D(8, 3, strides=2, padding=1)
            self.norm = nn.BatchNorm()
            self.slope = nn.LeakyReLU(0.2)  # the gradient of MXNet's learned slope depends on hybridize
            self.up = nn.Conv2DTranspose(6, 4, strides=2, padding=1, use_bias=False)
            self.score = nn.Conv2D(CLASSES, 1)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        first = self.first(x)
        second = self.slope(self.norm(self.second(first)))
        learned = F.slice_like(self.up(second), first, axes=(2, 3))
        nearest = F.slice_like(F.UpSampling(second, scale=2, sample_type="nearest"), first, axes=(2, 3))
        x = F.concat(first + learned, nearest, dim=1)
        return F.contrib.BilinearResize2D(self.score(x), height=12, width=14)
