"""PyTorch in the registry: a peer of the benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.plugins.plugin import Peer, Plugin


class TorchPlugin(Plugin):
    """PyTorch's CPU operators, which the core is measured against without an adapter."""

    name = "torch"

    def peers(self) -> Sequence[Peer]:
        variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        return [Peer("torch", "torch", "clgraft.plugins.torch.bench_operators", thread_variables=variables)]


PLUGIN = TorchPlugin()
