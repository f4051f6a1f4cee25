"""`clgraft train`: a solver of Caffe's, without Caffe."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clgraft.core.files import expect_file
from clgraft.plugins.command_line import arguments
from clgraft.plugins.command_line.terminal import Progress
from clgraft.plugins.plugin import PluginError

if TYPE_CHECKING:
    from clgraft.core.model import Group

EFFECTS = ("stop", "snapshot", "none")
PRECISIONS = ("float32", "float16", "bfloat16")


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
    several = "; several between commas train together, one process each"
    parser.add_argument("-device", "--device", metavar="SELECTOR", help=arguments.DEVICE_HELP + several)
    gpus = "numbers of GPUs between commas, or all: each reads a batch of its own, and gradients are averaged"
    parser.add_argument("-gpu", "--gpu", metavar="0,1|all", help=gpus)
    precision = "the type of products; parameters and their updates are float32"
    parser.add_argument("-precision", "--precision", choices=PRECISIONS, help=precision)
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
    """Train, on one device or on several."""
    expect_file(options.solver, "train", "a solver's prototxt")
    devices, using = _devices(options.device, options.gpu)
    weights = [name for name in options.weights.split(",") if name]
    effects = options.sigint_effect, options.sighup_effect
    given = (options.solver, weights, options.snapshot, effects, options.precision, using)
    if len(devices) == 1:
        return train(devices[0], None, *given)
    from clgraft.plugins.models.groups import run_together

    return run_together(train, devices, *given)


def train(
    device: str | None,
    group: Group | None,
    solver: Path,
    weights: Sequence[str],
    snapshot: Path | None,
    effects: tuple[str, str],
    precision: str | None,
    using: str,
) -> int:
    """Train on a device, alone or with other processes."""
    from clgraft.caffe_layers.solver import command

    first = group is None or not group.rank
    with Progress(sys.stderr) if first and sys.stderr.isatty() else nullcontext() as terminal:
        return command.train(solver, weights, snapshot, device, *effects, precision, group, terminal, using)


def _devices(selector: str | None, gpu: str | None) -> tuple[list[str | None], str]:
    """Return the devices that the options name, and what the log says of them."""
    if gpu is None:
        return [*(selector.split(",") if selector else [None])], "Use clgraft's device."
    if selector is not None:
        raise PluginError(f"[train] got -gpu {gpu} and -device {selector}, expected one of them")
    from clgraft.core.runtime.devices import available

    known = [device.selector for device in available() if device.is_gpu]
    if not known:
        raise PluginError(f"[train] got -gpu {gpu}, but there is no GPU, expected -device for other devices")
    words = [str(number) for number in range(len(known))] if gpu == "all" else gpu.split(",")
    wrong = [word for word in words if not word.isdigit() or int(word) >= len(known)]
    if wrong or len(set(words)) != len(words):
        raise PluginError(f"[train] got -gpu {gpu}, expected all, or different numbers from 0 to {len(known) - 1}")
    shown = f"Using GPUs {', '.join(words)}" if len(words) > 1 else f"Use GPU with device ID {words[0]}"
    return [known[int(word)] for word in words], shown
