"""Compare convolutions on a GPU with PyTorch's cuDNN: `python benchmarks/conv_gpu.py resnet50 --batch 64`.

Only the device is timed, without copies to the host: our launches on device buffers and cuDNN on its tensors, in turn.
cuDNN has two layouts, channels first and, in two axes, channels last; the faster one counts and is named. With
`CLGRAFT_PRECISION=tf32` both sides may use TF32. `--dtype float16` (or bfloat16) compares 16 bits, ours in channels
last. Every result is compared with a float64 convolution first. `--tiles FILE` also times every tile and split of
gpu_gemm, for `core/operators/conv/gemm_gpu/tiles.txt`. `--json FILE` keeps the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from device_run import DeviceRun, relative_error, torch_milliseconds
from progress import announced
from timing import geometric_mean, keep, problem_lines

from clgraft import core
from clgraft.core.operators.conv.gemm_gpu import builder
from clgraft.core.operators.conv.gemm_gpu import tiles as gpu_gemm_tiles
from clgraft.core.operators.conv.gemm_gpu.product import TileChoice
from clgraft.core.planning.precision import TF32, precision
from clgraft.core.problem import SMALL
from clgraft.core.problem.layout import FIRST, LAST, channels_first, channels_last
from clgraft.core.session.context import Context
from clgraft.plugins.command_line.bench.cases import group_of
from clgraft.plugins.command_line.bench.results import Measurement

DIRECTIONS = ("forward", "backward_data", "backward_filter")
OUTPUTS = {"forward": "y", "backward_data": "dx", "backward_filter": "dw"}
FUNCTIONS = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)


def convolutions(name: str) -> dict[str, str]:
    """Return a set of problems by their names.

    Raises
    ------
    SystemExit
        If there is no such set, or it has problems that are no convolutions.
    """
    lines = problem_lines(name)
    others = sorted({kind for kind in (text.split()[0] for text in lines.values()) if kind != "conv"})
    if others:
        takes = "alexnet, classic, depthwise, mobilenet, resnet50, vgg16"
        sys.exit(
            f"set {name} has {', '.join(others)}: expected convolutions alone, as those of {takes}; dense layers "
            "and others are compared by benchmarks/operators_gpu.py"
        )
    return lines


def torch_call(problem: core.ConvProblem, tensors: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Return PyTorch's convolution in one direction."""
    attributes = {
        "stride": problem.stride,
        "padding": problem.pad_begin,
        "dilation": problem.dilate,
        "groups": problem.groups,
    }
    if problem.direction == "forward":
        return lambda: FUNCTIONS[problem.ndim - 1](tensors["x"], tensors["w"], **attributes)
    mask = [problem.direction == "backward_data", problem.direction == "backward_filter", False]

    def backward() -> torch.Tensor:
        gradients = torch.ops.aten.convolution_backward(
            *(tensors["dy"], tensors["x"], tensors["w"], None),
            *(problem.stride, problem.pad_begin, problem.dilate, False, (0,) * problem.ndim, problem.groups, mask),
        )
        return gradients[0] if mask[0] else gradients[1]

    return backward


