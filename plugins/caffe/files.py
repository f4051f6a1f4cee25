"""The files that caffe is called with: what they ask for that this Caffe does not have, and what to say about it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from clgraft.caffe_layers.prototxt import Document, Edits, Scalar, quote
from clgraft.caffe_layers.prototxt.marks import REGION
from clgraft.caffe_layers.swap import is_solver, net_of
from clgraft.caffe_layers.swap.storage import read_text
from clgraft.caffe_layers.swap.upgrade import upgrade
from clgraft.core import settings
from clgraft.core.errors import ClgraftError
from clgraft.core.files import expect_file

_CPU_ALONE = b"Cannot use GPU in CPU-only Caffe"
_GPU = ("GPU", "1")  # as text and as number
DEVICE = settings.DEVICE.name


def expect_files(arguments: Sequence[str]) -> None:
    """Raise `FileError` if a file that caffe is called with cannot be read: Caffe would end with a trace of its own."""
    for flag in ("solver", "model", "snapshot", "weights"):
        place = _place(arguments, flag)
        for name in filter(None, place[2].split(",") if place else ()):
            expect_file(Path(name), "caffe", f"the file of -{flag}", streams=True)


def why_no_gpu(binary: str, arguments: Sequence[str]) -> str:
    """Return why caffe would end for want of a GPU, and what to do; empty if it would not."""
    place = _place(arguments, "gpu")
    if place is None or not place[2] or not _has_only_cpu(binary):
        return ""
    expected = f"no -gpu: clgraft's layers run on the device of {DEVICE}"
    return f"got -gpu {place[2]}, but this Caffe was built without a GPU; expected {expected}"


def for_cpu(binary: str, arguments: Sequence[str]) -> tuple[list[str], str]:
    """Return arguments of `caffe train` whose solver does not ask a Caffe without GPU support for a GPU, and a note.

    The solver is copied into memory, where this process and the one that takes its place find it. The note is empty if
    the arguments stay as they are.
    """
    place = _place(arguments, "solver")
    if place is None or not _has_only_cpu(binary):
        return list(arguments), ""
    index, begin, solver = place
    try:
        text = _on_cpu(read_text(Path(solver)), Path(solver))
    except ClgraftError:
        return list(arguments), ""  # Caffe says what is wrong with it
    if text is None:
        return list(arguments), ""
    copy = os.memfd_create("clgraft-solver", 0)
    with os.fdopen(os.dup(copy), "wb") as file:
        file.write(text.encode("utf-8", "surrogateescape"))
    changed = [*arguments[:index], f"{begin}/proc/self/fd/{copy}", *arguments[index + 1 :]]
    got = f"got solver_mode: GPU in {solver}, but this Caffe was built without a GPU"
    return changed, f"{got}; this run takes a copy that says CPU"


def types_of_ours(arguments: Sequence[str]) -> str:
    """Return a hint at a net with clgraft's own C++ layer types; empty if there is none."""
    from clgraft.caffe_layers.library import build

    ours = {name for _, name, _ in build.types()}
    for net, place in _nets(arguments):
        found = [layer.text("type") for layer in Document(net).root.messages("layer")]
        named = next((kind for kind in found if kind in ours), "")
        if named:
            return (
                f"{place} names the type {named}, which only C++ layers have: Caffe will call it unknown. "
                "`clgraft swap --back` restores Caffe's types, a swap without --native names Python layers"
            )
    return ""


def notes_on_times(arguments: Sequence[str], regions: bool) -> list[str]:
    """Return what a reader of `caffe time` must know; `regions` says whether they are formed in any net."""
    notes = []
    for net, place in _nets(arguments):
        if not regions and REGION not in net:
            continue
        notes.append(
            "a region's time is shown forward at its first loss, or else at its last layer, and backward at its last "
            "layer; its other layers run nothing"
        )
        root = Document(net).root
        layers = root.messages("layer")
        has_loss = any(layer.text("type").endswith("Loss") or layer.values("loss_weight") for layer in layers)
        if not has_loss and root.text("force_backward") != "true":
            notes.append(
                f"{place} has no loss, so no gradient reaches a region, and its backward pass is almost empty: "
                "`force_backward: true` in the net makes it compute all gradients"
            )
    return notes


def _place(arguments: Sequence[str], flag: str) -> tuple[int, str, str] | None:
    """Return where the value of a flag is, what the word begins with and the value; None without the flag."""
    found = None
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in (f"-{flag}", f"--{flag}"):
            if equals:
                found = index, name + equals, value
            elif index + 1 < len(arguments):
                found = index + 1, "", arguments[index + 1]
    return found


def _nets(arguments: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield the text, in today's form, and the file of each net that can be read; others are left to Caffe."""
    for flag in ("solver", "model"):
        place = _place(arguments, flag)
        if place is not None:
            try:
                net, path = net_of(Path(place[2]))
                upgraded = upgrade(net).text
            except ClgraftError:
                continue
            yield upgraded, path


def _has_only_cpu(binary: str) -> bool:
    """Return whether a caffe command or its libcaffe.so holds what Caffe says where it is built without a mode GPU."""
    done = subprocess.run(["ldd", binary], capture_output=True, text=True)
    libraries = re.findall(r"^\s*libcaffe\.so\S* => (/.*) \(0x", done.stdout, re.M)
    return any(_CPU_ALONE in Path(path).read_bytes() for path in (binary, *libraries))


def _on_cpu(text: str, path: Path) -> str | None:
    """Return a solver's text in mode CPU, with the snapshots of the file itself; None if it asks for no GPU."""
    document, edits = Document(text), Edits(text)
    modes = [value for value in document.root.values("solver_mode") if isinstance(value, Scalar)]
    if not is_solver(text) or not any(value.value in _GPU for value in modes):
        return None
    for value in modes:
        edits.replace(value.start, value.end, "CPU")
    # Caffe derives what is missing here from the name of the solver's file
    prefixes = [value for value in document.root.values("snapshot_prefix") if isinstance(value, Scalar)]
    if not prefixes:
        edits.insert(len(text), f"\nsnapshot_prefix: {quote(str(path.with_suffix('')))}\n")
    for value in prefixes:
        if os.path.isdir(value.value):
            edits.replace(value.start, value.end, quote(str(Path(value.value, path.stem))))
    return edits.apply()
