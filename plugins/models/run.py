"""`clgraft run`: a model on arrays from files, or on random numbers."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.core.model import PRECISIONS, samples
from clgraft.plugins.command_line import arguments, terminal
from clgraft.plugins.models.loading import KINDS, load
from clgraft.plugins.plugin import PluginError

REPEATS = 5  # timed runs of a profile


def add_command(commands: Any) -> None:
    """Add `run` to the subparsers of the command line."""
    parser = commands.add_parser(
        "run",
        help="run a model on your device",
        description="Run a model of ONNX, MXNet or Caffe on arrays, or on random numbers where an input is not given, "
        "and print what comes out. MXNet and Caffe are not needed.",
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
    parser.add_argument(
        "--output", type=arguments.new_file, metavar="FILE", help="write the outputs, as numpy.savez does"
    )
    parser.add_argument("--precision", choices=PRECISIONS, help="the type in which real numbers travel")
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
    session = load(options.model, options.weights, options.device, options.precision)
    given = {name: _array(file) for name, file in options.input}
    names = [port.name for port in session.inputs]
    for name in given:
        if name not in names:
            raise PluginError(f"[run] got input {name!r}, expected one of {names}")
    shapes = {**dict(options.shape), **{name: array.shape for name, array in given.items()}}
    arrays = {**samples.inputs(session, shapes), **given}
    results = session.run(arrays)
    for name, array in results.items():
        print(f"{name}: {array.dtype.name} {list(array.shape)}{_extent(array)}")
    if options.profile:
        _profile(session, arrays, shapes)
    if options.output is not None:
        with open(options.output, "wb") as file:
            np.savez(file, **results)
    return 0


def _array(file: Path) -> np.ndarray:
    try:
        array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise PluginError(f"[run] got {file}, expected an array of numpy.save: {error}") from None
    if not isinstance(array, np.ndarray):
        raise PluginError(f"[run] got {file}, expected one array of numpy.save")
    return array


def _extent(array: np.ndarray) -> str:
    return f", {array.min():.6g} to {array.max():.6g}" if array.size and array.dtype != bool else ""


def _profile(session: Any, arrays: Mapping[str, np.ndarray], shapes: Mapping[str, Any]) -> None:
    """Print the graph's report, the time of a run, and the problems with their implementations."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        session.run(arrays)
        times.append(time.perf_counter() - begin)
    report = session.report({name: array.shape for name, array in arrays.items()})
    print(f"{report}{os.linesep}{1e3 * statistics.median(times):.3f} ms, the median of {REPEATS} runs")
    counts: dict[tuple[str, str], int] = {}
    for pair in report.algorithms:
        counts[pair] = counts.get(pair, 0) + 1
    cells = [[str(count), algorithm, text] for (text, algorithm), count in counts.items()]
    terminal.table(["calls", "implementation", "problem"], cells, sys.stdout, [terminal.RIGHT])