def layouts_of(tensors: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Return the same tensors in each layout that PyTorch has for them."""
    found = {"channels first": tensors}
    if all(tensor.ndim == 4 for tensor in tensors.values()):
        last = torch.channels_last
        found["channels last"] = {key: tensor.contiguous(memory_format=last) for key, tensor in tensors.items()}
    return found


@contextmanager
def forced(tile: Any, parts: int) -> Iterator[None]:
    """Make every product choose this tile and split."""

    def choose(product: Any, device: Any, size: int, split: bool = True, only: Any = None) -> Any:
        steps = -(-product.depth // tile.k)
        length = -(-steps // parts)
        return TileChoice(tile, -(-steps // length) if steps else 1, length)

    usual, builder.choose = builder.choose, choose
    try:
        yield
    finally:
        builder.choose = usual


def tile_table(context: Context, problem: core.ConvProblem, arrays: dict[str, np.ndarray]) -> list[dict]:
    """Time every tile with the splits that assign one to eight work-groups to a compute unit."""
    rows = []
    depth_of = {"forward": "w", "backward_data": "w", "backward_filter": "dy"}
    for tile in gpu_gemm_tiles.candidates(context.device, 4):
        if problem.direction == "backward_filter":
            tiles = -(-problem.out_channels // tile.m) * -(-arrays["w"][0].size // tile.n)
            depth = arrays["dy"].size // problem.out_channels
        else:
            side = "dy" if problem.direction == "forward" else "x"
            count = arrays[side].shape[1]
            tiles = -(-count // tile.m) * -(-arrays[side].size // count // tile.n)
            depth = arrays[depth_of[problem.direction]].size // count
        steps = -(-depth // tile.k)
        tried = {1}
        for groups in (1, 2, 4, 8):
            parts = groups * context.device.compute_units // max(tiles, 1)
            if 1 < parts <= steps // 2:
                tried.add(parts)
        for parts in sorted(tried):
            try:
                with forced(tile, parts):
                    run = DeviceRun(context, problem, arrays)
                runs = run.enough()
                time = statistics.median(run.milliseconds(runs) for _ in range(3))
                row = {"m": tile.m, "n": tile.n, "k": tile.k, "parts": parts, "ms": time}
            except core.ClgraftError as error:
                row = {
                    "m": tile.m,
                    "n": tile.n,
                    "k": tile.k,
                    "parts": parts,
                    "ms": float("inf"),
                    "error": str(error)[:200],
                }
            rows.append(row)
    return sorted(rows, key=lambda row: row["ms"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "sets", nargs="*", default=["resnet50"], help="of convolutions, such as classic, resnet50 and depthwise"
    )
    parser.add_argument("--batch", type=int, default=0, help="instead of the problems' own")
    parser.add_argument("--dtype", default="float32", choices=("float32", *SMALL), help="of both sides")
    parser.add_argument("--only", default="", help="part of a problem's name")
    parser.add_argument("--tiles", metavar="FILE", help="time every tile and split, and keep their times")
    parser.add_argument("--json", default="", metavar="FILE", help="keep the figures")
    options = parser.parse_args()
    sets = {name: convolutions(name) for name in options.sets}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision() == TF32
    torch.backends.cudnn.benchmark = True
    context, dtype = core.context("gpu"), getattr(torch, options.dtype)
    used = precision() if options.dtype == "float32" else options.dtype
    print(f"device: {context.device.name}; ms, TFLOPS, cuDNN's time over ours ({used}), error ours / cuDNN")
    results, rows, ratios = [], [], {direction: [] for direction in DIRECTIONS}
    for name in announced(options.sets):
        for label, text in sets[name].items():
            if options.only not in label:
                continue
            forward = core.parse(text)
            if forward.pad_begin != forward.pad_end or forward.dtype != "float32":
                continue
            forward = replace(forward, batch=options.batch or forward.batch, bias=False, dtype=options.dtype)
            rng = np.random.default_rng(0)
            shapes = {a.name: a.shape for a in forward.arguments()}
            shapes["dy"] = shapes.pop("y")
            arrays = {key: rng.standard_normal(shape, np.float32) for key, shape in shapes.items()}
            tensors = {key: torch.from_numpy(array).cuda().to(dtype) for key, array in arrays.items()}
            if options.dtype in SMALL:  # the same numbers as cuDNN's
                forward = replace(forward, layout=LAST)
                rounded = {key: tensor.float().cpu().numpy() for key, tensor in tensors.items()}
                arrays = {key: channels_last(array).astype(options.dtype) for key, array in rounded.items()}
            doubles = {key: tensor.double() for key, tensor in tensors.items()}
            for direction in DIRECTIONS:
                problem = forward.with_direction(direction)
                exact = torch_call(problem, doubles)()
                peers = {layout: torch_call(problem, laid_out) for layout, laid_out in layouts_of(tensors).items()}
                run = DeviceRun(context, problem, arrays)
                result = run.result() if forward.layout == FIRST else channels_first(run.result()).astype(np.float32)
                error = relative_error(np.ascontiguousarray(result), exact)
                times: dict[str, list[float]] = {"ours": [], **{layout: [] for layout in peers}}
                runs = run.enough()
                for _ in range(9):
                    times["ours"].append(run.milliseconds(runs))
                    for layout, peer in peers.items():
                        times[layout].append(torch_milliseconds(peer, runs))
                ours, *theirs = (statistics.median(values[1:]) for values in times.values())
                cudnn, layout = min(zip(theirs, peers))
                peer_error = float((peers[layout]().double() - exact).norm() / exact.norm())
                rate = problem.flops / 1e9
                print(
                    f"{label:24} {direction:15} {run.algorithm:15} {ours:7.3f} {rate / ours:5.1f}  cudnn {cudnn:7.3f} "
                    f"{rate / cudnn:5.1f} {cudnn / ours:5.2f}x  error {error:.1e} {peer_error:.1e}  {layout}",
                    flush=True,
                )
                ratios[direction].append(cudnn / ours)
                seconds = (1e-3 * cudnn, 1e-3 * ours)
                group = group_of(forward)
                rows.append(Measurement(name, label, str(problem), group, direction, "torch", *seconds, layout=layout))
                if options.tiles:
                    tiles = tile_table(context, problem, arrays)
                    results.append({"problem": str(problem), "ours": ours, "tiles": tiles})
                    for best in tiles[:4]:
                        print("   ", {key: value for key, value in best.items()}, flush=True)
    for direction, values in ratios.items():
        if values:
            print(f"{direction}: geometric mean {geometric_mean(values):.2f}x cuDNN, worst {min(values):.2f}x")
    if options.tiles:
        with open(options.tiles, "w") as file:
            json.dump(results, file, indent=1)
    keep(options.json, context, rows, {"torch": f"PyTorch {torch.__version__}" + f", {used}" * (used != "float32")})
    return 0


if __name__ == "__main__":
    sys.exit(main())
