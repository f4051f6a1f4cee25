"""Compare operators on a GPU with PyTorch: `python benchmarks/operators_gpu.py [part of a name]`.

Only the device is timed, in turn, as in `conv_gpu.py`, and its copy speed is measured. Data that is smaller than the
device's cache stays there on both sides. Results are compared with PyTorch's in float64 first. `--dtype float16` (or
bfloat16) compares 16 bits.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from device_run import DeviceRun, relative_error, torch_milliseconds
from progress import announced, first
from timing import geometric_mean, in_type, keep, row

from clgraft import core
from clgraft.core.problem import SMALL, expect_in_numpy
from clgraft.plugins.torch.memory import tensor_of

F = torch.nn.functional
ALPHA, K = 1e-4, 2.0


class GpuCase(NamedTuple):
    """A problem, its scalars, and PyTorch's function of tensors that are named like its arguments."""

    text: str
    peer: Callable[[dict[str, torch.Tensor]], Any]
    scalars: dict[str, float] = {}  # noqa: RUF012
    random: bool = False
    output: str = ""  # what is compared with float64: the last output, if empty


def gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], Any]:
    """Return the gradient of a function of x by autograd, from one forward run."""
    graphs: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def backward(t: dict[str, torch.Tensor]) -> torch.Tensor:
        if t["dy"].dtype not in graphs:
            x = t["x"].detach().requires_grad_()
            graphs[t["dy"].dtype] = x, function(x)
        x, y = graphs[t["dy"].dtype]
        return torch.autograd.grad(y, x, t["dy"], retain_graph=True)[0]

    return backward


