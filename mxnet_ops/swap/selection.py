"""Which operators of a symbol or a block are swapped: all, those that a function chooses, or those of patterns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Callable, Optional, Union

from clgraft.core.errors import SelectionError
from clgraft.core.selection import Selection, already
from clgraft.mxnet_ops.swap.report import Report
from clgraft.mxnet_ops.swap.table import ModelOperator

Select = Optional[Union[Callable[[ModelOperator], bool], Iterable[str], Selection]]
Chosen = Optional[Union[Callable[[ModelOperator], bool], Selection]]
UNSELECTED = "not selected"


def as_choice(select: Select) -> Chosen:
    """Return a choice that can be asked again and again; patterns may come from an iterator."""
    if select is None or isinstance(select, Selection) or callable(select):
        return select
    return Selection(select=select)


def refusal(choice: Chosen, node: ModelOperator) -> str:
    """Return why a node is left alone, empty if it is chosen."""
    if choice is None:
        return ""
    if isinstance(choice, Selection):
        return choice.refusal(node.name, node.operator)
    return "" if choice(node) else UNSELECTED


def tell(choice: Chosen, report: Report) -> None:
    """Add notes to a report: which patterns match no operator, and whether the model was swapped before.

    Raises
    ------
    SelectionError
        If nothing is chosen by mistake: if a function, or all patterns of a kind, match no operator.
    """
    rows = [row for row in report.rows if row.name]
    notes = [already(report.before)] if report.before else []
    if isinstance(choice, Selection):
        notes += choice.notes([(row.name, row.operator) for row in rows], report.before)
    elif choice is not None and rows and all(row.reason == UNSELECTED for row in rows):
        raise SelectionError(f"[swap] got a select that chooses none of {len(rows)} operators, expected some")
    report.note = "\n".join(filter(None, [report.note, *notes]))
