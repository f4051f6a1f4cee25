"""The best classes of a classifier's output, with their labels."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from clgraft.core.files import FileError, read_file
from clgraft.plugins.command_line import arguments, terminal
from clgraft.plugins.plugin import PluginError

TOP = 5
EXPECTED = "the classes' labels, a line each"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--labels`` and ``--top``."""
    parser.add_argument("--labels", type=Path, metavar="FILE", help="the names of the classes, a line each")
    words = f"print the N best classes of each item of the batch (default: {TOP} with --image or --labels)"
    parser.add_argument("--top", type=arguments.count, metavar="N", help=words)


def read_labels(file: Path) -> list[str]:
    """Return the lines of a file of labels.

    Raises
    ------
    FileError
        If it cannot be read or has no lines.
    """
    text = read_file(file, "run", EXPECTED).decode(errors="replace")
    found = [line.strip() for line in text.rstrip().splitlines()]
    if not found:
        raise FileError(f"[run] got {file}, which is empty; expected {EXPECTED}")
    return found


def print_best(
    results: Mapping[str, np.ndarray], items: Sequence[str], top: int, labels: Sequence[str] | None, asked: bool
) -> None:
    """Print the best classes of each item of the batch.

    Parameters
    ----------
    results : mapping of str to numpy.ndarray
        The model's outputs, of which the first that has a row of scores for each item counts.
    items : sequence of str
        What the items are called; numbers where there are none.
    top : int
    labels : sequence of str, optional
    asked : bool
        Whether a model without such an output is an error.

    Raises
    ------
    PluginError
        If there is no such output, or labels and classes differ in number.
    """
    rows = {name: _rows(array) for name, array in results.items()}
    name = next((name for name, scores in rows.items() if scores is not None), None)
    scores = None if name is None else rows[name]
    if scores is None:
        if asked:
            shapes = {name: list(array.shape) for name, array in results.items()}
            raise PluginError(f"[run] got outputs {shapes} for --top and --labels, expected one with a row of classes")
        return
    classes = scores.shape[1]
    if labels is not None and len(labels) != classes:
        raise PluginError(
            f"[run] got {len(labels)} labels for output {name!r} of {classes} classes, expected {classes}"
        )
    cells = []
    for number, row in enumerate(scores):
        best = np.argsort(-row.astype(np.float64), kind="stable")[:top]
        item = items[number] if number < len(items) else str(number)
        cells += [
            [item, f"{row[place]:.6g}", str(place), *([] if labels is None else [labels[place]])] for place in best
        ]
    heads = ["item", "score", "class", *([] if labels is None else ["label"])]
    alone = len(scores) == 1
    terminal.table(
        heads[alone:],
        [cell[alone:] for cell in cells],
        sys.stdout,
        [terminal.LEFT, terminal.RIGHT, terminal.RIGHT][alone:],
    )


def _rows(array: np.ndarray) -> np.ndarray | None:
    """Return an output's scores as a row for each item; None if it has none."""
    if array.ndim < 2 or array.dtype.kind not in "fiu" or array.shape[1] < 2 or array.size != np.prod(array.shape[:2]):
        return None
    return array.reshape(array.shape[:2])
