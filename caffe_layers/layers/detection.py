"""Layers of detectors: SSD's prior boxes and detections, and Fast R-CNN's regions of interest."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.core.nn import detection, prior_boxes
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor

LOWEST = -float(np.finfo(np.float32).max)  # what no score is below


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
            tuple(variances if len(variances) == 4 else variances * 4),
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
        found = prior_boxes.sizes_of_output(priors, given.num_classes, shared=given.share_location)
        self.expect(priors == 8 * found[0] > 0, f"prior boxes of shape {shapes[2]}", "(1, 2, 4 boxes)")
        self.expect(location == found[1], f"locations of shape {shapes[0]}", f"{found[0]} boxes")
        good = confidence == found[2] and shapes[0][0] == shapes[1][0]
        self.expect(good, f"confidences of shape {shapes[1]}", f"{found[0]} boxes of {given.num_classes} classes")
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        given = self.parameters.detection_output_param
        return prior_boxes.detection_output(
            build,
            *bottoms,
            self.choice,
            classes=given.num_classes,
            shared=given.share_location,
            encoded=given.variance_encoded_in_target,
            code=self.code,
        )

    def chosen(self, build: Build, top: Tensor) -> tuple[Tensor, int, np.ndarray]:
        """Return which rows of the top hold a detection, their axis, and what the top is without any."""
        flags = prior_boxes.is_row(build, build.reshape(top, top.shape[2:]))
        return flags, 2, prior_boxes.no_rows(self._bottom_shapes[0][0])[None, None]


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
