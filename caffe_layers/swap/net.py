"""Swaps the layers of a net given as text, and restores them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from clgraft.caffe_layers.prototxt import Document, Edits, Message, Unknown, check, schema
from clgraft.caffe_layers.prototxt.marks import REGION, write_marks
from clgraft.caffe_layers.swap.layer import (
    TRUE,
    expression_of,
    implied_top,
    mark_expression,
    restore_layer,
    swap_layer,
)
from clgraft.caffe_layers.swap.regions import Item, form_regions, item_of
from clgraft.caffe_layers.swap.report import Report, Row
from clgraft.caffe_layers.swap.rules import (
    FOREIGN,
    MODULE,
    NO_COUNTERPART,
    OURS,
    VIEWS,
    Rule,
    SwapError,
    choose,
    rule_for,
)
from clgraft.caffe_layers.swap.upgrade import upgrade
from clgraft.core.planning.precision import mixed_precision
from clgraft.core.selection import Selection, already

OURS_ALREADY = "already OpenCL"


def swap_net(
    text: str,
    *,
    types: Iterable[str] | None = None,
    names: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
    regions: bool = False,
    keep: Iterable[str] = (),
    native: bool = False,
    precision: str | None = None,
) -> tuple[str, Report]:
    """Replace a net's layers by OpenCL ones.

    Names of layers and blobs stay, so caffemodels and solver states load as before. Comments, layout and fields of
    forks stay too. Nets in the two older forms (`layers`) are upgraded first.

    Parameters
    ----------
    text : str
        A net in prototxt form.
    types, names, exclude : iterable of str, optional
        Which layers: native types, names or shell patterns of names, and what to leave out (names, patterns or types).
    regions : bool
        Mark connected layers, so that they run as one graph. Blobs between them are then not on the host.
    keep : iterable of str
        Names, or shell patterns of names, of blobs that stay on the host all the same; a region ends there.
    native : bool
        Name the types of the C++ layers (`clgraft.caffe_layers.native`) instead of Python layers.
    precision : str, optional
        With regions: ``float16`` or ``bfloat16`` as the type of their products. Blobs stay float32.

    Returns
    -------
    text : str
        The new net.
    report : Report
        Each layer with what it became, or why it was left alone.

    Raises
    ------
    PrototxtError
        When the text is not a net; names line and column.
    SwapError
        When a chosen type has no counterpart.
    SelectionError
        When types or names match no layer; names the nearest that there are.
    """
    selection = choose(types, names, exclude)
    kept = [keep] if isinstance(keep, str) else list(keep)
    new, report = swap_chosen(text, selection, regions, kept, native, expect_precision(precision, regions))
    report.notes += selection.notes(report.seen, report.before)
    return new, report


def expect_precision(precision: str | None, regions: bool) -> str:
    """Return the type of products that regions are to have, empty for none; refuse one without regions."""
    mixed_precision(precision)
    if precision and not regions:
        raise SwapError(f"[swap] got precision {precision!r} without regions, expected both: regions have one")
    return precision or ""


def swap_chosen(
    text: str, selection: Selection, regions: bool, keep: Sequence[str], native: bool, precision: str = ""
) -> tuple[str, Report]:
    """Do what `swap_net` does; the caller looks at patterns that match no layer."""
    upgraded = upgrade(text)
    text = upgraded.text
    document = Document(text)
    unknown = check(document, schema.descriptor("NetParameter"), FOREIGN)
    edits = Edits(text)
    report = Report(notes=list(upgraded.notes))
    kept = keep if regions else None
    swap_layers(document, document.root, selection, edits, report, unknown, upgraded.lines, kept, native, precision)
    report.notes += unknown_notes(document, unknown)
    return edits.apply(), report


def swap_layers(
    document: Document,
    net: Message,
    selection: Selection,
    edits: Edits,
    report: Report,
    unknown: Sequence[Unknown],
    lines: Sequence[int] = (),
    keep: Sequence[str] | None = None,
    native: bool = False,
    precision: str = "",
) -> None:
    """Collect the changes that swap the layers of one `NetParameter` message.

    Parameters
    ----------
    unknown : sequence of Unknown
        What Caffe's master does not have; a layer that holds any of it stays as it is.
    lines : sequence of int
        Where the layers stood before an upgrade.
    keep : sequence of str, optional
        Blobs that regions leave on the host; None for no regions.
    native : bool
        Whether layers become C++ layers.
    precision : str
        The type of the regions' products, empty for none that is chosen.
    """
    rows = []
    for index, layer in enumerate(net.messages("layer")):
        name, kind = layer.text("name"), layer.text("type")
        line = lines[index] if lines else document.place(layer.start)[0]
        rule = rule_for(layer, keep is not None)
        if kind in OURS:
            reason = OURS_ALREADY
        elif kind == "Python":
            ours = any(holder.text("module") == MODULE for holder in layer.messages("python_param"))
            reason = OURS_ALREADY if ours else "a Python layer of the user's"
        else:
            reason = selection.refusal(name, kind)
            if rule is None:
                reason = NO_COUNTERPART
            elif not reason:
                reason = "; ".join(str(item) for item in unknown if layer.start <= item.start < layer.end)
            if not reason and rule is not None:
                reason = swap_layer(document, layer, rule, Edits(document.text))  # only to learn whether it can be
        rows.append((layer, rule, Row(name, kind, line, rule.layer if rule and not reason else "", reason)))
    # a user's own expression is no swap
    before = sum(row.reason == OURS_ALREADY and expression_of(layer) is None for layer, _, row in rows)
    if before:
        report.before += before
        report.notes.append(f"{already(before, 'layer')}; clgraft swap --back restores Caffe's own")
    marks: Sequence[dict] = [{} for _ in rows]
    if keep is not None:
        forced = net.text("force_backward") in TRUE
        items = [_item(document, layer, rule, row, native) for layer, rule, row in rows]
        found, regions, unused = form_regions(items, keep, forced)
        marks = [{phase: replace(mark, precision=precision) for phase, mark in own.items()} for own in found]
        report.regions += regions
        report.notes += [f"no blob matches {pattern}" for pattern in unused]
    for (layer, rule, row), own in zip(rows, marks):
        if row.kind in VIEWS and not own:
            row = replace(row, became="", reason=row.reason or NO_COUNTERPART)
        if row.became and rule is not None:
            swap_layer(document, layer, rule, edits, write_marks(own), native)
        else:
            mark_expression(layer, edits, write_marks(own))
        report.rows.append(row)


def _item(document: Document, layer: Message, rule: Rule | None, row: Row, native: bool) -> Item:
    """Return a layer as regions see it; expressions are Python layers, which C++ layers leave out of theirs."""
    expression = None if native else expression_of(layer)
    if expression is None or REGION in expression.value:
        loss = rule is not None and rule.loss
        item = item_of(layer, row.reason, loss)
        if rule is not None and rule.labels and native:  # a Python layer cannot say that labels have no gradient
            item = replace(item, unforced=(1,))
        return replace(item, tops=[implied_top(document, layer)]) if loss and not item.tops else item
    return replace(item_of(layer, "", False), learns=False)


def swap_back(text: str) -> tuple[str, Report]:
    """Restore the native layers of a swapped net.

    The result is exactly the text that was swapped if nothing else was changed since. A net that was upgraded comes
    back in its upgraded form.

    Returns
    -------
    text : str
        The native net.
    report : Report
        Each layer with the native type that it became again.

    Raises
    ------
    PrototxtError, SwapError
        If the text is not a net, or one of clgraft's layers does not say what it was.
    """
    document = Document(text)
    check(document, schema.descriptor("NetParameter"), FOREIGN)
    edits = Edits(text)
    report = Report()
    restore_layers(document, document.root, edits, report)
    return edits.apply(), report


def restore_layers(document: Document, net: Message, edits: Edits, report: Report) -> None:
    """Collect the changes that restore the layers of one `NetParameter` message."""
    for layer in net.messages("layer"):
        kind = layer.text("type")
        native = restore_layer(document, layer, edits)
        line, _ = document.place(layer.start)
        reason = "" if native else "not one of ours"
        shown = next((holder.text("layer") for holder in layer.messages("python_param")), kind) if native else kind
        report.rows.append(Row(layer.text("name"), shown, line, native or "", reason))


def unknown_notes(document: Document, unknown: Iterable[Unknown]) -> list[str]:
    """Return notes on fields and enum values that Caffe's master does not have; they are kept."""
    found: dict[str, int] = {}
    for item in unknown:
        found.setdefault(str(item), document.place(item.start)[0])
    return [f"line {line}: {text} and is kept as it is" for text, line in found.items()]
