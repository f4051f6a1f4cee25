"""Brings nets in Caffe's two older forms to the present one, as Caffe itself does when it loads them.

The older forms cannot name Python layers. V1 has `layers { type: CONVOLUTION blobs_lr: 1 ... }`; V0 wraps a flat
message in it: `layers { layer { type: "conv" kernelsize: 3 ... } bottom: ... }`. Comments stay where they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from clgraft.caffe_layers.prototxt import (
    Document,
    Edits,
    Field,
    Message,
    Scalar,
    Value,
    check,
    indent_of,
    newline_of,
    quote,
    schema,
)
from clgraft.caffe_layers.swap.rules import FOREIGN

# names that differ from the joined words of the enum
_V1_TYPES = {
    "NONE": "",
    "ABSVAL": "AbsVal",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "IM2COL": "Im2col",
    "LRN": "LRN",
    "MVN": "MVN",
    "RELU": "ReLU",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "TANH": "TanH",
}
_V0_TYPES = {
    "accuracy": "Accuracy",
    "bnll": "BNLL",
    "concat": "Concat",
    "conv": "Convolution",
    "data": "Data",
    "dropout": "Dropout",
    "euclidean_loss": "EuclideanLoss",
    "flatten": "Flatten",
    "hdf5_data": "HDF5Data",
    "hdf5_output": "HDF5Output",
    "im2col": "Im2col",
    "images": "ImageData",
    "infogain_loss": "InfogainLoss",
    "innerproduct": "InnerProduct",
    "lrn": "LRN",
    "multinomial_logistic_loss": "MultinomialLogisticLoss",
    "pool": "Pooling",
    "relu": "ReLU",
    "sigmoid": "Sigmoid",
    "softmax": "Softmax",
    "softmax_loss": "SoftmaxWithLoss",
    "split": "Split",
    "tanh": "TanH",
    "window_data": "WindowData",
}
_DATA = {"data": "data_param", "images": "image_data_param", "window_data": "window_data_param"}
_WINDOWED = {"conv": "convolution_param", "pool": "pooling_param"}
_WEIGHTED = {"conv": "convolution_param", "innerproduct": "inner_product_param"}
_TRANSFORM = dict.fromkeys(_V0_TYPES, "transform_param")
# a V0 field: what it is called now, and for which types in which message
_V0_FIELDS: dict[str, tuple[str, dict[str, str]]] = {
    "num_output": ("num_output", _WEIGHTED),
    "biasterm": ("bias_term", _WEIGHTED),
    "weight_filler": ("weight_filler", _WEIGHTED),
    "bias_filler": ("bias_filler", _WEIGHTED),
    "pad": ("pad", _WINDOWED),
    "kernelsize": ("kernel_size", _WINDOWED),
    "stride": ("stride", _WINDOWED),
    "group": ("group", {"conv": "convolution_param"}),
    "pool": ("pool", {"pool": "pooling_param"}),
    "dropout_ratio": ("dropout_ratio", {"dropout": "dropout_param"}),
    "local_size": ("local_size", {"lrn": "lrn_param"}),
    "alpha": ("alpha", {"lrn": "lrn_param"}),
    "beta": ("beta", {"lrn": "lrn_param"}),
    "k": ("k", {"lrn": "lrn_param"}),
    "concat_dim": ("concat_dim", {"concat": "concat_param"}),
    "source": ("source", {**_DATA, "hdf5_data": "hdf5_data_param", "infogain_loss": "infogain_loss_param"}),
    "batchsize": ("batch_size", {**_DATA, "hdf5_data": "hdf5_data_param"}),
    "rand_skip": ("rand_skip", {"data": "data_param", "images": "image_data_param"}),
    "shuffle_images": ("shuffle", {"images": "image_data_param"}),
    "new_height": ("new_height", {"images": "image_data_param"}),
    "new_width": ("new_width", {"images": "image_data_param"}),
    "det_fg_threshold": ("fg_threshold", {"window_data": "window_data_param"}),
    "det_bg_threshold": ("bg_threshold", {"window_data": "window_data_param"}),
    "det_fg_fraction": ("fg_fraction", {"window_data": "window_data_param"}),
    "det_context_pad": ("context_pad", {"window_data": "window_data_param"}),
    "det_crop_mode": ("crop_mode", {"window_data": "window_data_param"}),
    "scale": ("scale", _TRANSFORM),
    "meanfile": ("mean_file", _TRANSFORM),
    "cropsize": ("crop_size", _TRANSFORM),
    "mirror": ("mirror", _TRANSFORM),
}
_V1_TRANSFORM = {"DATA": "data_param", "IMAGE_DATA": "image_data_param", "WINDOW_DATA": "window_data_param"}
_V0_OUTSIDE = ("layer", "bottom", "top")  # what Caffe reads of a V0 layer outside of its inner brackets
_PARAM_PARTS = {"param": "name", "blob_share_mode": "share_mode", "blobs_lr": "lr_mult", "weight_decay": "decay_mult"}


class Upgraded(NamedTuple):
    """A net in the present form, what was done as lines for the report, and where its layers stood before.

    `document` is the tree of the text where it had that form already.
    """

    text: str
    notes: list[str]
    lines: list[int]
    document: Document | None = None


def upgrade(text: str) -> Upgraded:
    """Bring a net to the present form; a net that has it already comes back as it is.

    Raises
    ------
    PrototxtError
        When the text mixes the forms, as Caffe forbids, or names a type that Caffe cannot upgrade.
    """
    document = Document(text)
    old = document.root.all("layers")
    if not old:
        lines = [document.place(layer.start)[0] for layer in document.root.messages("layer")]
        return Upgraded(text, [], lines, document)
    check(document, schema.descriptor("NetParameter"), FOREIGN)
    _expect_upgradable(document, old)
    flat, oldest, dropped = _unwrap(document)
    lines = [document.place(item.start)[0] for item in old]
    document = Document(flat)
    edits = Edits(flat)
    form = "V0" if oldest else "V1"
    notes = [f"{len(old)} layers of the older form {form} were upgraded first, as Caffe does on loading", *dropped]
    padding = _padding(document, oldest)
    kept = []
    for index, item in enumerate(document.root.all("layers")):
        layer = item.values[0]
        assert isinstance(layer, Message)  # the check guarantees it
        if index in oldest and layer.text("type") == "padding":
            edits.remove(item.start, item.after)
            continue
        kept.append(lines[index])
        edits.replace(item.start, item.name_end, "layer")
        if index in oldest:
            _upgrade_v0(document, layer, padding, edits, notes)
        else:
            _upgrade_v1(document, layer, edits)
        _upgrade_params(document, layer.fields, edits)
    return Upgraded(edits.apply(), notes, kept)


def _expect_upgradable(document: Document, old: Sequence[Field]) -> None:
    """Raise for what Caffe refuses, while offsets are still those of the user's text."""
    new = document.root.all("layer")
    if new:
        raise document.lines.error("got layer together with layers, expected one of the two forms", new[0].start)
    for item in old:
        if item.is_list:
            raise document.lines.error("got a list of layers, expected one message for each", item.start)
        layer = item.values[0]
        assert isinstance(layer, Message)
        inner = layer.messages("layer")
        if not inner:
            for value in layer.values("type"):
                _v1_name(document, value)
            continue
        kind = inner[0].text("type")
        if kind == "padding":
            if len(layer.values("bottom")) != 1 or len(layer.values("top")) != 1:
                raise document.lines.error("got a padding layer, expected it with one bottom and one top", item.start)
        elif kind not in _V0_TYPES:
            place = [value.start for value in inner[0].values("type")] or [inner[0].start]
            raise document.lines.error(f"got type {kind!r}, expected a type of Caffe's oldest form", place[0])


