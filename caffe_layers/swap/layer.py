"""Replaces one of Caffe's layers by a Python layer that holds everything needed to restore it.

The original parameters move unchanged into `param_str`; the text around them stays.
A batch norm needs multipliers of zero for its statistics, and a loss its weight and a top, which a Python layer has to
write out: comments in `param_str` record what that changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from clgraft.caffe_layers.prototxt import Document, Edits, Field, Message, Scalar, indent_of, newline_of, quote
from clgraft.caffe_layers.prototxt.marks import FORCED, REGION
from clgraft.caffe_layers.swap.rules import MODULE, OURS, OWN, Rule, SwapError

_FROZEN = "param { lr_mult: 0 decay_mult: 0 }"
TRUE, FALSE = ("true", "t", "1", "True"), ("false", "f", "0", "False")
_STATISTICS = 3  # number of blobs of a batch norm
# fields of param_str that are copies of what the layer says outside of it
_ADDED = ("name", "type", "param")
_NOTE = re.compile(r"# clgraft (param \d+|verbatim|top|loss_weight)(?: was (.*))?")


def swap_layer(
    document: Document, layer: Message, rule: Rule, edits: Edits, marks: Sequence[str] = (), cpp: bool = False
) -> str:
    """Replace one layer.

    Parameters
    ----------
    document, layer
        The net and the layer in it.
    rule : Rule
        What it becomes.
    edits : Edits
        Where the changes are collected.
    marks : sequence of str, optional
        Lines for `param_str` that say in which regions the layer is.
    cpp : bool
        Whether it becomes a C++ layer, which reads `param_str` too, and no Python layer.

    Returns
    -------
    str
        Why the layer could not be replaced; empty if it was.
    """
    if layer.messages("python_param"):
        return "already holds a python_param"
    type_value = layer.values("type")[-1]
    own = [item for item in layer.fields if item.name in (rule.parameters, rule.more)]
    if len({item.name for item in own}) > 1 and layer.fields.index(own[-1]) - layer.fields.index(own[0]) >= len(own):
        return f"its {rule.parameters} and {rule.more} stand apart"
    native = own[0] if own else None
    end = own[-1].end if native is not None and own[-1].name != native.name else native.end if native is not None else 0
    if native is not None and not _is_utf8(document.text[native.start : end]):
        return "its parameters hold bytes that are not UTF-8"
    if rule.layer == "OclPooling":
        reason = _pooling_refusal(layer)
        if reason:
            return reason
    notes: list[str] = []
    if rule.layer == "OclBatchNorm":
        reason = _freeze_statistics(document, layer, edits, notes)
        if reason:
            return reason
    if rule.loss:
        notes += weigh_loss(document, layer, edits)
    notes += marks
    one_line = "\n" not in document.span(layer)
    # Caffe tells a Python layer neither its name nor what is frozen
    name = layer.text("name")
    titles = [f"name: {quote(name)}"] if name and _is_utf8(name) else []
    frozen = _frozen_params(document, layer) if rule.layer != "OclBatchNorm" else []
    head = " ".join([*titles, "type: " + document.span(type_value), *frozen])
    edits.replace(type_value.start, type_value.end, quote(rule.layer if cpp else "Python"))
    if native is not None:
        indent = indent_of(document.text, native.start)
        text = document.text[native.start : end]
        if not one_line:
            shifted = text.replace("\n" + indent, "\n")
            if _shift(shifted, indent) == text:
                text = shifted
            else:
                notes.append("# clgraft verbatim")
        edits.replace(native.start, end, _python_param(rule, head, notes, text, indent, one_line, document.text))
        return ""
    last = layer.fields[-1]
    rest_of_line = document.text[last.after : layer.end - 1]
    if "\n" in rest_of_line:
        indent = indent_of(document.text, last.start)
        place = last.after + rest_of_line.index("\n")
        if document.text[place - 1] == "\r":
            place -= 1
        text = _python_param(rule, head, notes, "", indent, one_line, document.text)
        edits.insert(place, newline_of(document.text) + indent + text)
    else:
        edits.insert(last.after, " " + _python_param(rule, head, notes, "", "", True, document.text))
    return ""


def expression_of(layer: Message) -> Scalar | None:
    """Return the text of a layer whose `param_str` is the user's own, such as an `OclPointwise`; None for others."""
    for parameters in layer.messages("python_param"):
        if parameters.text("module") == MODULE and parameters.text("layer") in OWN:
            texts = [value for value in parameters.values("param_str") if isinstance(value, Scalar)]
            return texts[-1] if texts else None
    return None


def mark_expression(layer: Message, edits: Edits, marks: Sequence[str]) -> None:
    """Add the marks of regions to the user's own text of a layer, as one more string literal."""
    expression = expression_of(layer)
    if expression is not None and marks:
        edits.insert(expression.end, " " + quote("".join(f"\n{line}" for line in marks)))


