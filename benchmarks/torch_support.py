"""Which parts of torchvision's nets run on the device, and how far their results are from float64.

    python benchmarks/torch_support.py resnet18 vit_b_16 --device pocl

Prints a row of Markdown for each net: regions (forward and backward) and operators that were compiled for the device
and have run there, operators that stay PyTorch's, breaks of Dynamo's graph, and the errors of the output and of the
worst parameter's gradient, ours and those of eager PyTorch in float32. An error is the norm of the difference from
eager PyTorch in float64, relative to the norm of the value (at least a thousandth of the largest gradient's).
Rectifiers and maxima, whose gradients jump where rounding moves a value, are replaced by SiLU and averages, both as
modules and as functions, and nothing is dropped.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from progress import announced

sys.path.append(str(Path(__file__).resolve().parent.parent))

NETS = (
    *("alexnet", "resnet18", "resnet50", "vgg16", "densenet161", "googlenet", "squeezenet1_0", "inception_v3"),
    *("shufflenet_v2_x1_0", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "resnext50_32x4d"),
    *("wide_resnet50_2", "mnasnet1_0", "efficientnet_b0", "efficientnet_b4", "regnet_y_400mf", "convnext_tiny"),
    *("vit_b_16", "unet"),
)
SIZES = {"inception_v3": 299}  # pixels; others have 64, of which its last batch norms would see a single one
HEADER = """| net | regions | on the device | PyTorch's | breaks | error of the output, ours / eager | worst gradient |
|---|---|---|---|---|---|---|"""


def errors(net: Any, exact: Any, y: Any, expected: Any) -> tuple[float, float]:
    """Return the error of the output and of the worst gradient."""

    def relative(got: Any, want: Any, least: float = 0.0) -> float:
        return float((got.detach().double() - want.detach()).norm() / max(float(want.detach().norm()), least))

    pairs = [(p.grad, q.grad) for p, q in zip(net.parameters(), exact.parameters()) if q.grad is not None]
    least = 1e-3 * max(float(q.norm()) for _, q in pairs)
    return relative(y, expected), max(relative(p, q, least) for p, q in pairs)


def row(name: str, device: str | None) -> str:
    """Return the row of a net."""
    from clgraft import core
    from clgraft.plugins.torch.backend import compiler
    from clgraft.plugins.torch.explanation import Explanation
    from tests.plugins.onnx.torch_nets import build
    from tests.plugins.torch.smooth import smooth, smooth_functions

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    net = smooth(build(name).train())
    eager, exact, found = copy.deepcopy(net), copy.deepcopy(net).double(), Explanation()
    size = SIZES.get(name, 64)
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(2))
    results = []
    with smooth_functions():
        for one in (torch.compile(net, backend=compiler(core.context(device), found)), eager, exact):
            y = one(x.double() if one is exact else x)
            y.square().mean().backward()
            results.append(y)
    ours, theirs = errors(net, exact, results[0], results[2]), errors(eager, exact, results[1], results[2])
    kept = ", ".join(sorted({f"{key.split('.')[1]} ({why})" if "." in key else why for key, why in found.kept.items()}))
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    cells = (name, found.regions, len(found.lowered), kept or "none", breaks)
    return f"| {' | '.join(map(str, cells))} | {ours[0]:.1e} / {theirs[0]:.1e} | {ours[1]:.1e} / {theirs[1]:.1e} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=NETS)
    parser.add_argument("--device", help="as CLGRAFT_DEVICE; by default what that holds")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.device:
        os.environ["CLGRAFT_DEVICE"] = options.device
    print(HEADER, flush=True)
    for name in announced(options.nets):
        print(row(name, options.device), flush=True)


if __name__ == "__main__":
    main()
