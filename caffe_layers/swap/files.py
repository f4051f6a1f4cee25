"""Swaps files: a net, or a solver together with the nets that it names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from clgraft.caffe_layers.prototxt import Document, Edits, Message, PrototxtError, Scalar, check, quote, schema
from clgraft.caffe_layers.swap.net import (
    expect_precision,
    restore_layers,
    swap_back,
    swap_chosen,
    swap_layers,
    unknown_notes,
)
from clgraft.caffe_layers.swap.report import Report
from clgraft.caffe_layers.swap.rules import FOREIGN, SwapError, choose
from clgraft.caffe_layers.swap.storage import read_text, write_files
from clgraft.core.files import is_stream
from clgraft.core.selection import Selection

_NET_ONLY = {"name", "layer", "layers", "input", "input_shape", "input_dim", "force_backward", "state"}
_NETS = ("net", "train_net", "test_net")
_PREFIX = "snapshot_prefix"
_INLINE = ("net_param", "train_net_param", "test_net_param")
# what names or holds the net of a phase, and what chooses its layers
_OF_TRAINING = (("train_net_param", "train_net", "net_param", "net"), "train_state")
_OF_TESTING = (("test_net_param", "test_net", "net_param", "net"), "test_state")
_WAS = re.compile(r"""  # clgraft was ("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""")
_UNMATCHED = "no blob matches "


class _Chosen(NamedTuple):
    """What the user chose, as `swap_chosen` takes it."""

    selection: Selection
    regions: bool
    keep: Sequence[str]
    native: bool
    precision: str


def is_solver(text: str) -> bool:
    """Return whether a prototxt is a solver; a text that may be a net is taken for one."""
    names = {item.name for item in Document(text).root.fields}
    return bool(names - {"debug_info"}) and not names & _NET_ONLY


def net_of(source: Path, training: bool = True) -> tuple[str, Path]:
    """Return the text of a net's file, or of the net that a solver's file trains or, first, tests; and where it is.

    Paths inside a solver start from the working directory, as in Caffe.

    Raises
    ------
    PrototxtError, SwapError
        If the file is neither, or the net cannot be read; names file, line and column.
    """
    text = read_text(source)
    with naming(source):
        if not is_solver(text):
            return text, source
        document = Document(text)
    names, state = _OF_TRAINING if training else _OF_TESTING
    found = [value for name in names for value in document.root.values(name)]
    if not found or (training and len(found) > 1):
        raise SwapError(f"[swap] got the solver {source} with {len(found)} of {', '.join(names)}, expected one")
    if isinstance(found[0], Message):
        net, place = document.text[found[0].start + 1 : found[0].end - 1], source
    else:
        place = _net_file(document, found[0], source, Path())
        net = read_text(place)
        with naming(place):
            if is_solver(net):
                raise PrototxtError("got a solver, expected a net")
    states = document.root.messages(state)
    return (f"{net}\nstate {document.span(states[0])}\n" if states else net), place


def swap_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    types: Iterable[str] | None = None,
    names: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
    regions: bool = False,
    keep: Iterable[str] = (),
    native: bool = False,
    precision: str | None = None,
    root: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> list[Report]:
    """Swap a net (train/val or deploy), or a solver with all nets that it names.

    The nets of a solver are written next to the new solver as `<name>_ocl.prototxt`, and the new solver names those;
    `_ocl` is added to its `snapshot_prefix` too, so that native snapshots stay.
    Nothing is written unless everything could be read and swapped.

    Parameters
    ----------
    source, target : path
        What is read, and where the result goes; never the same file. The source `-` is standard input; symbolic links
        stay, and pipes and devices are written through.
    types, names, exclude, regions, keep, native, precision
        As for `swap_net`.
    root : path, optional
        Folder that the paths inside a solver start from: the working directory by default, as in Caffe.
    force : bool
        Overwrite files that clgraft did not write.

    Returns
    -------
    list of Report
        One for each net.

    Raises
    ------
    PrototxtError, SwapError
        When a file is missing, is no prototxt, or would be overwritten; names file, line and column.
    SelectionError
        When types or names match no layer of any net.
    """
    source, target = Path(source), Path(target)
    kept = [keep] if isinstance(keep, str) else list(keep)
    chosen = _Chosen(choose(types, names, exclude), regions, kept, native, expect_precision(precision, regions))
    text = read_text(source)
    with naming(source):
        solver = is_solver(text)
    if not solver:
        with naming(source):
            new, report = swap_chosen(text, *chosen)
        report.notes += chosen.selection.notes(report.seen, report.before)
        report.source, report.target = str(source), str(target)
        write_files({target: new}, {source}, force)
        return [report]
    base = Path(root) if root is not None else Path()
    return _swap_solver(source, target, text, chosen, base, force)


def restore_file(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, force: bool = False
) -> list[Report]:
    """Undo `swap_file`; a solver names its original nets again, which were never changed.

    Raises
    ------
    PrototxtError, SwapError
        As `swap_file`.
    """
    source, target = Path(source), Path(target)
    text = read_text(source)
    with naming(source):
        new, report = _restore_solver(text) if is_solver(text) else swap_back(text)
    report.source, report.target = str(source), str(target)
    write_files({target: new}, {source}, force)
    return [report]


