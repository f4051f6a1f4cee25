"""Rows of `INNER`: recurrent layers, and parts of detection nets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

from clgraft.core.nn import deformable, detection, recurrent
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Shape
from clgraft.mxnet_ops.operators.inner import (
    INNER,
    Given,
    InnerRow,
    Reader,
    expect,
    flag,
    ignored,
    integer,
    number,
    without,
    word,
)

# recurrent layers

CELLS = {"rnn_relu": "relu", "rnn_tanh": "tanh", "lstm": "lstm", "gru": "gru"}


def _rnn_arguments(given: Given) -> tuple[str, ...]:
    return ("data", "parameters", "state", *(("state_cell",) if given["mode"] == "lstm" else ()))


def _rnn_outputs(given: Given) -> tuple[str, ...]:
    if not given["state_outputs"]:
        return ("output",)
    return ("output", "state_output", *(("statecell_output",) if given["mode"] == "lstm" else ()))


def _sizes(given: Given) -> tuple[int, int, int]:
    """Return the size of a state, layers, and directions."""
    return given["state_size"], given["num_layers"], 1 + given["bidirectional"]


def _rnn_shapes(given: Given, shapes: Sequence[Shape | None]) -> tuple[list[Shape], list[Shape]] | None:
    data = shapes[0]
    if data is None:
        return None
    expect(len(data) == 3, f"data of shape {data}", "3 axes: steps, batch, inputs")
    size, layers, ways = _sizes(given)
    count = recurrent.parameter_count(CELLS[given["mode"]], data[2], size, layers, ways)
    states = [(layers * ways, data[1], size)] * (len(_rnn_arguments(given)) - 2)
    outputs = [(data[0], data[1], ways * size), *states[: len(_rnn_outputs(given)) - 1]]
    return [data, (count,), *states], outputs


def _rnn(build: Build, x: Tensor, parameters: Tensor, *values: Tensor, mode: str, p: float, **given: Any) -> Any:
    states = len(_rnn_arguments({"mode": mode})) - 2
    first, keys = values[:states], values[states:]
    size, layers, ways = _sizes(given)
    weights = recurrent.unpacked(build, parameters, CELLS[mode], x.shape[2], size, layers, ways)
    found = recurrent.layers(build, CELLS[mode], x, weights, *first, ways=ways, rate=p, keys=keys)
    if not given["state_outputs"]:
        return found.y
    return (found.y, found.h) if found.c is None else tuple(found)


def _rnn_keys(given: Given) -> int:
    return given["num_layers"] - 1 if given["p"] else 0


def _share(attributes: Attributes, name: str) -> float:
    share = attributes.number(name, 0.0)
    if not 0 <= share < 1:
        raise attributes.error(name, share, "a number from 0 to below 1")
    return share


# boxes


def _rows(build: Build, x: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what a function makes of data as (batch, rows, columns), in their own shape."""
    expect(x.ndim >= 2, f"data of shape {x.shape}", "at least 2 axes")
    return build.reshape(make(build.reshape(x, (math.prod(x.shape[:-2]), *x.shape[-2:]))), x.shape)


def _box_nms(
    build: Build,
    x: Tensor,
    overlap_thresh: float,
    valid_thresh: float,
    topk: int,
    coord_start: int,
    score_index: int,
    id_index: int,
    background_id: int,
    force_suppress: bool,
    in_format: str,
    out_format: str,
) -> Tensor:
    boxes = detection.Boxes(
        coord_start, score_index, id_index, background_id, not force_suppress, in_format, out_format
    )
    limits = {"overlap": overlap_thresh, "least": valid_thresh, "most": topk}
    return _rows(build, x, lambda rows: detection.suppressed(build, rows, boxes, **limits))


def _box_decode(build: Build, x: Tensor, anchors: Tensor, clip: float, format: str, **given: float) -> Tensor:
    expect(x.ndim == 3 and x.shape[2] == 4, f"data of shape {x.shape}", "(batch, boxes, 4)")
    good = anchors.shape in (x.shape, (1, *x.shape[1:]))
    expect(good, f"anchors of shape {anchors.shape}", f"(1 or {x.shape[0]}, {x.shape[1]}, 4)")
    scales = tuple(given[f"std{i}"] for i in range(4))
    return detection.decoded(build, x, anchors, scales, limit=clip, source=format)


def _two(attributes: Attributes, name: str) -> tuple[int, ...]:
    found = attributes.sizes(name, low=1)
    if len(found) != 2:
        raise attributes.error(name, found, "2 numbers")
    return found


def _roi_align(
    build: Build,
    x: Tensor,
    rois: Tensor,
    pooled_size: tuple[int, int],
    spatial_scale: float,
    sample_ratio: int,
    aligned: bool,
    **_: Any,
) -> Tensor:
    expect(x.ndim == 4, f"data of shape {x.shape}", "4 axes")
    expect(rois.ndim == 2 and rois.shape[1] == 5, f"rois of shape {rois.shape}", "(regions, 5)")
    given = {"scale": spatial_scale, "samples": sample_ratio, "half_pixel": aligned}
    return detection.regions(build, x, rois, pooled_size, **given)


def _roi_pooling(build: Build, x: Tensor, rois: Tensor, pooled_size: tuple[int, int], spatial_scale: float) -> Tensor:
    expect(x.ndim == 4, f"data of shape {x.shape}", "4 axes")
    expect(rois.ndim == 2 and rois.shape[1] == 5, f"rois of shape {rois.shape}", "(regions, 5)")
    return detection.pooled_regions(build, x, rois, pooled_size, scale=spatial_scale)


