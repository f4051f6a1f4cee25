"""Pooling layers: windows by Caffe's rules for the last one and for the divisor, of adapted sizes, and of pyramids."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.prototxt.marks import without_marks
from clgraft.core.errors import ProblemError
from clgraft.core.nn import pooling
from clgraft.core.nn.builder import Build, Tensor

AXES = 4  # a bottom has batch, channels, height and width
MAX, AVE, STOCHASTIC = range(3)
FLOOR = 1


class _Pooled(BuiltLayer):
    """Base class of layers with windows."""

    may_be_in_place: ClassVar[bool] = False
    keeps_tops: ClassVar[bool] = True

    def operator_of(self, pool: int) -> str:
        """Return the core's operator for a field `pool`."""
        self.expect(pool != STOCHASTIC, "pool STOCHASTIC, which draws random elements", "MAX or AVE")
        return "max" if pool == MAX else "average"

    def expect_images(self, shape: tuple) -> None:
        """Raise `ProblemError` unless a bottom has the axes of images."""
        self.expect(len(shape) == AXES, f"shape {shape}", f"{AXES} axes")


class OclPooling(_Pooled):
    """Maximum or average of windows; `global_pooling` takes whole planes.

    A second top of MAX gets the mask: where in its plane each maximum stands, as a number; -1 where a window holds
    nothing. STOCHASTIC is refused. `engine` changes nothing. ``ceil_mode: false``, a field of forks, stands for
    ``round_mode: FLOOR``.
    """

    word: ClassVar[str] = "pooling"
    tops: ClassVar[tuple] = (1, 2)

    def configure(self, shapes: list) -> None:
        given = self.parameters.pooling_param
        self.operator = self.operator_of(given.pool)
        self.expect(self.operator == "max" or self.top_count == 1, "2 top blobs with AVE", "1: an average has no mask")
        self.rounding = "floor" if given.round_mode == FLOOR else "ceil_inside"
        if given.HasField("ceil_mode"):
            self.expect(
                not given.HasField("round_mode") or given.ceil_mode == (given.round_mode != FLOOR),
                "a round_mode that contradicts ceil_mode",
                "one of the two",
            )
            self.rounding = "ceil_inside" if given.ceil_mode else "floor"
        self.whole = given.global_pooling
        self.stride = self.per_axis("stride", 1)
        self.pad = self.per_axis("pad", 0)
        if self.whole:
            sizes = [name for name in ("kernel_size", "kernel_h", "kernel_w") if given.HasField(name)]
            self.expect(not sizes, f"{' and '.join(sizes)} together with global_pooling", "one of the two")
            plain = self.stride == (1, 1) and self.pad == (0, 0)
            self.expect(plain, "stride or pad together with global_pooling", "neither")
        else:
            self.kernel = self.per_axis("kernel_size", None)
            self.expect(min(self.kernel) > 0, f"kernel_size {self.kernel}", "numbers of at least 1")
        self.expect(min(self.stride) > 0, f"stride {self.stride}", "numbers of at least 1")

    def per_axis(self, name: str, default: Any) -> tuple:
        """Read a field, or its `_h` and `_w` forms, as height and width."""
        given = self.parameters.pooling_param
        short = name.split("_")[0]
        high, wide = f"{short}_h", f"{short}_w"
        if not (given.HasField(high) or given.HasField(wide)):
            self.expect(default is not None or given.HasField(name), f"no {name}", f"{name}, or {high} and {wide}")
            return (getattr(given, name),) * 2
        self.expect(not given.HasField(name), f"{name} together with {high} or {wide}", "one of the two forms")
        both = given.HasField(high) and given.HasField(wide)
        self.expect(both, f"{high} or {wide} alone", "both")
        return getattr(given, high), getattr(given, wide)

    def prepare(self, shapes: list) -> list:
        self.expect_images(shapes[0])
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> tuple:
        (x,) = bottoms
        kernel = x.shape[2:] if self.whole else self.kernel
        given = {"stride": self.stride, "pad": self.pad, "rounding": self.rounding}
        if self.top_count > 1:
            return pooling.pool_with_places(build, x, kernel, **given)
        return (pooling.pool(build, x, self.operator, kernel, **given),)


class OclSPP(_Pooled):
    """Spatial pyramid pooling (He et al. 2014): 1, 4, 16, ... windows of each plane side by side, as rows."""

    word: ClassVar[str] = "spp"

    def configure(self, shapes: list) -> None:
        given = self.parameters.spp_param
        self.operator = self.operator_of(given.pool)
        self.expect(given.pyramid_height > 0, f"pyramid_height {given.pyramid_height}", "at least 1")

    def prepare(self, shapes: list) -> list:
        shape = shapes[0]
        self.expect_images(shape)
        most = pooling.most_windows(self.parameters.spp_param.pyramid_height)
        self.expect(min(shape) >= 1 and most <= min(shape[2:]), f"{most} windows of {shape[2:]}", "at most the pixels")
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        (x,), levels = bottoms, self.parameters.spp_param.pyramid_height
        y = pooling.pyramid(build, x, self.operator, levels)
        return y if levels > 1 else build.reshape(y, (*x.shape[:2], 1, 1))


class OclAdaptiveMaxPooling(_Pooled):
    """Maxima of as many windows as wanted, for bottoms of any size; windows begin and end where PyTorch's do.

    `param_str` is JSON, ``{"output_size": [3, 2]}``: the windows of each of one to three spatial axes. A second top
    gets the mask, as that of `OclPooling`.
    """

    word: ClassVar[str] = "adaptive_pooling"
    tops: ClassVar[tuple] = (1, 2)

    def read(self, text: str) -> None:
        self.parameters = schema.parse_layer("")
        try:
            given = json.loads(without_marks(text))
            self.parameters.name = str(given.get("name", ""))
            self.sizes = tuple(int(size) for size in given["output_size"])
        except (ValueError, TypeError, KeyError, AttributeError):
            expected = 'JSON such as {"output_size": [3, 2]}'
            raise ProblemError(f"[{self.word}] got param_str {text!r}, expected {expected}") from None

    def build(self, build: Build, bottoms: list, blobs: list) -> tuple:
        return pooling.adaptive_max_pool(build, bottoms[0], self.sizes, indices=self.top_count > 1)
