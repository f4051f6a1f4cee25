"""Whole nets as graphs of the core, with parameters on the device, compared with PyTorch on the same device.

    python benchmarks/graph_nets.py resnet50 mobilenet_v2 --batch 32 --device gpu --peer cuda

Each net is described once and built twice, as a graph and as a PyTorch module, with the same parameters. Inference and
training (forward and every gradient, batch norm with the batch's statistics) are checked against each other first.
The peer's time is the best of eager mode, channels last, and with ``--compile`` torch.compile in channels last, on a
GPU with CUDA graphs; on the CPU with the faster of its default number of threads and all processors. With ``--precision
float16`` both sides compute in mixed precision, PyTorch under its autocast. Random nets in 16 bits differ much in their
gradients, ours from PyTorch's as much as PyTorch's from its own in float32. With ``--tf32`` PyTorch in float32 with
TF32 on is one more peer, in the best of the same modes.

    python benchmarks/graph_nets.py resnet50 --batch 32 --device gpu --peer none --arrays device,host,versions

The floor is the time that the device's measured peaks of float32 allow for the compiled graph, see docs/performance.md;
mixed precision has none.

`--arrays` says where our arrays are: on the device (parameters of inference are constants); in host memory, all sent in
every run and gradients brought back; or there with a version for each parameter, which changes in training alone.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from typing import Any

import numpy as np
from progress import announced
from timing import keep, restarted, row

from clgraft import core
from clgraft.core import settings
from clgraft.core.graph import GraphBuilder
from clgraft.core.planning.floor import floor
from clgraft.core.planning.precision import TF32
from clgraft.plugins.command_line.bench.peaks import measure

EPS = 1e-5
WARM_UPS = 3  # CUDA graphs are recorded in the second run


class OnGraph:
    """Builds a net as a graph."""

    def __init__(self, batch: int, training: bool) -> None:
        self.builder, self.training = GraphBuilder(), training
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.parameters: dict[str, tuple[int, ...]] = {}
        self.statistics: dict[str, tuple[int, ...]] = {}
        self.batch = batch

    def _known(self, name: str, shape: tuple[int, ...]) -> str:
        self.shapes[name] = shape
        return name

    def _parameter(self, name: str, shape: tuple[int, ...]) -> str:
        self.parameters[name] = shape
        return self.builder.input(name, shape)

    def image(self, size: int) -> str:
        """Return the net's input."""
        return self._known(self.builder.input("x", (self.batch, 3, size, size)), (self.batch, 3, size, size))

    def conv(
        self, x: str, name: str, out: int, kernel: int, stride: int = 1, groups: int = 1, bias: bool = False
    ) -> str:
        """Return a convolution with half of the kernel as padding."""
        n, c, h, w = self.shapes[x]
        pad = kernel // 2
        size = tuple((s + 2 * pad - kernel) // stride + 1 for s in (h, w))
        problem = core.ConvProblem(
            direction="forward",
            batch=n,
            in_channels=c,
            out_channels=out,
            in_size=(h, w),
            kernel=(kernel, kernel),
            stride=(stride, stride),
            pad_begin=(pad, pad),
            pad_end=(pad, pad),
            groups=groups,
            bias=bias,
        )
        reads = [x, self._parameter(f"{name}.weight", (out, c // groups, kernel, kernel))]
        if bias:
            reads.append(self._parameter(f"{name}.bias", (out,)))
        (y,) = self.builder.add(problem, *reads)
        return self._known(y, (n, out, *size))

    def norm(self, x: str, name: str) -> str:
        """Return a batch norm."""
        n, c, h, w = self.shapes[x]
        reads = [x, self._parameter(f"{name}.gamma", (c,)), self._parameter(f"{name}.beta", (c,))]
        if self.training:
            problem = core.BatchNormProblem("forward_training", n, c, h * w)
        else:
            problem = core.BatchNormProblem("forward_inference", n, c, h * w)
            for word in ("mean", "var"):
                self.statistics[f"{name}.{word}"] = (c,)
                reads.append(self.builder.input(f"{name}.{word}", (c,)))
        y, *_ = self.builder.add(problem, *reads, scalars={"eps": EPS})
        return self._known(y, (n, c, h, w))

    def relu(self, x: str, limit: float | None = None) -> str:
        """Return max(x, 0), at most `limit`."""
        text = "y0 = x0 > 0 ? x0 : 0;" if limit is None else "y0 = x0 < low ? low : x0 > high ? high : x0;"
        scalars = {} if limit is None else {"low": 0.0, "high": limit}
        (y,) = self.builder.add(core.PointwiseProblem((self.shapes[x],), text, (), tuple(scalars)), x, scalars=scalars)
        return self._known(y, self.shapes[x])

    def add(self, x: str, y: str) -> str:
        """Return a sum."""
        (z,) = self.builder.add(core.PointwiseProblem((self.shapes[x],) * 2, "y0 = x0 + x1;"), x, y)
        return self._known(z, self.shapes[x])

    def max_pool(self, x: str, kernel: int, stride: int, pad: int = 0) -> str:
        """Return maxima of windows."""
        n, c, h, w = self.shapes[x]
        problem = core.PoolProblem("forward", "max", n, c, (h, w), (kernel,) * 2, (stride,) * 2, (pad,) * 2, (pad,) * 2)
        (y,) = self.builder.add(problem, x)
        return self._known(y, (n, c, *problem.out_size))

    def mean(self, x: str) -> str:
        """Return the mean of each plane as (batch, channels)."""
        n, c, h, w = self.shapes[x]
        problem = core.PoolProblem("forward", "average", n, c, (h, w), (h, w), (1, 1), (0, 0), (0, 0))
        (y,) = self.builder.add(problem, x)
        return self._known(y, (n, c))

    def dense(self, x: str, name: str, out: int) -> str:
        """Return a dense layer with a bias."""
        n, c = self.shapes[x][0], math.prod(self.shapes[x][1:])
        reads = [x, self._parameter(f"{name}.weight", (out, c)), self._parameter(f"{name}.bias", (out,))]
        (y,) = self.builder.add(core.DenseProblem("forward", n, c, out, bias=True), *reads)
        return self._known(y, (n, out))


class OnTorch:
    """Runs a net in PyTorch."""

    def __init__(self, values: dict[str, Any], training: bool) -> None:
        import torch
        from torch.nn import functional

        self.values, self.training, self.torch, self.f = values, training, torch, functional

    def image(self, size: int) -> Any:
        """Return the net's input."""
        return self.values["x"]

    def conv(
        self, x: Any, name: str, out: int, kernel: int, stride: int = 1, groups: int = 1, bias: bool = False
    ) -> Any:
        """Return a convolution with half of the kernel as padding."""
        weight = self.values[f"{name}.weight"]
        return self.f.conv2d(x, weight, self.values[f"{name}.bias"] if bias else None, stride, kernel // 2, 1, groups)

    def norm(self, x: Any, name: str) -> Any:
        """Return a batch norm."""
        mean, var = (None, None) if self.training else (self.values[f"{name}.mean"], self.values[f"{name}.var"])
        gamma, beta = self.values[f"{name}.gamma"], self.values[f"{name}.beta"]
        return self.f.batch_norm(x, mean, var, gamma, beta, self.training, 0.1, EPS)

    def relu(self, x: Any, limit: float | None = None) -> Any:
        """Return max(x, 0), at most `limit`."""
        return self.f.relu(x) if limit is None else self.f.hardtanh(x, 0.0, limit)

    def add(self, x: Any, y: Any) -> Any:
        """Return a sum."""
        return x + y

    def max_pool(self, x: Any, kernel: int, stride: int, pad: int = 0) -> Any:
        """Return maxima of windows."""
        return self.f.max_pool2d(x, kernel, stride, pad)

    def mean(self, x: Any) -> Any:
        """Return the mean of each plane."""
        return x.mean((2, 3))

    def dense(self, x: Any, name: str, out: int) -> Any:
        """Return a dense layer with a bias."""
        return self.f.linear(x.flatten(1), self.values[f"{name}.weight"], self.values[f"{name}.bias"])


def resnet(on: Any, size: int, blocks: tuple[int, ...], bottleneck: bool) -> Any:
    """Describe a ResNet (He et al. 2016, with the stride in the 3x3 convolution)."""
    x = on.relu(on.norm(on.conv(on.image(size), "stem", 64, 7, 2), "stem.norm"))
    x = on.max_pool(x, 3, 2, 1)
    channels = 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        out = width * (4 if bottleneck else 1)
        for block in range(count):
            name, stride = f"s{stage}b{block}", 2 if stage and not block else 1
            y = x
            parts = (
                ((width, 1, 1), (width, 3, stride), (out, 1, 1)) if bottleneck else ((width, 3, stride), (out, 3, 1))
            )
            for i, (filters, kernel, step) in enumerate(parts):
                y = on.norm(on.conv(y, f"{name}.conv{i}", filters, kernel, step), f"{name}.norm{i}")
                if i + 1 < len(parts):
                    y = on.relu(y)
            if stride != 1 or channels != out:
                x = on.norm(on.conv(x, f"{name}.short", out, 1, stride), f"{name}.short.norm")
            x, channels = on.relu(on.add(y, x)), out
    return on.dense(on.mean(x), "head", 1000)


def vgg16(on: Any, size: int) -> Any:
    """Describe VGG-16 without dropout (Simonyan and Zisserman 2015)."""
    x = on.image(size)
    for stage, (count, width) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))):
        for i in range(count):
            x = on.relu(on.conv(x, f"s{stage}.conv{i}", width, 3, bias=True))
        x = on.max_pool(x, 2, 2)
    for i in range(2):
        x = on.dense(x, f"dense{i}", 4096)
        x = on.relu(x)
    return on.dense(x, "head", 1000)


def mobilenet_v2(on: Any, size: int) -> Any:
    """Describe MobileNet v2 without dropout (Sandler et al. 2018)."""
    x = on.relu(on.norm(on.conv(on.image(size), "stem", 32, 3, 2), "stem.norm"), 6.0)
    channels = 32
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for stage, (expand, out, count, first) in enumerate(rows):
        for i in range(count):
            name, stride, inner, y = f"s{stage}b{i}", first if i == 0 else 1, channels * expand, x
            if expand != 1:
                y = on.relu(on.norm(on.conv(y, f"{name}.expand", inner, 1), f"{name}.norm0"), 6.0)
            y = on.relu(on.norm(on.conv(y, f"{name}.depth", inner, 3, stride, inner), f"{name}.norm1"), 6.0)
            y = on.norm(on.conv(y, f"{name}.project", out, 1), f"{name}.norm2")
            x, channels = (on.add(x, y) if stride == 1 and channels == out else y), out
    x = on.relu(on.norm(on.conv(x, "last", 1280, 1), "last.norm"), 6.0)
    return on.dense(on.mean(x), "head", 1000)


NETS = {
    "resnet18": lambda on, size: resnet(on, size, (2, 2, 2, 2), False),
    "resnet50": lambda on, size: resnet(on, size, (3, 4, 6, 3), True),
    "vgg16": vgg16,
    "mobilenet_v2": mobilenet_v2,
}


def random_values(on: OnGraph, size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random inputs and parameters of a usual size: weights by He et al. 2015."""
    values = {"x": rng.standard_normal((on.batch, 3, size, size), np.float32)}
    for name, shape in on.parameters.items():
        if name.endswith(".weight"):
            values[name] = rng.standard_normal(shape, np.float32) * np.float32(math.sqrt(2 / math.prod(shape[1:])))
        elif name.endswith(".gamma"):
            values[name] = rng.uniform(0.25, 0.75, shape).astype(np.float32)  # no sum outgrows float16
        else:
            values[name] = rng.uniform(-0.1, 0.1, shape).astype(np.float32)
    for name, shape in on.statistics.items():
        values[name] = rng.uniform(*((0.5, 1.5) if name.endswith(".var") else (-0.1, 0.1)), shape).astype(np.float32)
    return values


class Ours:
    """A net as a compiled graph.

    With `arrays` "device" everything is on the device; on devices that use host memory in place the arrays are NumPy's.
    """

    def __init__(self, net: str, batch: int, size: int, training: bool, context: Any, arrays: str = "device") -> None:
        on = OnGraph(batch, training)
        logits = NETS[net](on, size)
        graph = on.builder.graph(logits)
        rng = np.random.default_rng(0)
        self.values = random_values(on, size, rng)
        self.logits, self.parameters = logits, tuple(on.parameters)
        if training:
            graph = graph.gradients(self.parameters)
            self.values[f"d.{logits}"] = rng.standard_normal((batch, 1000), np.float32)
        self.graph, self.context = graph, context
        start = time.perf_counter()
        known = (*on.parameters, *on.statistics)
        constants = {} if training or arrays != "device" else {name: self.values[name] for name in known}
        self.versions = dict.fromkeys(known, 1) if arrays == "versions" else {}
        self.training = training
        self.compiled = context.compile(graph, constants=constants)
        self.report = self.compiled.report()
        self.seconds_to_compile = time.perf_counter() - start
        self.arrays: dict[str, Any] = {name: a for name, a in self.values.items() if name not in constants}
        for name in graph.outputs:
            self.arrays[name] = np.full(graph.values[name].shape, np.nan, np.float32)
        if arrays == "device" and context.device.host_access == "staged":
            import pyopencl.array as device_array

            self.arrays = {name: device_array.to_device(context.queue, array) for name, array in self.arrays.items()}

    def run(self) -> None:
        """Run once and wait."""
        if self.training:
            self.versions = {name: version + 1 for name, version in self.versions.items()}
        self.compiled.run(self.arrays, versions=self.versions)
        self.context.finish()

    def nbytes(self) -> float:
        """Return the bytes of the arena and of all arrays that a run has."""
        outputs = (self.graph.values[name].nbytes for name in self.graph.outputs)
        return float(self.report.arena_bytes + sum(array.nbytes for array in self.values.values()) + sum(outputs))

    def results(self) -> dict[str, np.ndarray]:
        """Return the outputs: logits, and in training each parameter's gradient."""
        found = {name: self.arrays[name] for name in self.graph.outputs}
        return {name: array if isinstance(array, np.ndarray) else array.get() for name, array in found.items()}


class Peer:
    """The same net in PyTorch, in a precision: float32, tf32, or one of its autocast."""

    def __init__(
        self, net: str, ours: Ours, size: int, training: bool, where: str, mode: str, precision: str = "float32"
    ) -> None:
        import torch

        torch.backends.cudnn.benchmark = True
        self.torch, self.where, self.training = torch, where, training
        self.tf32 = precision == TF32
        layout = torch.channels_last if "last" in mode else torch.contiguous_format
        self.values = {}
        for name, array in ours.values.items():
            tensor = torch.from_numpy(array).to(where)
            if tensor.ndim == 4:
                tensor = tensor.to(memory_format=layout)
            self.values[name] = tensor.requires_grad_(training and name in ours.parameters)
        self.parameters = [self.values[name] for name in ours.parameters]
        self.seed = self.values.get(f"d.{ours.logits}")

        mixed = precision in settings.MIXED
        dtype = getattr(torch, precision) if mixed else None

        def forward(values: dict[str, Any]) -> Any:
            with torch.autocast(where, dtype, mixed):
                return NETS[net](OnTorch(values, training), size).float()

        graphs = "reduce-overhead" if where == "cuda" else None  # CUDA graphs
        self.forward = torch.compile(forward, mode=graphs) if "compile" in mode else forward

    def run(self) -> Any:
        """Run once and wait."""
        torch = self.torch
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.tf32
        if self.training:
            logits = self.forward(self.values)
            gradients = torch.autograd.grad(logits, self.parameters, self.seed)
            found = [logits, *gradients]
        else:
            with torch.inference_mode():
                found = [self.forward(self.values)]
        if self.where == "cuda":
            torch.cuda.synchronize()
        return found


def forget(compiled: bool) -> None:
    """Have PyTorch forget what it compiled: with more than a few versions of a function it compiles no other one."""
    if compiled:
        import torch

        torch.compiler.reset()


def reserved(net: str, ours: Ours, size: int, training: bool, mode: str, precision: str) -> float:
    """Return the bytes of the GPU that PyTorch reserves for a net of its own in two runs, parameters included."""
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    peer = Peer(net, ours, size, training, "cuda", mode, precision)
    for _ in range(2):
        peer.run()
    return float(torch.cuda.max_memory_reserved() - before)


def largest_difference(ours: Ours, peer: Peer) -> float:
    """Return the largest difference of an output, relative to its largest element.

    Gradients that are 0 but for rounding (of a shift that the next batch norm removes) count relative to 1e-3 of the
    largest gradient.
    """
    theirs = [tensor.detach().cpu().numpy() for tensor in peer.run()]
    floor = 1e-3 * max(float(np.abs(array).max()) for array in theirs)
    pairs = zip(ours.results().values(), theirs)
    return max(float(np.abs(a - b).max()) / max(float(np.abs(b).max()), floor) for a, b in pairs)


def same(ours: Ours, other: Ours) -> None:
    """Check that arrays elsewhere change nothing but rounding, which folding constants changes."""
    other.run()
    found = other.results()
    for name, array in ours.results().items():
        difference = float(np.abs(array - found[name]).max()) / max(float(np.abs(array).max()), 1e-30)
        if not difference < (0.1 if settings.PRECISION.value() in settings.MIXED else 1e-3):
            raise SystemExit(f"{name} differs by {difference}")


def seconds(runs: list[Any], repeats: int) -> list[float]:
    """Return the median time of each of several calls that take turns, each after one that is not timed.

    A GPU that changes between the contexts of OpenCL and CUDA loses up to half a millisecond in the first call.
    """
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for i, run in enumerate(runs):
            run()
            start = time.perf_counter()
            run()
            times[i].append(time.perf_counter() - start)
    return [statistics.median(each) for each in times]


def main() -> None:
    """Measure the nets that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=list(NETS), help=f"of {list(NETS)}")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224, help="pixels of a side")
    parser.add_argument("--device", help="OpenCL device (default: CLGRAFT_DEVICE)")
    parser.add_argument("--peer", choices=("cpu", "cuda", "none"), default="cpu", help="where PyTorch runs")
    parser.add_argument(
        "--compile", action="store_true", help="torch.compile as a further mode of the peer, on a GPU with CUDA graphs"
    )
    parser.add_argument("--tf32", action="store_true", help="PyTorch in float32 with TF32 on, too (a GPU)")
    parser.add_argument("--modes", default="inference,training")
    parser.add_argument("--arrays", default="device", help="of device, host and versions; the first one meets the peer")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", default="", metavar="FILE", help="keep the figures of arrays of the first place")
    parser.add_argument("--precision", choices=("float32", *settings.MIXED), default="float32", help="of both sides")
    options = parser.parse_args()
    if options.precision in settings.MIXED:
        os.environ[settings.PRECISION.name] = options.precision
    threads = {}
    if options.peer == "cpu":
        if options.device:
            os.environ["CLGRAFT_DEVICE"] = options.device
        threads["torch"] = restarted("torch")
        print(f"PyTorch: {threads['torch']}")
    context = core.context(options.device)
    print(f"{context.device}; batch {options.batch}, {options.size} pixels; medians of {options.repeats}, ms")
    peaks = measure(context)
    print(f"peaks: {peaks}")
    rows, versions = [], {}
    for net in announced(options.nets):
        for mode in options.modes.split(","):
            training = mode == "training"
            places = options.arrays.split(",")
            ours, *others = (Ours(net, options.batch, options.size, training, context, where) for where in places)
            ours.run()
            line = f"{net} {mode}: compiled in {ours.seconds_to_compile:.1f} s; {ours.report}"
            print(line, flush=True)
            kinds = ["eager", "channels last", *(["compile, channels last"] if options.compile else [])]
            precisions = [options.precision, *([TF32] if options.tf32 else [])] if options.peer != "none" else []
            sides = [(precision, kind) for precision in precisions for kind in kinds]
            forget(options.compile)
            peers = [Peer(net, ours, options.size, training, options.peer, kind, each) for each, kind in sides]
            if peers:
                print(f"  largest difference from PyTorch {largest_difference(ours, peers[0]):.1e}", flush=True)
            for other in others:
                same(ours, other)
            runs = [ours.run, *(peer.run for peer in peers), *(other.run for other in others)]
            for run in runs * WARM_UPS:
                run()
            mine, *theirs = seconds(runs, options.repeats)
            theirs, elsewhere = theirs[: len(peers)], theirs[len(peers) :]
            times = dict(zip(sides, theirs))
            names = {side: " ".join(("PyTorch", *side[side[0] != TF32 :])) for side in sides}
            found = ", ".join(f"{names[side]} {1e3 * value:.2f}" for side, value in times.items())
            places_found = "".join(f", {w} {1e3 * value:.2f}" for w, value in zip(places[1:], elsewhere))
            least = floor(ours.report.work, peaks) if options.precision == "float32" else 0.0
            reached = f", floor {1e3 * least:.2f} ({least / mine:.0%})" if least else ""
            print(f"  ours ({places[0]}) {1e3 * mine:.2f}{reached}{places_found}, {found}", flush=True)
            if not peers:
                rows.append(row("nets", net, mode, "", 0.0, mine, floor=least, memory=ours.nbytes()))
            for precision in precisions:
                best, layout = min((times[precision, kind], kind) for kind in kinds)
                memory = {"memory": ours.nbytes()}
                if options.peer == "cuda" and "compile" not in layout:  # graphs reserve theirs before
                    memory["native_memory"] = reserved(net, ours, options.size, training, layout, precision)
                name = "torch_tf32" if precision == TF32 else "torch"
                words = [f"PyTorch {peers[0].torch.__version__}", "TF32" if precision == TF32 else precision]
                words += ["CUDA graphs"] * (options.compile and options.peer == "cuda")
                versions[name] = ", ".join(word for word in words if word != "float32")
                rows.append(row("nets", net, mode, name, best, mine, layout=layout, floor=least, **memory))
                print(f"  best of {versions[name]} over ours {best / mine:.2f}", flush=True)
    keep(options.json, context, rows, versions, threads)


if __name__ == "__main__":
    main()
