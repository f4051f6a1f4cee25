"""`clgraft train`: a solver of Caffe's, without Caffe."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clgraft.core.files import expect_file
from clgraft.plugins.command_line import arguments

EFFECTS = ("stop", "snapshot", "none")


def add_command(commands: Any) -> None:
    """Add `train` to the subparsers of the command line."""
    parser = commands.add_parser(
        "train",
        help="train a net of Caffe on your device",
        description="Train a net as a solver's prototxt of Caffe says, on your device. Caffe is not needed. Options, "
        "log lines, snapshots and signals are those of caffe train.",
    )
    add_options(parser)
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of Caffe's command, which have one dash or two."""
    solver = "the solver's prototxt; paths in it are relative to the working directory"
    parser.add_argument("-solver", "--solver", type=Path, required=True, metavar="FILE", help=solver)
    weights = "the .caffemodel to begin with, or several between commas"
    parser.add_argument("-weights", "--weights", default="", metavar="FILE,...", help=weights)
    snapshot = "the .solverstate to go on from"
    parser.add_argument("-snapshot", "--snapshot", type=Path, metavar="FILE", help=snapshot)
    parser.add_argument("-device", "--device", metavar="SELECTOR", help=arguments.DEVICE_HELP)
    for name, usual in (("sigint", "stop"), ("sighup", "snapshot")):
        parser.add_argument(
            f"-{name}_effect",
            f"--{name}_effect",
            choices=EFFECTS,
            default=usual,
            help=f"what {name.upper()} does (default: {usual}, after a snapshot)"
            if usual == "stop"
            else f"what {name.upper()} does (default: {usual})",
        )


def run_words(words: Sequence[str]) -> int:
    """Train as the arguments of ``caffe train`` say."""
    parser = argparse.ArgumentParser(prog="clgraft caffe train")
    add_options(parser)
    return run(parser.parse_args(words))


def run(options: argparse.Namespace) -> int:
    """Train."""
    from clgraft.caffe_layers.solver.command import train

    expect_file(options.solver, "train", "a solver's prototxt")
    weights = [name for name in options.weights.split(",") if name]
    return train(
        options.solver, weights, options.snapshot, options.device, options.sigint_effect, options.sighup_effect
    )
