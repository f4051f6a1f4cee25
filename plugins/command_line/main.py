"""The command `clgraft`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clgraft import __version__
from clgraft.core.errors import ClgraftError
from clgraft.plugins.command_line.bench import command as bench
from clgraft.plugins.command_line.tune import command as tune

_EXAMPLES = """
examples:
  clgraft devices
  clgraft check
  clgraft check train_val.prototxt
  clgraft check model-symbol.json --shape data=1,3,224,224
  clgraft bench classic --peers mxnet --json figures.json --plots figures
  clgraft bench --nets resnet18,mobilenet
  clgraft tune resnet50 --budget 600
  clgraft tune train_val.prototxt
  clgraft swap train_val.prototxt -o train_val_ocl.prototxt
  clgraft swap solver.prototxt -o solver_ocl.prototxt --types Convolution,ReLU
  clgraft swap train_val_ocl.prototxt --back -o train_val.prototxt
  clgraft swap model-symbol.json -o model_ocl-symbol.json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns
    -------
    int
        Exit status: 0 done, 1 could not be done (the reason is on stderr), 2 wrong usage.
    """
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # the reader has gone; keep the interpreter from complaining about it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("clgraft: interrupted", file=sys.stderr)
        return 130
    except (ClgraftError, OSError) as error:
        print(f"clgraft: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clgraft",
        description="OpenCL operators for MXNet and Caffe models.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"clgraft {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    swap = commands.add_parser(
        "swap",
        help="replace a model's operators by OpenCL ones",
        description="Replace a model's operators by OpenCL ones. Names stay, so existing weights load. "
        "The report says what changed, what did not, and why.",
    )
    swap.add_argument("model", type=Path, help="a net's or a solver's prototxt, or an MXNet symbol's JSON")
    swap.add_argument("-o", "--output", type=Path, metavar="FILE", help="where the result goes (default: stdout)")
    swap.add_argument("--types", type=_words, metavar="T,T", help="only these native types, such as Convolution,ReLU")
    swap.add_argument("--names", type=_words, metavar="N,N", help="only layers of these names or shell patterns")
    swap.add_argument("--exclude", type=_words, metavar="X,X", help="leave these types, names or patterns alone")
    swap.add_argument("--back", action="store_true", help="restore the native layers of a swapped prototxt")
    swap.add_argument(
        "--root", type=Path, metavar="DIR", help="where a solver's paths start (default: the working directory)"
    )
    swap.add_argument("-q", "--quiet", action="store_true", help="print no report")
    swap.set_defaults(run=_swap)

    check = commands.add_parser(
        "check",
        help="compare the operators, or a swapped model, with native ones on your device",
        description="Compare results and gradients on your device: without a model every operator with float64 "
        "arithmetic; of a prototxt every swapped layer with its native twin; of a symbol the whole net with the native "
        "one in float64. Exit status 1 if a row fails.",
    )
    check.add_argument("model", type=Path, nargs="?", help="a net's prototxt or a symbol's JSON")
    check.add_argument("--device", metavar="SELECTOR", help="cpu, gpu, part of a name, 0:1 (default: CLGRAFT_DEVICE)")
    check.add_argument("--phase", choices=["train", "test"], default="train", help="of a prototxt (default: train)")
    check.add_argument(
        "--shape", type=_shape, action="append", default=[], metavar="NAME=N,N", help="an input's shape, of a symbol"
    )
    check.add_argument("--repeats", type=int, default=3, metavar="N", help="how often each is timed (default: 3)")
    check.add_argument("--json", action="store_true", help="print JSON, and the rows on stderr")
    check.add_argument(
        "--progress", action="store_true", help="count rows on stderr (default: when it alone is a terminal)"
    )
    check.set_defaults(run=_check)

    bench.add(commands)

    tune.add_command(commands, _shape)

    devices = commands.add_parser(
        "devices",
        help="show the OpenCL devices",
        description="Show the OpenCL devices that were found, best first, what each can do, and why a runtime "
        "cannot be used. Exit status 1 if there is none.",
    )
    devices.add_argument("--json", action="store_true", help="print JSON")
    devices.set_defaults(run=_devices)
    return parser


def _swap(options: argparse.Namespace) -> int:
    from clgraft.plugins.registry import SwapRequest, find

    request = SwapRequest(
        source=options.model,
        target=options.output,
        types=options.types,
        names=options.names,
        exclude=options.exclude,
        back=options.back,
        root=options.root,
    )
    result = find(options.model).swap(request)
    if options.output is None:
        # bytes: a net's text may hold what no terminal encoding knows
        sys.stdout.flush()
        sys.stdout.buffer.write(result.text.encode("utf-8", "surrogateescape"))
    if not options.quiet:
        print(result.report, file=sys.stderr if options.output is None else sys.stdout)
    return 0


def _check(options: argparse.Namespace) -> int:
    from clgraft.core.runtime import devices
    from clgraft.plugins.command_line.check import runner as check
    from clgraft.plugins.registry import find

    device = str(devices.describe(devices.select(options.device)))
    arguments: dict[str, Any] = {"repeats": max(1, options.repeats)}
    module = "clgraft.plugins.command_line.check.core"
    if options.model is not None:
        module = find(options.model).checker
        arguments["path"] = str(options.model)
        check.expect_file(options.model)
        if module == "clgraft.plugins.caffe.check":
            arguments["phase"] = options.phase
        else:
            arguments["shapes"] = dict(options.shape)
    output = sys.stderr if options.json else sys.stdout
    # where the rows are to be seen, they are the progress
    shown = options.progress or (sys.stderr.isatty() and not output.isatty())
    print(f"on {device}\n{check.HEADER}", file=output, flush=True)
    rows = []
    for row in check.run(module, arguments, options.device):
        rows.append(row)
        print(row, file=output, flush=True)
        if shown:
            check.show_progress(rows, sys.stderr)
    if shown and sys.stderr.isatty():
        print(file=sys.stderr)
    failed = [row for row in rows if not row.passed]
    print(f"{len(rows) - len(failed)} of {len(rows)} rows pass", file=output)
    if options.json:
        print(check.as_json(rows, device))
    return 1 if failed else 0


def _devices(options: argparse.Namespace) -> int:
    from clgraft.plugins.command_line import device_list

    found, problems = device_list.gather()
    print(device_list.as_json(found, problems) if options.json else device_list.as_text(found, problems))
    return 0 if found else 1


def _shape(text: str) -> tuple[str, list[int]]:
    name, _, sizes = text.partition("=")
    try:
        return name, [int(size) for size in sizes.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text}, expected NAME=N,N,...") from None


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise argparse.ArgumentTypeError("got no word, expected words between commas")
    return words


if __name__ == "__main__":
    sys.exit(main())
