"""Training steps of torchvision's nets: our backend of `torch.compile` against PyTorch itself, in one process, in turn.

    python benchmarks/torch_nets.py resnet18 resnet50 vgg16 mobilenet_v2 alexnet --batch 8 --device pocl
    python benchmarks/torch_nets.py resnet50 resnet18 mobilenet_v2 vgg16 --batch 32 --device gpu --peer cuda

The sides are eager PyTorch in both layouts (channels first and channels last), inductor, and clgraft. A training step
is forward, cross entropy, backward and stochastic gradient descent with momentum. For each side the medians of the wall
clock and of the processors' time are printed, in milliseconds, and how many times ours they are. Processor time says
less about threads that wait, but is what a machine that does other work allows to compare. PyTorch has the faster of
its default number of threads and all processors.

With `--peer cuda` PyTorch's sides compute on the CUDA device, eager in both layouts, in float32 without TF32, with
`cudnn.benchmark`. Images come from host memory on all sides, and the logits, or the loss, go back there. Their
parameters and optimizer stay on the device; ours are PyTorch's CPU tensors. Optimizers are PyTorch's fused ones then.
`--parts` also prints how long ours takes for forward, backward and the optimizer, and the bytes that it moves.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from typing import Any, Callable

import torch
from timing import restarted
from torch.nn import functional

SIDES = {"cpu": ("eager", "channels last", "inductor", "clgraft"), "cuda": ("eager", "channels last", "clgraft")}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=["resnet18", "resnet50", "vgg16", "mobilenet_v2", "alexnet"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--device", help="as CLGRAFT_DEVICE; by default what that holds")
    parser.add_argument("--peer", choices=tuple(SIDES), default="cpu", help="where PyTorch's sides compute")
    parser.add_argument("--sides", help="names between commas")
    parser.add_argument("--inference", action="store_true", help="time inference with frozen parameters instead")
    parser.add_argument("--parts", action="store_true", help="print the parts of our step as well")
    options = parser.parse_args(arguments)
    options.sides = options.sides.split(",") if options.sides else SIDES[options.peer]
    return options


class Side:
    """A copy of a net that infers, or makes training steps, in one way."""

    def __init__(self, net: torch.nn.Module, name: str, options: argparse.Namespace) -> None:
        net = copy.deepcopy(net)
        self.place = "cuda" if options.peer == "cuda" and name != "clgraft" else "cpu"
        self.layout = torch.channels_last if name == "channels last" else torch.contiguous_format
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(options.batch, 3, options.size, options.size, generator=generator)
        self.labels = torch.arange(options.batch) % 10
        net = net.to(self.place, memory_format=self.layout)
        if options.peer == "cpu":
            self.images = self.images.to(memory_format=self.layout)
        fused = {"fused": True} if options.peer == "cuda" else {}
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, **fused)
        self.model: Any = net
        if name == "inductor":
            self.model = torch.compile(net)
        elif name == "clgraft":
            given = {"frozen": True} if options.inference else {}
            from clgraft.plugins.torch.backend import clgraft  # what the name stands for where clgraft is installed

            self.model = torch.compile(net, backend=clgraft, options={"device": options.device, **given})
        self.run: Callable[[], Any] = self.infer if options.inference else self.step
        self.parts: list[tuple[float, ...]] = []

    def _sent(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.place == "cpu":
            return tensor
        layout = self.layout if tensor.ndim == 4 else torch.contiguous_format
        return tensor.to(self.place).contiguous(memory_format=layout)

    def step(self) -> Any:
        """Make a training step and return the loss in front of it."""
        clock = [time.perf_counter()]
        images, labels = self._sent(self.images), self._sent(self.labels)
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(images), labels)
        clock.append(time.perf_counter())
        loss.backward()
        clock.append(time.perf_counter())
        self.optimizer.step()
        found = loss.detach().cpu()
        clock.append(time.perf_counter())
        self.parts.append(tuple(end - begin for begin, end in zip(clock, clock[1:])))
        if self.place == "cuda":
            torch.cuda.synchronize()
        return found

    def infer(self) -> Any:
        """Return the logits."""
        with torch.no_grad():
            return self.model(self._sent(self.images)).cpu()


def prepare(name: str, options: argparse.Namespace) -> dict[str, Side]:
    """Return the sides of a net, compiled, after their results were compared."""
    from tests.plugins.onnx.torch_nets import build

    torch._dynamo.reset()
    net = build(name)
    net = net.eval() if options.inference else net.train()
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # the sides draw in different orders
    sides = {one: Side(net, one, options) for one in options.sides}
    losses = {}
    for one, side in sides.items():
        began = time.process_time()
        losses[one] = side.run()
        print(f"  {one}: first call {time.process_time() - began:.1f} s of the processors", flush=True)
        side.run()
    first = next(iter(losses.values()))
    for one, value in losses.items():
        error = float((value - first).norm() / first.norm())
        if not error < 1e-3:
            raise SystemExit(f"{name}: {one} differs by {error:.1e}")
    return sides


def measure(sides: dict[str, Side], options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Return the medians of wall clock and processor time of each side of a net, in milliseconds."""
    times: dict[str, list[tuple[float, float]]] = {one: [] for one in sides}
    for _ in range(options.runs):
        for one, side in sides.items():
            began = time.perf_counter(), time.process_time()
            side.run()
            times[one].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    if options.parts and "clgraft" in sides:
        print_parts(sides["clgraft"], options)
    return {one: tuple(1e3 * statistics.median(kind) for kind in zip(*found)) for one, found in times.items()}


def print_parts(side: Side, options: argparse.Namespace) -> None:
    """Print the parts of our step, and what crosses the bus."""
    from clgraft import core

    before = core.context(options.device).counters()
    side.run()
    after = core.context(options.device).counters()
    moved = ", ".join(f"{after[name] - before[name]} {name.replace('_', ' ')}" for name in after)
    words = ("forward", "backward", "optimizer")
    recent = side.parts[-options.runs :]
    parts = (f"{word} {1e3 * statistics.median(each):.1f} ms" for word, each in zip(words, zip(*recent)))
    print(f"  {', '.join([*parts, moved])}", flush=True)


def print_times(found: dict[str, tuple[float, float]]) -> None:
    """Print the times of all sides."""
    ours = found.get("clgraft")
    for one, (wall, used) in found.items():
        ratio = f"  {wall / ours[0]:.2f}x wall, {used / ours[1]:.2f}x processors" if ours and one != "clgraft" else ""
        print(f"  {one:>14}: {wall:8.1f} ms wall, {used:8.1f} ms of the processors{ratio}", flush=True)


def set_up(options: argparse.Namespace) -> None:
    """Choose devices and precision."""
    if options.peer == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
    if options.device:
        os.environ["CLGRAFT_DEVICE"] = options.device


def main() -> None:
    """Measure and print a table."""
    options = parse()
    set_up(options)
    if options.peer == "cpu":
        print(f"PyTorch: {restarted('torch')}")
    for name in options.nets:
        print(name, flush=True)
        print_times(measure(prepare(name, options), options))


if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.append(str(Path(__file__).resolve().parent.parent))
    main()
