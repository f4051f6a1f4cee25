"""What a compiled graph needs and what its passes did, for people and for tests."""

from __future__ import annotations

from dataclasses import dataclass

from clgraft.core.planning.floor import Work

# passes that make problems part of others
FUSING = ("fold", "norms", "biases", "chains", "residuals", "epilogues", "separable", "gradients")


@dataclass(frozen=True)
class Report:
    """What a compiled graph needs.

    Attributes
    ----------
    nodes, nodes_before : int
        Problems after the passes, and before.
    launches : int
    arena_bytes : int
        Memory for all values and workspaces inside of the graph.
    value_bytes : int
        The sum of the sizes of all values that the graph computes, before the passes.
    argument_bytes : int
        Inputs, states and outputs: what a run moves where the arrays are not on the device.
    constant_bytes : int
        Constants, which stay on the device.
    algorithms : tuple of (str, str)
        Each problem's text and the implementation that serves it; ``view`` for a copy that the memory plan saves.
    work : tuple of Work
        What each problem that is no view has to compute and to move (see `clgraft.core.planning.floor`).
    passes : tuple of (str, int)
        For each pass that changed the graph how many problems it made part of others, or dropped.
    recomputed : int
        Values that are computed again instead of being kept, because memory was short.
    in_parts : int
        Problems that run in parts of the batch, each part counted.
    bytes_to_device, bytes_to_host : int
        What a run with host arrays moves over the bus; 0 on devices that use host memory in place.
    second_queue : int
        Launches on a second queue of the device.
    conversions : int
        Values that change between channels first and channels last, without weights.
    channels_last : int
        Problems whose layout the passes have changed to channels last.
    """

    nodes: int
    nodes_before: int
    launches: int
    arena_bytes: int
    value_bytes: int
    argument_bytes: int
    constant_bytes: int
    algorithms: tuple[tuple[str, str], ...]
    work: tuple[Work, ...] = ()
    passes: tuple[tuple[str, int], ...] = ()
    recomputed: int = 0
    in_parts: int = 0
    bytes_to_device: int = 0
    bytes_to_host: int = 0
    second_queue: int = 0
    conversions: int = 0
    channels_last: int = 0

    @property
    def fused(self) -> int:
        """Problems that became part of another one."""
        return sum(count for name, count in self.passes if name in FUSING)

    @property
    def views(self) -> int:
        """Copies that are saved because the memory plan puts both sides in one place."""
        return sum(algorithm == "view" for _, algorithm in self.algorithms)

    def __str__(self) -> str:
        last = f" around {self.channels_last} in channels last" if self.channels_last else ""
        queue = f", {self.second_queue} on a second queue" if self.second_queue else ""
        share = self.arena_bytes / self.value_bytes if self.value_bytes else 0.0
        return (
            f"{self.nodes} problems (before the passes: {self.nodes_before}; {self.fused} fused, {self.views} views,"
            f" {self.recomputed} recomputed, {self.in_parts} in parts, {self.conversions} conversions{last}),"
            f" {self.launches} launches{queue};"
            f" arena {_mebibytes(self.arena_bytes)}, {share:.2f} of all values ({_mebibytes(self.value_bytes)});"
            f" arguments {_mebibytes(self.argument_bytes)}, constants {_mebibytes(self.constant_bytes)};"
            f" a run moves {_mebibytes(self.bytes_to_device)} to the device and {_mebibytes(self.bytes_to_host)} back"
        )


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