def _unwrap(document: Document) -> tuple[str, set[int], list[str]]:
    """Remove V0's inner brackets and their indentation; return the text, which layers had them, and notes."""
    edits = Edits(document.text)
    oldest = set()
    notes = []
    for index, layer in enumerate(document.root.messages("layers")):
        for holder in layer.all("layer"):
            inner = holder.values[0]
            assert isinstance(inner, Message)
            oldest.add(index)
            for item in layer.fields:
                if item.name not in _V0_OUTSIDE:
                    notes.append(f"{inner.text('name')}: {item.name} outside of its layer is dropped, as Caffe does")
                    edits.remove(item.start, item.after)
            edits.remove(holder.start, inner.start + 1)
            edits.remove(inner.end - 1, max(holder.after, inner.end))
            outside = indent_of(document.text, holder.start)
            first_line = document.text.find("\n", inner.start) + 1
            if not inner.fields or not 0 < first_line <= inner.fields[0].start:
                continue
            inside = indent_of(document.text, inner.fields[0].start)
            if not inside.startswith(outside):
                continue
            last_line = document.text.rfind("\n", 0, inner.end - 1) + 1
            for match in re.finditer(r"(?m)^" + re.escape(inside), document.text[first_line:last_line]):
                start = first_line + match.start()
                edits.replace(start + len(outside), start + len(inside), "")
    return edits.apply(), oldest, notes


@dataclass
class _Group:
    """Fields that move into one message, which takes the place of the first of them."""

    place: Field
    indent: str
    parts: list[str] = field(default_factory=list)


class _Regroup:
    """Collects fields for messages that only the present form has."""

    def __init__(self, document: Document, layer: Message, edits: Edits) -> None:
        self.document, self.edits = document, edits
        self.groups: dict[str, _Group] = {}
        self.one_line = "\n" not in document.span(layer)

    def move(self, item: Field, target: str, name: str) -> None:
        """Move a field into the message `target` under a new name."""
        if target not in self.groups:
            self.groups[target] = _Group(item, indent_of(self.document.text, item.start))
        else:
            self.edits.remove(item.start, item.after)
        self.groups[target].parts.append(f"{name}{self.document.text[item.name_end : item.end]}")

    def finish(self) -> None:
        newline = newline_of(self.document.text)
        for target, group in self.groups.items():
            between = " " if self.one_line else newline + group.indent + "  "
            ending = " " if self.one_line else newline + group.indent
            parts = [re.sub(r"\n(?=[^\r\n])", "\n  ", part) for part in group.parts]
            text = f"{target} {{{between}{between.join(parts)}{ending}}}"
            self.edits.replace(group.place.start, group.place.after, text)


