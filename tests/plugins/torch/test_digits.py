"""A net that trains on scikit-learn's handwritten digits reaches the accuracy of eager PyTorch."""

import copy

import pytest

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("sklearn.datasets")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

EPOCHS, BATCH, TRAINED = 4, 64, 1344  # of 1797 images


def accuracy(model, images, labels):
    """Return the share of images whose class is found."""
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def test_a_net_learns_digits(caplog):
    caplog.set_level("WARNING")
    torch._dynamo.reset()
    torch.manual_seed(7)
    bunch = datasets.load_digits()
    order = torch.randperm(len(bunch.target))
    images = torch.from_numpy(bunch.images).float()[order, None] / 16
    labels = torch.from_numpy(bunch.target)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.Conv2d(16, 32, 1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(512, 10),
    )
    eager = copy.deepcopy(net)
    found = []
    for one, model in ((net, torch.compile(net, backend="clgraft", dynamic=False)), (eager, eager)):
        torch.manual_seed(9)
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        one.train()
        for _ in range(EPOCHS):
            for batch in torch.randperm(TRAINED).split(BATCH):
                optimizer.zero_grad()
                functional.cross_entropy(model(images[batch]), labels[batch]).backward()
                optimizer.step()
        one.eval()
        found.append(accuracy(model, images[TRAINED:], labels[TRAINED:]))
    ours, theirs = found
    assert ours > 0.95 and abs(ours - theirs) < 0.015, found