def _swap_solver(
    source: Path,
    target: Path,
    text: str,
    chosen: _Chosen,
    root: Path,
    force: bool,
) -> list[Report]:
    if is_stream(target):
        raise SwapError(
            f"[swap] got the solver {source} and {target}, expected a file: its nets are written next to it"
        )
    with naming(source):
        document = Document(text)
        unknown = check(document, schema.descriptor("SolverParameter"), FOREIGN)
    edits = Edits(text)
    outputs: dict[Path, str] = {}
    inputs = {source}
    moved: dict[Path, Path] = {}
    reports = []
    missed: list[set[str]] = []
    notes = []
    for name, value in _paths(document):
        was = (
            value.raw
            if "\n" not in value.raw and _WAS.fullmatch(f"  # clgraft was {value.raw}")
            else quote(value.value)
        )
        edits.insert(_line_end(text, value.end), f"  # clgraft was {was}")
        if name == _PREFIX:
            prefix = quote(value.value + "_ocl")
            edits.replace(value.start, value.end, prefix)
            notes.append(f"snapshots begin with {prefix}: those of the native solver stay")
            continue
        native = root / value.value
        if native not in moved:
            _net_file(document, value, source, root)
            moved[native] = _free_name(target.parent, native, outputs)
            net = read_text(native)
            with naming(native):
                if is_solver(net):
                    raise PrototxtError("got a solver, expected a net")
                new, report = swap_chosen(net, *chosen)
            # a blob may belong to one of several nets: say so only if none has it
            missed.append({note for note in report.notes if note.startswith(_UNMATCHED)})
            report.source, report.target = str(native), str(moved[native])
            reports.append(report)
            outputs[moved[native]] = new
            inputs.add(native)
        edits.replace(value.start, value.end, quote(_path_text(moved[native], value.value, root)))
    for message in _inline_nets(document):
        line, _ = document.place(message.start)
        if message.values("layers"):
            raise SwapError(f"[swap] {source}: line {line}: got a net of the older form in a solver, expected layer")
        report = Report(source=f"{source}: net in line {line}", target=str(target))
        keep = chosen.keep if chosen.regions else None
        more = keep, chosen.native, chosen.precision
        swap_layers(document, message, chosen.selection, edits, report, unknown, (), *more)
        missed.append({note for note in report.notes if note.startswith(_UNMATCHED)})
        reports.append(report)
    if not reports:
        raise SwapError(f"[swap] got {source}, which is neither a net nor a solver that names one")
    for report in reports:
        report.notes = [note for note in report.notes if note not in set.union(*missed)]
    seen = [layer for report in reports for layer in report.seen]
    unmatched = chosen.selection.notes(seen, sum(report.before for report in reports))  # of all nets together
    reports[-1].notes += sorted(set.intersection(*missed)) + unmatched + unknown_notes(document, unknown) + notes
    outputs[target] = edits.apply()
    write_files(outputs, inputs, force)
    return reports


def _restore_solver(text: str) -> tuple[str, Report]:
    document = Document(text)
    check(document, schema.descriptor("SolverParameter"), FOREIGN)
    edits = Edits(text)
    report = Report()
    lines: dict[int, list[tuple[str, Scalar]]] = {}
    for name, value in _paths(document):
        lines.setdefault(_line_end(text, value.end), []).append((name, value))
    for end, named in lines.items():
        start = max(value.end for _, value in named)
        notes = list(_WAS.finditer(text, start, end))
        values = [value for _, value in named]
        if len(notes) < len(values):  # version 0.1 left the prefix as it was
            values = [value for name, value in named if name != _PREFIX]
        if len(notes) != len(values):
            continue
        for value, note in zip(values, notes):
            edits.replace(value.start, value.end, note.group(1))
            edits.replace(note.start(), note.end(), "")
            report.notes.append(f"names {note.group(1)} again")
    for message in _inline_nets(document):
        restore_layers(document, message, edits, report)
    return edits.apply(), report


def _paths(document: Document) -> list[tuple[str, Scalar]]:
    """Return the fields of a solver that name files with their values, in the order of the text."""
    names = (*_NETS, _PREFIX)
    found = [(name, value) for name in names for value in document.root.values(name) if isinstance(value, Scalar)]
    return sorted(found, key=lambda pair: pair[1].start)


def _net_file(document: Document, value: Scalar, source: Path, root: Path) -> Path:
    """Return the file of a net that a solver names.

    Raises
    ------
    SwapError
        If it does not exist.
    """
    found = root / value.value
    if not found.is_file():
        line, column = document.place(value.start)
        raise SwapError(
            f"[swap] {source}: line {line}, column {column}: got {value.raw}, which is not in "
            f"{root.resolve()}; expected a path from the folder in which the solver is run"
        )
    return found


def _inline_nets(document: Document) -> list[Message]:
    return [message for name in _INLINE for message in document.root.messages(name)]


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    if end < 0:
        return len(text)
    return end - 1 if text[end - 1] == "\r" else end


def _free_name(folder: Path, native: Path, taken: Iterable[Path]) -> Path:
    path = folder / f"{native.stem}_ocl{native.suffix}"
    number = 2
    while path in taken:
        path = folder / f"{native.stem}_ocl{number}{native.suffix}"
        number += 1
    return path


def _path_text(path: Path, native: str, root: Path) -> str:
    if not os.path.isabs(native):
        relative = os.path.relpath(path, root)
        if not relative.startswith(os.pardir):
            return Path(relative).as_posix()
    return str(path.absolute())


class naming:
    """Adds the file's name to the place that an error names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PrototxtError):
            text = str(error).replace("[prototxt] ", f"[prototxt] {self.path}: ", 1)
            error.args = (text,)