def _upgrade_v1(document: Document, layer: Message, edits: Edits) -> None:
    kind = ""
    for value in layer.values("type"):
        kind = _v1_name(document, value)
        edits.replace(value.start, value.end, quote(_V1_TYPES.get(kind) if kind in _V1_TYPES else _joined(kind)))
    source = _V1_TRANSFORM.get(kind)
    for holder in layer.all(source) if source else []:
        assert isinstance(holder.values[0], Message)
        moved = [item for item in holder.values[0].fields if item.name in ("scale", "mean_file", "crop_size", "mirror")]
        if not moved:
            continue
        parts = [document.span(item) for item in moved]
        existing = layer.messages("transform_param")
        if existing:
            # the older place wins, as in Caffe
            names = {item.name for item in moved}
            for item in existing[0].fields:
                if item.name in names:
                    edits.remove(item.start, item.after)
            edits.insert(existing[0].start + 1, " " + " ".join(parts) + " ")
        else:
            text = f"transform_param {{ {' '.join(parts)} }}"
            edits.insert(holder.start, text + _gap(document, holder))
        for item in moved:
            edits.remove(item.start, item.after)


def _v1_name(document: Document, value: Value) -> str:
    assert isinstance(value, Scalar)
    types = schema.descriptor("V1LayerParameter").enum_types_by_name["LayerType"]
    if value.kind == "name" and value.value in types.values_by_name:
        return value.value
    if value.kind == "number" and value.value.isdigit() and int(value.value) in types.values_by_number:
        return str(types.values_by_number[int(value.value)].name)
    raise document.lines.error(f"got type {value.raw}, expected a type of Caffe's older form", value.start)


def _joined(kind: str) -> str:
    return "".join(word.capitalize() for word in kind.split("_"))


def _upgrade_params(document: Document, fields: Sequence[Field], edits: Edits) -> None:
    """Turn names, share modes, rates and decays, one list each, into one `param` message for each blob."""
    items = [item for item in fields if item.name in _PARAM_PARTS]
    columns: dict[str, list[str]] = {name: [] for name in _PARAM_PARTS}
    for item in items:
        columns[item.name] += [document.span(value) for value in item.values]
    count = max(map(len, columns.values()))
    params = []
    for index in range(count):
        parts = [f"{new}: {columns[old][index]}" for old, new in _PARAM_PARTS.items() if index < len(columns[old])]
        params.append(f"param {{ {' '.join(parts)} }}")
    for item in items[1:]:
        edits.remove(item.start, item.after)
    if items:
        edits.replace(items[0].start, items[0].after, _gap(document, items[0]).join(params))


def _gap(document: Document, item: Field) -> str:
    """Return the separator between two fields at `item`: a line's end if it begins its line, else a space."""
    line = document.text.rfind("\n", 0, item.start) + 1
    if document.text[line : item.start].strip():
        return " "
    return newline_of(document.text) + document.text[line : item.start]


def _upgrade_v0(
    document: Document, layer: Message, padding: dict[str, Message], edits: Edits, notes: list[str]
) -> None:
    kind = layer.text("type")
    for value in layer.values("type"):
        edits.replace(value.start, value.end, quote(_V0_TYPES[kind]))
    pad = ""
    for value in layer.values("bottom"):
        assert isinstance(value, Scalar)
        if value.value in padding:
            if kind not in _WINDOWED:
                raise document.lines.error(f"got a padding layer before type {kind}, expected conv", value.start)
            source = padding[value.value]
            edits.replace(value.start, value.end, document.span(source.values("bottom")[0]))
            pad = source.text("pad", "0")
    regroup = _Regroup(document, layer, edits)
    for item in layer.fields:
        if item.name not in _V0_FIELDS:
            continue
        name, targets = _V0_FIELDS[item.name]
        if kind not in targets:
            notes.append(
                f"{layer.text('name')}: {item.name} means nothing to type {kind} and is dropped, as Caffe does"
            )
            edits.remove(item.start, item.after)
        elif item.name == "pad" and pad:
            edits.remove(item.start, item.after)
        else:
            regroup.move(item, targets[kind], name)
            if pad and targets[kind] == _WINDOWED.get(kind):
                regroup.groups[targets[kind]].parts.append(f"pad: {pad}")
                pad = ""
    regroup.finish()


def _padding(document: Document, oldest: set[int]) -> dict[str, Message]:
    """Return V0's padding layers by their top: Caffe gives their pad to the convolution that reads them."""
    found = {}
    for index, layer in enumerate(document.root.messages("layers")):
        if index in oldest and layer.text("type") == "padding":
            found[layer.text("top")] = layer
    return found
