"""PyTorch in the registry: a peer of the benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.plugins.plugin import Peer, Plugin


class TorchPlugin(Plugin):
    """PyTorch's CPU operators, which the core is measured against without an adapter."""

    name = "torch"

    def peers(self) -> Sequence[Peer]:
        return [
            Peer(
                "torch",
                "torch",
                "clgraft.plugins.torch.bench_operators",
                ("alexnet", "resnet18", "resnet50", "vgg16", "mobilenet", "mobilenetv2"),
                "clgraft.plugins.torch.bench_nets",
                "torchvision",
                thread_variables=("OMP_NUM_THREADS", "MKL_NUM_THREADS"),
            )
        ]


PLUGIN = TorchPlugin()
