"""`clgraft run`: a model on arrays from files, or on random numbers."""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.core.errors import hint
from clgraft.core.files import FileError, expect_file, read_file
from clgraft.core.model import PRECISIONS, samples
from clgraft.plugins.command_line import arguments, terminal
from clgraft.plugins.models import classes, images
from clgraft.plugins.models.loading import KINDS, load
from clgraft.plugins.plugin import PluginError

REPEATS = 5  # timed runs of a profile
ARRAY = b"\x93NUMPY"  # how files of numpy.save begin
EXPECTED = "one array, from a file of numpy.save (.npy)"


def add_command(commands: Any) -> None:
    """Add `run` to the subparsers of the command line."""
    parser = commands.add_parser(
        "run",
        help="run a model on your device",
        description="Run a model of ONNX, MXNet or Caffe on arrays or images, or on random numbers where an input is "
        "not given, and print what comes out. MXNet and Caffe are not needed, images need pillow.",
    )
    parser.add_argument("model", type=Path, help=KINDS)
    weights = "the .caffemodel of a net, or the .params of a symbol; by default those next to it"
    parser.add_argument("--weights", type=Path, metavar="FILE", help=weights)
    parser.add_argument(
        "--input",
        type=_named,
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="an input, from a file of numpy.save",
    )
    images.add_arguments(parser)
    classes.add_arguments(parser)
    parser.add_argument(
        "--output", type=arguments.new_file, metavar="FILE", help="write the outputs, as numpy.savez does"
    )
    parser.add_argument("--precision", choices=PRECISIONS, help="the type of products, or of a symbol's numbers")
    parser.add_argument("--device", metavar="SELECTOR", help=arguments.DEVICE_HELP)
    arguments.add_shapes(parser)
    parser.add_argument("--profile", action="store_true", help="also show what the graph needs and how long it takes")
    parser.set_defaults(run=run)


def _named(text: str) -> tuple[str, Path]:
    name, sign, file = text.partition("=")
    if not name or not sign or not file:
        raise argparse.ArgumentTypeError(f"got {text}, expected NAME=FILE")
    return name, Path(file)


def run(options: argparse.Namespace) -> int:
    """Run the model and print its outputs."""
    expect_file(options.model, "run", KINDS, streams=True)
    if options.weights is not None:
        expect_file(options.weights, "run", "the parameters of the model: a .caffemodel or .params", streams=True)
    given = {name: _array(file) for name, file in options.input}
    pictures = [images.read(file) for file in options.image]
    labels = None if options.labels is None else classes.read_labels(options.labels)
    with _without_collections():
        session = load(options.model, options.weights, options.device, options.precision)
    names = [port.name for port in session.inputs]
    _shapes(names, dict(options.shape), given)
    if pictures:
        made, words = images.inputs(session, pictures, given, dict(options.shape), options)
        given.update(made)
        print(f"{', '.join(made)}: {', '.join(map(str, options.image))}: {words}")
    shapes = _shapes(names, dict(options.shape), given)
    arrays = {**samples.inputs(session, shapes), **given}
    with _without_collections():
        results = session.run(arrays)
    for name, array in results.items():
        print(f"{name}: {array.dtype.name} {list(array.shape)}{_extent(array)}")
    asked = options.top is not None or labels is not None
    if asked or pictures:
        items = [file.name for file in options.image]
        classes.print_best(results, items, options.top or classes.TOP, labels, asked)
    if options.profile:
        _profile(session, arrays, shapes)
    if options.output is not None:
        with open(options.output, "wb") as file:
            np.savez(file, **results)
    return 0


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Collect no garbage: what is loaded and planned stays, and looking for garbage in it takes time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _shapes(
    names: Sequence[str], shapes: Mapping[str, Sequence[int]], given: Mapping[str, np.ndarray]
) -> dict[str, Sequence[int]]:
    """Return the shapes of inputs that `--shape` and `--input` say, which have to agree."""
    for option, words in (("--input", given), ("--shape", shapes)):
        for name in words:
            if name not in names:
                near = hint(name, names)
                raise PluginError(f"[run] got {option} {name}, expected one of the model's inputs {names}{near}")
    for name in given:
        if name in shapes and tuple(shapes[name]) != given[name].shape:
            both = f"--shape {name}={','.join(map(str, shapes[name]))} and an --input {name} of shape"
            raise PluginError(f"[run] got {both} {given[name].shape}, expected one of the two: an array has a shape")
    return {**shapes, **{name: array.shape for name, array in given.items()}}


def _array(file: Path) -> np.ndarray:
    """Return the array of a file of `numpy.save`.

    Raises
    ------
    FileError
        If it cannot be read or is something else.
    """
    data = read_file(file, "run", EXPECTED)
    if not data.startswith(ARRAY):
        archive = "an archive, as numpy.savez makes" if data.startswith(b"PK") else "no array"
        what = "an ONNX model" if file.suffix == ".onnx" else archive if data else "empty"
        raise FileError(f"[run] got {file}, which is {what}; expected {EXPECTED}")
    try:
        array: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FileError(f"[run] got {file}, expected {EXPECTED}: {error}") from None
    return array


def _extent(array: np.ndarray) -> str:
    return f", {array.min():.6g} to {array.max():.6g}" if array.size and array.dtype != bool else ""


def _profile(session: Any, arrays: Mapping[str, np.ndarray], shapes: Mapping[str, Any]) -> None:
    """Print the graph's report, the time of a run, and the problems with their implementations."""
    import statistics  # with Python's modules for fractions and decimal numbers

    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        session.run(arrays)
        times.append(time.perf_counter() - begin)
    report = session.report({name: array.shape for name, array in arrays.items()})
    milliseconds = 1e3 * statistics.median(times)
    print(f"{report}\none run: {milliseconds:.3f} ms from arrays to arrays, the median of {REPEATS} runs")
    counts: dict[tuple[str, str], int] = {}
    for pair in report.algorithms:
        counts[pair] = counts.get(pair, 0) + 1
    cells = [[str(count), algorithm, text] for (text, algorithm), count in counts.items()]
    terminal.table(["calls", "implementation", "problem"], cells, sys.stdout, [terminal.RIGHT])
