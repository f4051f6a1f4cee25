"""`clgraft export`: a model of MXNet or Caffe as an ONNX model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from clgraft.core.files import FileError, expect_file
from clgraft.plugins.command_line import arguments
from clgraft.plugins.models.loaded import LoadedSession
from clgraft.plugins.models.loading import load

KINDS = "an MXNet symbol's .json, or a Caffe net's .prototxt"
OPSET = 17


def add_command(commands: Any) -> None:
    """Add `export` to the subparsers of the command line."""
    parser = commands.add_parser(
        "export",
        help="write a model of MXNet or Caffe as an ONNX model",
        description="Write a model as ONNX, for the shapes of its inputs. Inputs, outputs, parameters and layers keep "
        "their names. MXNet and Caffe are not needed, the package onnx is.",
    )
    parser.add_argument("model", type=Path, help=KINDS)
    weights = "the .caffemodel of a net, or the .params of a symbol; by default those next to it"
    parser.add_argument("--weights", type=Path, metavar="FILE", help=weights)
    parser.add_argument("-o", "--output", type=arguments.new_file, required=True, metavar="FILE", help="the .onnx file")
    parser.add_argument(
        "--opset", type=arguments.count, default=OPSET, metavar="N", help=f"of ONNX's operators (default: {OPSET})"
    )
    arguments.add_shapes(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the model."""
    expect_file(options.model, "export", KINDS)
    if options.weights is not None:
        expect_file(options.weights, "export", "the parameters of the model: a .caffemodel or .params")
    if options.model.suffix == ".onnx":
        raise FileError(f"[export] got {options.model}, which is an ONNX model already; expected {KINDS}")
    session = load(options.model, options.weights)
    assert isinstance(session, LoadedSession)
    session.export(options.output, options.opset, dict(options.shape))
    print(f"{options.model} -> {options.output}: ONNX, opset {options.opset}")
    return 0
