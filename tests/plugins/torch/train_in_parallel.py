"""One process of `test_distributed`: train a compiled net on its half of each batch, and save the weights."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

STEPS, BATCH = 3, 8


def build() -> nn.Module:
    """Return a net without statistics of batches, which processes would not share."""
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(8 * 4, 5),
    )


def train(net: nn.Module, model: nn.Module, first: int, end: int, dtype: torch.dtype = torch.float32) -> None:
    """Train on the images from `first` to `end` of each batch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        x = torch.randn(BATCH, 3, 8, 8, generator=torch.Generator().manual_seed(step)).to(dtype)
        labels = torch.arange(BATCH) % 5
        optimizer.zero_grad()
        functional.cross_entropy(model(x[first:end]), labels[first:end]).backward()
        optimizer.step()


def main() -> None:
    """Be the process of a rank."""
    rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    rendezvous = f"file://{folder / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=count)
    net = build()
    parallel = nn.parallel.DistributedDataParallel(net)
    model = torch.compile(parallel, backend="clgraft")
    share = BATCH // count
    train(net, model, rank * share, (rank + 1) * share)
    torch.save(net.state_dict(), folder / f"{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
