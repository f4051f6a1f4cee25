"""The command `clgraft swap`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from clgraft.core import settings
from clgraft.core.files import FileError, expect_file
from clgraft.plugins import registry
from clgraft.plugins.command_line import arguments
from clgraft.plugins.plugin import PluginError, SwapRequest


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    swap = commands.add_parser(
        "swap",
        help="replace a model's operators by OpenCL ones",
        description="Replace a model's operators by OpenCL ones. Names stay, so existing weights load. "
        "The report says what changed, what did not, and why.",
    )
    swap.add_argument("model", type=Path, help=registry.known_models(swapped=True))
    swap.add_argument(
        "-o", "--output", type=arguments.new_file, metavar="FILE", help="where the result goes (default: stdout)"
    )
    swap.add_argument(
        "--types", type=arguments.words, metavar="T,T", help="only these types, in the framework's words: Convolution"
    )
    swap.add_argument("--names", type=arguments.words, metavar="N,N", help="only operators of these names or patterns")
    swap.add_argument(
        "--exclude", type=arguments.words, metavar="X,X", help="leave these types, names or patterns alone"
    )
    swap.add_argument(
        "--regions", action="store_true", help="let connected operators run as one graph; values inside are not visible"
    )
    swap.add_argument(
        "--keep",
        type=arguments.words,
        default=(),
        metavar="B,B",
        help="with --regions: values of these names or patterns stay visible (Caffe: names of blobs)",
    )
    swap.add_argument(
        "--frozen",
        action="store_true",
        help="MXNet, with --regions: inference reads parameters once and takes them as constants",
    )
    swap.add_argument(
        "--precision",
        choices=settings.MIXED,
        help="with --regions: the type of their products; files, parameters and gradients stay float32",
    )
    swap.add_argument(
        "--native", action="store_true", help="Caffe: name the types of clgraft's C++ layers instead of Python layers"
    )
    swap.add_argument("--back", action="store_true", help="restore the framework's operators in a swapped model")
    swap.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="where relative paths inside the model start (default: the working directory)",
    )
    swap.add_argument("--force", action="store_true", help="overwrite files that clgraft did not write")
    swap.add_argument("-q", "--quiet", action="store_true", help="print no report")
    swap.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Swap a model and print the report."""
    if options.keep and not options.regions:
        raise PluginError("[swap] got --keep without --regions, expected both: only regions hide values")
    if options.frozen and not options.regions:
        raise PluginError("[swap] got --frozen without --regions, expected both: regions have frozen parameters")
    if options.precision and not options.regions:
        raise PluginError("[swap] got --precision without --regions, expected both: regions have a precision")
    plugin = registry.find(expect_file(options.model, "swap", "a model", streams=True))
    if plugin.instead:
        raise FileError(f"[swap] got {options.model}, which is not swapped: {plugin.instead}")
    request = SwapRequest(
        source=options.model,
        target=options.output,
        types=options.types,
        names=options.names,
        exclude=options.exclude,
        regions=options.regions,
        keep=options.keep,
        frozen=options.frozen,
        precision=options.precision,
        native=options.native,
        back=options.back,
        root=options.root,
        force=options.force,
    )
    result = plugin.swap(request)
    printed = options.output is None or bool(result.text)
    if printed:
        # bytes: a net's text may hold characters that the terminal's encoding lacks
        sys.stdout.flush()
        sys.stdout.buffer.write(result.text.encode("utf-8", "surrogateescape"))
    if not options.quiet:
        print(result.report, file=sys.stderr if printed else sys.stdout)
    return 0
