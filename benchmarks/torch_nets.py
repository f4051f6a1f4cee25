"""Training steps of torchvision's nets: our backend of `torch.compile` against PyTorch itself, in one process, in turn.

    python benchmarks/torch_nets.py resnet18 resnet50 vgg16 mobilenet_v2 alexnet --batch 8 --device pocl

The sides are eager PyTorch in both layouts (channels first and channels last), inductor, and clgraft. A training step
is forward, cross entropy, backward and stochastic gradient descent with momentum. For each side the medians of the wall
clock and of the processors' time are printed, in milliseconds, and how many times ours they are. Processor time says
less about threads that wait, but is what a machine that does other work allows to compare.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from typing import Any, Callable

import torch
from torch.nn import functional

SIDES = ("eager", "channels last", "inductor", "clgraft")


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=["resnet18", "resnet50", "vgg16", "mobilenet_v2", "alexnet"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--device", help="as CLGRAFT_DEVICE; by default what that holds")
    parser.add_argument("--sides", default=",".join(SIDES), help="names between commas")
    parser.add_argument("--inference", action="store_true", help="time inference with frozen parameters instead")
    return parser.parse_args()


def side(net: torch.nn.Module, name: str, options: argparse.Namespace) -> Callable[[], Any]:
    """Return the function that infers, or makes a training step, with a copy of a net."""
    net = copy.deepcopy(net)
    images = torch.randn(options.batch, 3, options.size, options.size, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(options.batch) % 10
    if name == "channels last":
        net, images = net.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
    model: Any = net
    if name == "inductor":
        model = torch.compile(net)
    elif name == "clgraft":
        given = {"frozen": True} if options.inference else {}
        model = torch.compile(net, backend="clgraft", options={"device": options.device, **given})

    def step() -> Any:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def infer() -> Any:
        with torch.no_grad():
            return model(images)

    return infer if options.inference else step


def measure(name: str, options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Return the medians of wall clock and processor time of each side of a net, in milliseconds."""
    from tests.plugins.onnx.torch_nets import build

    torch._dynamo.reset()
    net = build(name)
    net = net.eval() if options.inference else net.train()
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # the sides draw in different orders
    sides = {one: side(net, one, options) for one in options.sides.split(",")}
    losses = {}
    for one, run in sides.items():
        began = time.process_time()
        losses[one] = run()
        print(f"  {one}: first call {time.process_time() - began:.1f} s of the processors", flush=True)
        run()
    first = next(iter(losses.values()))
    for one, value in losses.items():
        error = float((value - first).norm() / first.norm())
        if not error < 1e-3:
            raise SystemExit(f"{name}: {one} differs by {error:.1e}")
    times: dict[str, list[tuple[float, float]]] = {one: [] for one in sides}
    for _ in range(options.runs):
        for one, run in sides.items():
            began = time.perf_counter(), time.process_time()
            run()
            times[one].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    return {one: tuple(1e3 * statistics.median(kind) for kind in zip(*found)) for one, found in times.items()}


def main() -> None:
    """Measure and print a table."""
    options = parse()
    if options.device:
        os.environ["CLGRAFT_DEVICE"] = options.device
    for name in options.nets:
        print(name, flush=True)
        found = measure(name, options)
        ours = found.get("clgraft")
        for one, (wall, used) in found.items():
            ratio = (
                f"  {wall / ours[0]:.2f}x wall, {used / ours[1]:.2f}x processors" if ours and one != "clgraft" else ""
            )
            print(f"  {one:>14}: {wall:8.1f} ms wall, {used:8.1f} ms of the processors{ratio}", flush=True)


if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.append(str(Path(__file__).resolve().parent.parent))
    main()