def batch_norm_backward(t: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return all gradients by autograd, from one forward run; dx is the first of them."""
    return gradients_of_norm(t["x"], t["gamma"])(t["dy"])[0]


@functools.lru_cache(2)
def gradients_of_norm(x: torch.Tensor, gamma: torch.Tensor) -> Callable[[torch.Tensor], Any]:
    inputs = [tensor.detach().requires_grad_() for tensor in (x, gamma, torch.zeros_like(gamma))]
    y = F.batch_norm(inputs[0], None, None, inputs[1], inputs[2], True)
    return lambda dy: torch.autograd.grad(y, inputs, dy, retain_graph=True)


def memory_cases() -> Iterator[GpuCase]:
    """Yield what memory bounds: elementwise, reductions, batch norm."""
    for size in ("64,256,56,56", "8,256,56,56", "64,512,7,7", "8,64,14,14"):
        yield GpuCase(f"pointwise x0[{size}] : y0 = x0 > 0 ? x0 : 0", lambda t: torch.relu(t["x0"]))
        yield GpuCase(
            f"pointwise x0[{size}] x1[{size}] : y0 = x0 > 0 ? x1 : 0",
            lambda t: torch.ops.aten.threshold_backward(t["x1"], t["x0"], 0),
        )
        yield GpuCase(f"pointwise x0[{size}] x1[{size}] : y0 = x0 + x1", lambda t: t["x0"] + t["x1"])
    for size, axes in (
        *(("64,256,56,56", (0, 2, 3)), ("64,512,7,7", (0, 2, 3)), ("64,2048,7,7", (2, 3))),
        *(("65536,256", (1,)), ("4096,4096", (0,)), ("51380224", (0,))),
    ):
        folded = ",".join(map(str, axes))
        yield GpuCase(f"pointwise x0[{size}] y0=sum[{folded}] : y0 = x0", lambda t, axes=axes: t["x0"].sum(axes))
    for size in (
        *("n64 c64 s12544", "n64 c256 s3136", "n64 c512 s784", "n64 c1024 s196", "n64 c2048 s49"),
        *("n8 c64 s12544", "n8 c256 s3136", "n8 c1024 s196"),
    ):
        yield GpuCase(
            f"batchnorm forward_training {size}",
            lambda t: F.batch_norm(t["x"], None, None, t["gamma"], t["beta"], True),
            {"eps": 1e-5},
            output="y",
        )
        yield GpuCase(f"batchnorm backward_training {size}", batch_norm_backward, {"eps": 1e-5}, output="dx")


def cases() -> Iterator[GpuCase]:
    yield from memory_cases()
    for n, i, o in ((8, 25088, 4096), (64, 4096, 4096), (512, 4096, 4096)):
        size = f"n{n} i{i} o{o}"
        yield GpuCase(f"dense forward {size}", lambda t: t["x"] @ t["w"].T)
        yield GpuCase(f"dense backward_data {size}", lambda t: t["dy"] @ t["w"])
        yield GpuCase(f"dense backward_weight {size}", lambda t: t["dy"].T @ t["x"])
    for size in ("n64 c1000 s1", "n1 c21 s250000", "n4096 c1000 s1"):
        yield GpuCase(f"softmax forward {size}", lambda t: torch.softmax(t["x"], 1), {"scale": 1.0})
        yield GpuCase(
            f"softmax backward {size}",
            lambda t: torch.ops.aten._softmax_backward_data(t["dy"], t["y"], 1, t["y"].dtype),
            {"scale": 1.0},
        )
    for n in (8, 128):
        size, scalars = f"n{n} c96 s3025 size5 beta0.75", {"alpha": ALPHA, "k": K}
        yield GpuCase(f"lrn forward {size}", lambda t: F.local_response_norm(t["x"], 5, ALPHA, 0.75, K), scalars)
        yield GpuCase(f"lrn backward {size}", gradient(lambda x: F.local_response_norm(x, 5, ALPHA, 0.75, K)), scalars)
    yield from copies()
    yield from poolings()
    yield from upsamplings()
    for shape in ("64,64,56,56", "64,256,56,56"):
        yield GpuCase(
            f"dropout forward x[{shape}]", lambda t: F.dropout(t["x"], 0.5), {"keep": 0.5, "scale": 2.0}, random=True
        )


def copies() -> Iterator[GpuCase]:
    """Yield concatenations of densenet and googlenet and along the last axis, slices, transpositions and paddings."""
    for sizes in (
        "outer[64] extents[128,128] inner[3136]",
        "outer[64] extents[256,32] inner[784]",
        "outer[64] extents[192,208,48,64] inner[196]",
        "outer[64] extents[384,384,128,128] inner[49]",
        "outer[200704] extents[64,64] inner[1]",
        "outer[200704] extents[61,35] inner[1]",
    ):
        yield GpuCase(f"concat forward {sizes}", lambda t: torch.cat([t[n] for n in sorted(t)], 1))
    yield GpuCase(
        "slice forward x[64,256,56,56] y[64,256,54,54] at[0,0,1,1]", lambda t: t["x"][:, :, 1:55, 1:55].clone()
    )
    yield GpuCase("slice forward x[64,256,56,56] y[64,128,56,56] at[0,64,0,0]", lambda t: t["x"][:, 64:192].clone())
    yield GpuCase("slice forward x[64,56,56,256] y[64,56,56,96] at[0,0,0,32]", lambda t: t["x"][..., 32:128].clone())
    yield GpuCase(
        "slice backward x[64,64,58,58] y[64,64,56,56] at[0,0,1,1]", lambda t: F.pad(t["dy"], (1,) * 4), {"value": 0}
    )
    yield GpuCase(
        "slice backward x[64,3,230,230] y[64,3,224,224] at[0,0,3,3]", lambda t: F.pad(t["dy"], (3,) * 4), {"value": 0}
    )
    yield GpuCase("transpose x[64,256,56,56] axes[0,2,3,1]", lambda t: t["x"].permute(0, 2, 3, 1).contiguous())
    yield GpuCase("transpose x[64,56,56,256] axes[0,3,1,2]", lambda t: t["x"].permute(0, 3, 1, 2).contiguous())
    for mode, peer, width in (("edge", "replicate", 1), ("reflect", "reflect", 3)):
        yield GpuCase(
            f"pad forward {mode} x[64,64,56,56] before[0,0,{width},{width}] behind[0,0,{width},{width}]",
            lambda t, peer=peer, width=width: F.pad(t["x"], (width,) * 4, peer),
        )
    yield GpuCase("repeat x[64,64,28,28] times[1,1,2,2]", lambda t: F.interpolate(t["x"], scale_factor=2))


def poolings() -> Iterator[GpuCase]:
    """Yield maxima, averages and whole planes, in both directions."""
    for n in (64, 8):
        for operator, shape, k, s, p in (
            ("max", (64, 112), 3, 2, 1),
            ("max", (256, 56), 2, 2, 0),
            ("max", (192, 28), 3, 1, 1),
            ("average", (64, 112), 3, 2, 1),
            ("average", (2048, 7), 7, 1, 0),
            ("max", (2048, 7), 7, 1, 0),
        ):
            function = F.max_pool2d if operator == "max" else F.avg_pool2d
            pool = partial(function, kernel_size=k, stride=s, padding=p)
            size = f"n{n} c{shape[0]} ih{shape[1]} iw{shape[1]} kh{k} kw{k} sh{s} sw{s} ph{p} pw{p}"
            yield GpuCase(f"pool forward {operator} {size}", lambda t, pool=pool: pool(t["x"]))
            back = gradient(pool)
            yield GpuCase(f"pool backward {operator} {size}", partial(with_input, back, shape))


def upsamplings() -> Iterator[GpuCase]:
    """Yield interpolations and deconvolutions: of few channels, of bilinear filters, and of many channels."""
    linear = partial(F.interpolate, scale_factor=2, mode="bilinear")
    yield GpuCase("interpolate forward linear n8 c64 ih56 iw56 oh112 ow112", lambda t: linear(t["x"]))
    yield GpuCase(
        "interpolate backward linear n8 c64 ih56 iw56 oh112 ow112", partial(with_input, gradient(linear), (64, 56))
    )
    for shape, stride, pad, groups in (
        ("n64 ic64 oc3 ih32 iw32 kh4 kw4", 2, 1, 1),
        ("n8 ic21 oc21 ih16 iw16 kh64 kw64", 32, 16, 21),
        ("n8 ic256 oc128 ih28 iw28 kh4 kw4", 2, 1, 1),
    ):
        group = f"g{groups} " if groups > 1 else ""
        yield GpuCase(
            f"deconv forward {group}{shape} sh{stride} sw{stride} ph{pad} pw{pad}",
            partial(transposed, stride=stride, padding=pad, groups=groups),
        )


def transposed(t: dict[str, torch.Tensor], **attributes: int) -> torch.Tensor:
    """Return PyTorch's deconvolution."""
    return F.conv_transpose2d(t["x"], t["w"], **attributes)


def with_input(
    back: Callable[[dict[str, torch.Tensor]], Any], shape: tuple[int, int], t: dict[str, torch.Tensor]
) -> Any:
    """Call a gradient of averages, which has no x: any of the right shape serves."""
    if "x" not in t:
        t["x"] = torch.empty(len(t["dy"]), shape[0], shape[1], shape[1], device="cuda", dtype=t["dy"].dtype)
    return back(t)


def inputs(problem: Any) -> dict[str, np.ndarray]:
    """Return random values of all inputs; the output of a softmax is a valid one."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    dtypes = {argument.name: argument.dtype for argument in problem.arguments() if argument.role == "in"}
    for argument in problem.arguments():
        if argument.role == "in":
            whole = argument.dtype == "int32"
            shape = argument.shape
            arrays[argument.name] = rng.integers(0, 2**31, shape) if whole else rng.standard_normal(shape, np.float32)
    if problem.kind == "softmax" and "y" in arrays:
        arrays["y"] = torch.softmax(torch.from_numpy(arrays["y"]), 1).numpy()
    if problem.kind == "pool" and "y" in arrays:
        sizes = problem.kernel, problem.stride, problem.pad_begin
        arrays["y"] = F.max_pool2d(torch.from_numpy(arrays["x"]), *sizes).numpy()
    if problem.kind == "batchnorm" and "var" in arrays:
        x = torch.from_numpy(arrays["x"]).cuda().double()
        arrays["mean"] = x.mean((0, 2)).float().cpu().numpy()
        arrays["var"] = x.var((0, 2), correction=0).float().cpu().numpy()
    return {name: array.astype(dtypes[name], copy=False) for name, array in arrays.items()}


def copy_milliseconds(nbytes: int) -> float:
    """Return the time of a copy in the device's memory."""
    source = torch.ones(nbytes // 4, device="cuda")
    target = torch.empty_like(source)
    return min(torch_milliseconds(lambda: target.copy_(source), 5) for _ in range(5))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="?", default="", help="part of a problem's text")
    parser.add_argument("--dtype", default="float32", choices=("float32", *SMALL), help="of both sides")
    parser.add_argument("--json", default="", metavar="FILE", help="keep the figures")
    options = parser.parse_args()
    only, dtype = options.only, options.dtype
    expect_in_numpy("dtype", dtype)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    context = core.context("gpu")
    copy = copy_milliseconds(2**30)
    print(
        f"device: {context.device.name}; copy {2**31 / copy / 1e9:.2f} TB/s; ms, GB/s, TFLOPS, PyTorch's time over ours"
    )
    ratios: dict[str, list[float]] = {}
    rows = []
    wanted = (case for case in cases() if only in case.text)
    for text, function, scalars, random, output in announced(wanted, first):
        problem = in_type(text, dtype)
        arrays = inputs(problem)
        tensors = {name: tensor_of(array).cuda() for name, array in arrays.items()}
        peer = partial(function, tensors)
        try:
            run = DeviceRun(context, problem, arrays, scalars)
        except core.ClgraftError as error:
            print(f"{text:72} {str(error)[:500]}", flush=True)
            continue
        result = run.result(output)
        if dtype in SMALL:
            result = result.astype(np.float32)
        if random:
            kept = float(np.count_nonzero(result)) / result.size
            error = abs(kept - scalars["keep"]) + float(
                np.abs(result[result != 0] - 2 * arrays["x"][result != 0]).max()
            )
        else:
            wide = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
            error = relative_error(result, function(wide))
            del wide
        times: dict[str, list[float]] = {"ours": [], "torch": []}
        runs = run.enough()
        for _ in range(9):
            times["ours"].append(run.milliseconds(runs))
            times["torch"].append(torch_milliseconds(peer, runs))
        ours, theirs = (statistics.median(values[1:]) for values in times.values())
        nbytes = sum(argument.nbytes for argument in problem.arguments())
        rate = f"{nbytes / ours / 1e6:6.0f} GB/s"
        if problem.kind == "dense":
            rate += f" {problem.flops / ours / 1e9:5.1f} TFLOPS"
        print(
            f"{text:72} {run.algorithm:20} {ours:7.4f} {rate:22} torch {theirs:7.4f} {theirs / ours:5.2f}x "
            f" error {error:.1e}",
            flush=True,
        )
        ratios.setdefault(problem.kind, []).append(theirs / ours)
        direction = getattr(problem, "direction", "forward")
        rows.append(row(problem.kind, text, direction, "torch", 1e-3 * theirs, 1e-3 * ours, nbytes=float(nbytes)))
    for kind, values in ratios.items():
        print(f"{kind}: geometric mean {geometric_mean(values):.2f}x PyTorch, worst {min(values):.2f}x")
    keep(options.json, context, rows, {"torch": f"PyTorch {torch.__version__}" + f", {dtype}" * (dtype in SMALL)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
