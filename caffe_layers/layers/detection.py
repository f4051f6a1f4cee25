"""Layers of detectors: SSD's prior boxes and detections, and Fast R-CNN's regions of interest."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.core.nn import detection, prior_boxes
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor

LOWEST = -float(np.finfo(np.float32).max)  # what no score is below
ROW = 7  # numbers of a detection


class OclPriorBox(BuiltLayer):
    """Boxes around every pixel of bottom 0, and variances of each: (1, 2, 4 boxes). Only shapes are read.

    The image is as large as `img_size`, `img_h` and `img_w` say, or as bottom 1. As in the SSD fork `min_size` and
    `max_size` are taken as whole numbers.
    """

    word: ClassVar[str] = "priorbox"
    bottoms: ClassVar[tuple] = (1, 2)
    may_be_in_place: ClassVar[bool] = False

    def configure(self, shapes: list) -> None:
        given = self.parameters.prior_box_param
        low, high = ([int(side) for side in sides] for sides in (given.min_size, given.max_size))
        self.expect(bool(low) and min(low) > 0, f"min_size {low}", "numbers of at least 1")
        good = not high or (len(high) == len(low) and all(a < b for a, b in zip(low, high)))
        self.expect(good, f"max_size {high}", f"none, or one above each of {low}")
        variances = list(given.variance) or [0.1]
        good = len(variances) in (1, 4) and min(variances) > 0
        self.expect(good, f"variance {variances}", "one number above 0, or four")
        self.image = self.pair("img_size", "img_h", "img_w")
        self.expect(bool(self.image) or len(shapes) == 2, "no img_size and one bottom", "one of the two")
        self.priors = prior_boxes.Priors(
            tuple(low),
            tuple(high),
            self.ratios(),
            tuple(variances * (4 // len(variances))),
            self.pair("step", "step_h", "step_w") or None,
            given.offset,
            given.clip,
        )

    def ratios(self) -> tuple:
        """Return the ratios besides 1."""
        given = self.parameters.prior_box_param
        for ratio in given.aspect_ratio:
            self.expect(ratio > 0, f"aspect_ratio {ratio}", "a number above 0")
        return prior_boxes.further_ratios(given.aspect_ratio, both=given.flip)

    def pair(self, both: str, high: str, wide: str) -> tuple:
        """Return height and width, or nothing where neither field is given."""
        given = self.parameters.prior_box_param
        if not (given.HasField(high) or given.HasField(wide)):
            found = (getattr(given, both),) * 2 if given.HasField(both) else ()
        else:
            self.expect(not given.HasField(both), f"{both} together with {high} or {wide}", "one of the two forms")
            found = getattr(given, high), getattr(given, wide)
        self.expect(not found or min(found) > 0, f"{both} {found}", "numbers above 0")
        return found

    def prepare(self, shapes: list) -> list:
        self.expect(all(len(shape) == 4 for shape in shapes), f"shapes {shapes}", "4 axes")
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        image = self.image or bottoms[1].shape[2:]
        boxes = self.priors.array(bottoms[0].shape[2:], image).astype(np.float32)
        return moves.copied(build, build.constant(boxes), (1, *boxes.shape))


class OclDetectionOutput(BuiltLayer):
    """Detections of locations (n, 4 boxes), confidences (n, boxes classes) and prior boxes: rows (1, 1, rows, 7).

    A row is image, class, confidence, left, top, right, bottom. In a net without Caffe the top has as many rows as
    there are detections; elsewhere it has all that could be, and -1 in those that hold none.
    """

    word: ClassVar[str] = "detection"
    bottoms: ClassVar[tuple] = (3, 3)
    may_be_in_place: ClassVar[bool] = False

    def configure(self, shapes: list) -> None:
        given, nms = self.parameters.detection_output_param, self.parameters.detection_output_param.nms_param
        self.expect(given.num_classes > 0, f"num_classes {given.num_classes}", "at least 1")
        self.expect(nms.eta == 1, f"eta {nms.eta}, a limit that moves", "1")
        self.expect(nms.nms_threshold >= 0, f"nms_threshold {nms.nms_threshold}", "at least 0")
        self.expect(nms.top_k != 0, "top_k 0", "-1 for all, or at least 1")
        self.expect(given.keep_top_k != 0, "keep_top_k 0", "-1 for all, or at least 1")
        background = given.background_label_id
        self.expect(given.num_classes > 1 or background != 0, "the background as the only class", "another one")
        least = given.confidence_threshold if given.HasField("confidence_threshold") else LOWEST
        self.choice = prior_boxes.Choice(background, least, nms.nms_threshold, nms.top_k, given.keep_top_k)
        names = {given.CORNER: "corner", given.CENTER_SIZE: "center_size", given.CORNER_SIZE: "corner_size"}
        self.code = names[given.code_type]

    def prepare(self, shapes: list) -> list:
        given = self.parameters.detection_output_param
        location, confidence, priors = (int(np.prod(shape[1:])) for shape in shapes)
        boxes = priors // 8
        self.apart = 1 if given.share_location else given.num_classes
        self.expect(priors % 8 == 0 and boxes > 0, f"prior boxes of shape {shapes[2]}", "(1, 2, 4 boxes)")
        self.expect(location == boxes * self.apart * 4, f"locations of shape {shapes[0]}", f"{boxes} boxes")
        good = confidence == boxes * given.num_classes and shapes[0][0] == shapes[1][0]
        self.expect(good, f"confidences of shape {shapes[1]}", f"{boxes} boxes of {given.num_classes} classes")
        self.boxes = boxes
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        given, batch, boxes = self.parameters.detection_output_param, bottoms[0].shape[0], self.boxes
        location = build.reshape(bottoms[0], (batch, boxes, self.apart, 4))
        if self.apart > 1:
            location = moves.transposed(build, location, (0, 2, 1, 3))
        location = build.reshape(location, (batch * self.apart, boxes, 4))
        scores = build.reshape(bottoms[1], (batch, boxes, given.num_classes))
        both = build.reshape(bottoms[2], (2, boxes, 4))
        priors, variances = (moves.cut(build, both, (1, boxes, 4), (place, 0, 0)) for place in (0, 1))
        factors = None if given.variance_encoded_in_target else variances
        corners = prior_boxes.boxes_of_priors(build, location, priors, factors, self.code)
        corners = build.reshape(corners, (batch, self.apart, boxes, 4))
        rows = prior_boxes.detections(build, corners, scores, self.choice)
        return build.reshape(rows, (1, 1, rows.shape[0] * rows.shape[1], ROW))

    def chosen(self, build: Build, top: Tensor) -> tuple[Tensor, int, np.ndarray]:
        """Return which rows of the top hold a detection, their axis, and what the top is without any."""
        flags = prior_boxes.is_row(build, build.reshape(top, (top.shape[2], ROW)))
        return flags, 2, prior_boxes.no_rows(self._bottom_shapes[0][0]).reshape(1, 1, -1, ROW)


class OclROIPooling(BuiltLayer):
    """The largest pixels of the parts of regions (rois, 5): image, left, top, right, bottom. It has no gradient."""

    word: ClassVar[str] = "roipooling"
    bottoms: ClassVar[tuple] = (2, 2)
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        given, (shape, rois) = self.parameters.roi_pooling_param, shapes
        self.size = given.pooled_h, given.pooled_w
        self.expect(min(self.size) > 0, f"pooled_h and pooled_w {self.size}", "numbers of at least 1")
        self.expect(len(shape) == 4, f"shape {shape}", "4 axes")
        self.count = rois[0] if rois else 0
        self.expect(int(np.prod(rois)) == 5 * self.count, f"regions of shape {rois}", "(regions, 5)")
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Any:
        x, rois = bottoms
        rows = build.reshape(rois, (self.count, 5))
        scale = self.parameters.roi_pooling_param.spatial_scale
        return detection.pooled_regions(build, x, rows, self.size, scale=scale)