# deformable convolutions


def _deformable_arguments(masked: bool) -> Callable[[Given], tuple[str, ...]]:
    def names(given: Given) -> tuple[str, ...]:
        bias = () if given["no_bias"] else ("bias",)
        return ("data", "offset", *(("mask",) if masked else ()), "weight", *bias)

    return names


def _deformable_shapes(masked: bool) -> Callable[..., Any]:
    def shapes_of(given: Given, shapes: Sequence[Shape | None]) -> tuple[list[Shape], list[Shape]] | None:
        data = shapes[0]
        if data is None:
            return None
        expect(len(data) == 4, f"data of shape {data}", "4 axes")
        sizes = {"groups": given["num_group"], "parts": given["num_deformable_group"]}
        found = deformable.shapes_of(data, given["num_filter"], _window(given), **sizes)
        expect(min(found.result[2:]) > 0, f"data of shape {data}", f"images that hold kernels of {given['kernel']}")
        mask = [found.mask] if masked else []
        bias = [] if given["no_bias"] else [(given["num_filter"],)]
        return [data, found.offset, *mask, found.weight, *bias], [found.result]

    return shapes_of


def _window(given: Given) -> deformable.Window:
    usual = {"stride": (1, 1), "dilate": (1, 1), "pad": (0, 0)}
    return deformable.Window(given["kernel"], *(given[name] or usual[name] for name in usual))


def _deformable(masked: bool) -> Callable[..., Tensor]:
    def built(build: Build, x: Tensor, offset: Tensor, *more: Tensor, **given: Any) -> Tensor:
        mask, (weight, *bias) = (more[0], more[1:]) if masked else (None, more)
        return deformable.convolution(
            build,
            x,
            weight,
            offset,
            mask,
            bias[0] if bias else None,
            _window(given),
            groups=given["num_group"],
            parts=given["num_deformable_group"],
            beyond=masked,
        )

    return built


def _pair(attributes: Attributes, name: str) -> tuple[int, ...]:
    found = attributes.sizes(name, ())
    if len(found) not in (0, 2):
        raise attributes.error(name, found, "2 numbers")
    return found


def _deformable_row(masked: bool) -> InnerRow:
    readers: dict[str, Reader] = {
        "kernel": _two,
        **dict.fromkeys(("stride", "dilate", "pad"), _pair),
        "num_filter": integer(low=1),
        **dict.fromkeys(("num_group", "num_deformable_group"), integer(1, 1)),
        "no_bias": flag,
        "layout": word("NCHW"),
        **dict.fromkeys(("workspace", "im2col_step"), ignored),
    }
    return InnerRow(
        _deformable_arguments(masked),
        _deformable(masked),
        readers,
        real=True,
        inferred=("weight", "bias"),
        shapes=_deformable_shapes(masked),
        outside=_untrained,
    )


def _untrained(given: Given) -> str:
    return "it has no gradient in regions"


INNER.update(
    {
        "RNN": InnerRow(
            _rnn_arguments,
            _rnn,
            {
                "state_size": integer(low=1),
                "num_layers": integer(low=1),
                "bidirectional": flag,
                "mode": lambda attributes, name: attributes.choice(name, CELLS),
                "p": _share,
                "state_outputs": flag,
                "projection_size": without("projection of the state"),
                "lstm_state_clip_min": without("limit of what an LSTM remembers"),
                "lstm_state_clip_max": without("limit of what an LSTM remembers"),
                "lstm_state_clip_nan": ignored,
                "use_sequence_length": without("sequence length of each image"),
            },
            real=True,
            outputs=_rnn_outputs,
            inferred=("parameters", "state", "state_cell"),
            learned=("parameters",),
            shapes=_rnn_shapes,
            keys=_rnn_keys,
        ),
        "_contrib_box_nms": InnerRow(
            ("data",),
            _box_nms,
            {
                "overlap_thresh": number(0.5),
                "valid_thresh": number(0.0),
                "topk": integer(-1),
                "coord_start": integer(2, 0),
                "score_index": integer(1, 0),
                "id_index": integer(-1),
                "background_id": integer(-1),
                "force_suppress": flag,
                "in_format": word(*detection.FORMATS),
                "out_format": word(*detection.FORMATS),
            },
            real=True,
            outputs=("output0",),
        ),
        "_contrib_box_decode": InnerRow(
            ("data", "anchors"),
            _box_decode,
            {**{f"std{i}": number(1.0) for i in range(4)}, "clip": number(-1.0), "format": word("center", "corner")},
            real=True,
        ),
        "_contrib_ROIAlign": InnerRow(
            ("data", "rois"),
            _roi_align,
            {
                "pooled_size": _two,
                "spatial_scale": number(),
                "sample_ratio": integer(-1),
                "position_sensitive": without("sum over parts of the channels"),
                "aligned": flag,
            },
            real=True,
            outside=_untrained,
        ),
        "ROIPooling": InnerRow(
            ("data", "rois"),
            _roi_pooling,
            {"pooled_size": _two, "spatial_scale": number()},
            real=True,
            outside=_untrained,
        ),
        "_contrib_DeformableConvolution": _deformable_row(False),
        "_contrib_ModulatedDeformableConvolution": _deformable_row(True),
    }
)