def _restore_expression(layer: Message, edits: Edits) -> None:
    """Undo `mark_expression`."""
    expression = expression_of(layer)
    if expression is not None:
        begin = expression.raw.rfind(" " + quote("\n" + REGION)[:-1])
        if begin >= 0:
            edits.replace(expression.start + begin, expression.end, "")


def restore_layer(document: Document, layer: Message, edits: Edits) -> str | None:
    """Undo `swap_layer`.

    Returns
    -------
    str or None
        The original type; None if the layer is not one of clgraft's.

    Raises
    ------
    SwapError
        If the layer is clgraft's but its `param_str` has no type.
    """
    if layer.text("type") not in ("Python", *OURS):
        return None
    holders = layer.all("python_param")
    if len(holders) != 1 or not isinstance(holders[0].values[0], Message):
        return None
    holder, parameters = holders[0], holders[0].values[0]
    if parameters.text("module") != MODULE:
        return None
    if parameters.text("layer") in OWN:  # never was a layer of Caffe's
        _restore_expression(layer, edits)
        return None
    inner = Document(parameters.text("param_str"))
    kinds = [value for value in inner.root.values("type") if isinstance(value, Scalar)]
    if not kinds:
        line, column = document.place(holder.start)
        raise SwapError(f"[swap] line {line}, column {column}: got a param_str without type, expected the native type")
    notes = dict(_NOTE.findall(inner.text))
    for value in layer.values("type"):
        edits.replace(value.start, value.end, inner.span(kinds[0]))
    native = [item for item in inner.root.fields if item.name not in _ADDED]
    if native:
        text = inner.text[native[0].start : native[-1].end]
        if "verbatim" not in notes:
            text = _shift(text, indent_of(document.text, holder.start))
        edits.replace(holder.start, holder.end, text)
    else:
        _remove_inserted(document, holder, edits)
    params = layer.all("param")
    for name in ("top", "loss_weight"):
        for item in layer.all(name) if name in notes else []:
            _remove_inserted(document, item, edits)
    for note, was in notes.items():
        if note.startswith("param ") and int(note.split()[1]) < len(params):
            item = params[int(note.split()[1])]
            if was == "null":
                _remove_inserted(document, item, edits)
            else:
                edits.replace(item.start, item.end, json.loads(was))
    return kinds[0].value


def _frozen_params(document: Document, layer: Message) -> list[str]:
    """Return the `param` messages that tell the layer which of its blobs have a learning rate of zero.

    Caffe computes no gradient for such a blob, and with `clip_gradients` the gradient is no part of the norm; Python
    layers are not told. A net that forces gradients computes all of them.
    """
    if _forces_gradients(document, layer):
        return []
    frozen = [_is_zero(message.text("lr_mult", "1")) for message in layer.messages("param")]
    while frozen and not frozen[-1]:
        frozen.pop()
    return ["param { lr_mult: 0 }" if zero else "param { }" for zero in frozen]


def _pooling_refusal(layer: Message) -> str:
    """Return why a pooling layer has no counterpart, empty if it has one."""
    if any(parameters.text("pool") in ("STOCHASTIC", "2") for parameters in layer.messages("pooling_param")):
        return "STOCHASTIC draws random elements"
    for parameters in layer.messages("pooling_param"):
        rounding, ceil = parameters.text("round_mode"), parameters.text("ceil_mode")
        if rounding and ceil and (ceil in TRUE) != (rounding in ("CEIL", "0")):
            return "its round_mode and ceil_mode contradict each other"
    average = any(parameters.text("pool") in ("AVE", "1") for parameters in layer.messages("pooling_param"))
    if average and len(layer.values("top")) > 1:
        return "an average has no mask for its second top, Caffe refuses it"
    return ""


def _freeze_statistics(document: Document, layer: Message, edits: Edits, notes: list[str]) -> str:
    """Set three multipliers of zero for a batch norm; return the reason if that is impossible."""
    params = layer.all("param")
    values = layer.messages("param")
    if len(params) != len(values):
        return "its params are written as a list"
    if len(params) > _STATISTICS:
        return f"holds {len(params)} params, a batch norm has {_STATISTICS}"
    if len(params) < _STATISTICS and not all(_is_zero(value.text("lr_mult", "1")) for value in values):
        # with all three given Caffe sets the multipliers to zero itself, whatever the file says
        return "its statistics have a learning rate, which Caffe refuses"
    for index, (item, value) in enumerate(zip(params, values)):
        if _set_to_zero(value, ("lr_mult", "decay_mult"), edits):
            notes.append(f"# clgraft param {index} was {json.dumps(document.span(item))}")
    missing = _STATISTICS - len(params)
    if missing:
        anchor = params[-1] if params else layer.all("type")[-1]
        _insert_after(document, layer, anchor, [_FROZEN] * missing, edits)
        notes.extend(f"# clgraft param {len(params) + index} was null" for index in range(missing))
    return ""


