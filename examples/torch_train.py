"""Train a small net in PyTorch, by itself and compiled with clgraft, and compare the two.

`python examples/torch_train.py [--steps 60] [--device gpu]`. The images are bars in four directions. It prints the
losses side by side and what runs on the device, and fails if the losses differ by more than rounding, or nothing is
learnt.
"""

from __future__ import annotations

import argparse
import copy
import sys

import torch
from torch import nn

from clgraft.plugins.torch import explain

BATCH, SIZE, DIRECTIONS = 32, 16, 4
STEPS_BETWEEN_LINES = 10


def bars(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy images of bars, and their directions: across, down and both diagonals."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(DIRECTIONS, (count,), generator=generator)
    images = 0.3 * torch.randn(count, 1, SIZE, SIZE, generator=generator)
    places = torch.randint(4, SIZE - 4, (count,), generator=generator)
    along = torch.arange(SIZE)
    for image, label, place in zip(images, labels, places.tolist()):
        rows = (torch.full((SIZE,), place), along, (along + place) % SIZE, (place - along) % SIZE)[label]
        columns = torch.full((SIZE,), place) if label == 1 else along
        image[0, rows, columns] += 1.5
    return images, labels


def net() -> nn.Module:
    """Return an untrained net."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (SIZE // 4) ** 2, DIRECTIONS),
    )


def train(model: nn.Module, steps: int) -> list[float]:
    """Train a model and return the loss of every step."""
    images, labels = bars(BATCH * steps, seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for batch, expected in zip(images.split(BATCH), labels.split(BATCH)):
        loss = nn.functional.cross_entropy(model(batch), expected)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> int:
    """Train both and say whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", help="as CLGRAFT_DEVICE; by default what that holds, else the best device")
    options = parser.parse_args()

    original = net()
    twin = copy.deepcopy(original)  # the same first weights
    swapped = torch.compile(twin, backend="clgraft", options={"device": options.device} if options.device else None)

    losses = {"PyTorch": train(original, options.steps), "clgraft": train(swapped, options.steps)}
    print("step   PyTorch   clgraft")
    for step in range(0, options.steps, STEPS_BETWEEN_LINES):
        print(f"{step:4}  {losses['PyTorch'][step]:8.5f}  {losses['clgraft'][step]:8.5f}")

    images, labels = bars(256, seed=2)
    original.eval()
    swapped.eval()
    with torch.no_grad():
        accuracy = {
            name: (model(images).argmax(1) == labels).float().mean().item()
            for name, model in (("PyTorch", original), ("clgraft", swapped))
        }
    print(f"accuracy: PyTorch {accuracy['PyTorch']:.1%}, clgraft {accuracy['clgraft']:.1%}")
    print(explain(twin, images, device=options.device))

    # rounding grows while a net learns: the first steps show whether the gradients agree
    pairs = list(zip(losses["PyTorch"], losses["clgraft"]))[:STEPS_BETWEEN_LINES]
    apart = max(abs(a - b) / max(abs(a), 1e-3) for a, b in pairs)
    learnt = min(accuracy.values()) > 0.9
    verdict = "they agree" if apart < 1e-3 else "they do not agree"
    print(f"largest difference of the first losses {apart:.1e}: {verdict}")
    if not learnt:
        print("learnt too little: more --steps are needed")
    return 0 if apart < 1e-3 and learnt else 1


if __name__ == "__main__":
    sys.exit(main())