def _insert_after(document: Document, layer: Message, anchor: Field, texts: list[str], edits: Edits) -> None:
    """Insert fields after another one, on lines of their own if it ends its line."""
    after = document.text[anchor.after : layer.end - 1].split("\n", 1)[0]
    own_line = "\n" in document.text[anchor.after : layer.end] and (not after.strip() or after.lstrip()[0] == "#")
    if own_line:
        between = newline_of(document.text) + indent_of(document.text, anchor.start)
        place = anchor.after + len(after.rstrip("\r"))
    else:
        between, place = " ", anchor.after
    following = document.text[place : place + 1]
    close = ";" if texts[-1][-1].isalnum() and (following.isalnum() or following in "_.-+") else ""
    edits.insert(place, "".join(between + text for text in texts) + close)


def weigh_loss(document: Document, layer: Message, edits: Edits) -> list[str]:
    """Write out the defaults of Caffe's own loss, a weight of 1 and a top; return the notes about them.

    A net that forces gradients asks a Python layer for those of its labels too, but not Caffe's own: that is noted.
    """
    notes, texts = [], []
    tops = len(layer.values("top"))
    if not tops:
        texts.append(f"top: {quote(implied_top(document, layer))}")
        notes.append("# clgraft top was null")
    if not layer.values("loss_weight"):
        texts += ["loss_weight: 1"] + ["loss_weight: 0"] * (tops - 1)
        notes.append("# clgraft loss_weight was null")
    if texts:
        _insert_after(document, layer, (layer.all("top") or layer.all("type"))[-1], texts, edits)
    if _forces_gradients(document, layer):
        notes.append(FORCED)
    return notes


def implied_top(document: Document, layer: Message) -> str:
    """Return the name of the top of a loss that names none: Caffe makes it one without a name."""
    layers = (other for net in _nets(document) for other in net.messages("layer"))
    used = {value.value for other in layers for value in other.values("top") if isinstance(value, Scalar)}
    name = layer.text("name") or "loss"
    while name in used:
        name += "_loss"
    return name


def _nets(document: Document) -> list[Message]:
    """Return the messages that hold layers: the nets inside a solver, and the root last."""
    inside = [document.root.messages(f"{prefix}net_param") for prefix in ("", "train_", "test_")]
    return [*(net for messages in inside for net in messages), document.root]


def _forces_gradients(document: Document, layer: Message) -> bool:
    """Return whether the net that holds the layer computes gradients for everything."""
    net = next(net for net in _nets(document) if net.start <= layer.start < net.end)
    return net.text("force_backward") in TRUE


def _set_to_zero(message: Message, names: tuple[str, ...], edits: Edits) -> bool:
    """Set fields to 0; return whether that changed anything."""
    missing = ""
    changed = False
    for name in names:
        values = message.values(name)
        if not values:
            missing += f" {name}: 0"
        elif not _is_zero(message.text(name)):
            edits.replace(values[-1].start, values[-1].end, "0")
            changed = True
    if missing:
        edits.insert(message.fields[-1].after if message.fields else message.start + 1, missing)
    return changed or bool(missing)


def _python_param(rule: Rule, head: str, notes: list[str], native: str, indent: str, one_line: bool, text: str) -> str:
    if one_line and not notes:
        value = quote(" ".join(filter(None, [head, native])), "'")
        return f'python_param {{ module: "{MODULE}" layer: "{rule.layer}" param_str: {value} }}'
    inner = "\n".join([head, *notes, *([native] if native else [])])
    if one_line:
        value = quote(inner, "'")
        return f'python_param {{ module: "{MODULE}" layer: "{rule.layer}" param_str: {value} }}'
    newline = newline_of(text)
    step = indent or "  "
    if set(step) == {" "}:
        step = "  "
    opening = indent + step + "param_str: "
    literals = (newline + indent + step + " " * len("param_str: ")).join(
        quote(line, "'") for line in inner.splitlines(keepends=True)
    )
    return newline.join(
        [
            "python_param {",
            f'{indent}{step}module: "{MODULE}"',
            f'{indent}{step}layer: "{rule.layer}"',
            opening + literals,
            indent + "}",
        ]
    )


def _remove_inserted(document: Document, item: Field, edits: Edits) -> None:
    """Remove a field and the white space that `swap_layer` inserted before it."""
    text = document.text
    start = item.start
    stripped = len(text[:start].rstrip(" \t"))
    if stripped and text[stripped - 1] == "\n":
        start = stripped - 1
        if start and text[start - 1] == "\r":
            start -= 1
    elif start and text[start - 1] == " ":
        start -= 1
    edits.replace(start, item.end + text.startswith(";", item.end), "")


def _shift(text: str, indent: str) -> str:
    return re.sub(r"\n(?=[^\r\n])", "\n" + indent, text)


def _is_zero(number: str) -> bool:
    try:
        return float(number.rstrip("fF")) == 0
    except ValueError:
        return False


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
