"""What kernels make of constants before they compute, such as packed weights, is made once and kept.

Implementations mark the launches that only rearrange their inputs (`Launch.prepares`). Where those inputs are
constants, such a launch leaves the graph's plan: it runs once, into memory that stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clgraft.core.errors import ExecutionError
from clgraft.core.graph.structure import Node
from clgraft.core.planning.launches import Buffer, Launch, Launches, Scalar, Workspace
from clgraft.core.planning.workspace import ALIGN
from clgraft.core.problem import Argument, round_up
from clgraft.core.runtime.arrays import in_one_block
from clgraft.core.runtime.plan import Plan

ITEM = np.dtype(np.float32).itemsize  # kept memory is made of these, whatever it holds


@dataclass(frozen=True)
class Kept:
    """Binds memory that was prepared, by its name among the arguments of a graph's plan."""

    name: str


@dataclass(frozen=True)
class Preparation:
    """Launches that run once, in the form in which a plan asks a problem for its arguments.

    Attributes
    ----------
    launches : tuple of Launch
        Their buffers are named as the graph's values and the kept memory.
    sizes : dict of str to int
        Bytes of what is kept, by name.
    """

    launches: tuple[Launch, ...]
    sizes: Mapping[str, int]
    inputs: tuple[Argument, ...]
    kind: str = "graph"

    def kept(self, role: str) -> tuple[Argument, ...]:
        """Return what is kept as arguments in a role."""
        return tuple(Argument(name, role, (nbytes // ITEM,), "float32") for name, nbytes in self.sizes.items())

    def arguments(self) -> tuple[Argument, ...]:
        """Return the constants that are read, and what is kept."""
        return (*self.inputs, *self.kept("out"))

    def scalars(self) -> tuple[str, ...]:
        """Return no names: constants follow from no scalar."""
        return ()

    def __str__(self) -> str:
        return f"graph of {len(self.launches)} launches that prepare constants"


def take_out(
    number: int, node: Node, planned: Launches, constants: Collection[str]
) -> tuple[Launches, tuple[Launch, ...], dict[str, int]]:
    """Take the launches out of a node's plan that prepare constants.

    Parameters
    ----------
    number : int
        The node's place in the graph, which becomes a part of the names.
    node : Node
    planned : Launches
    constants : collection of str
        The graph's values that never change.

    Returns
    -------
    rest : Launches
        With a smaller workspace, and `Kept` where a launch reads what was prepared.
    taken : tuple of Launch
        The launches that run once. Their buffers are named as the graph's values and the kept memory.
    sizes : dict of str to int
        Bytes of what is kept, by name.
    """
    other = planned.prepared
    if other and all(_follows(launch, node, constants) for launch in other.launches if launch.prepares):
        planned = other
    taken: list[Launch] = []
    sizes: dict[str, int] = {}
    places: dict[int, tuple[str, int]] = {}  # offset in the workspace -> name of what is kept, bytes that go
    for launch in planned.launches:
        if not _follows(launch, node, constants):
            continue
        parts = [item for item in launch.arguments if isinstance(item, Workspace)]
        for part, nbytes in zip(parts, launch.prepares):
            name = f"kept{number}.{len(places)}"
            places[part.offset_bytes] = name, round_up(nbytes, ALIGN)
            sizes[name] = round_up(nbytes, ALIGN)
        taken.append(launch)
    if not taken:
        return planned, (), {}

    def elsewhere(item: Any) -> Any:
        if not isinstance(item, Workspace):
            return item
        if item.offset_bytes in places:
            return Kept(places[item.offset_bytes][0])
        return replace(item, offset_bytes=item.offset_bytes - _before(places, item.offset_bytes))

    def named(item: Any) -> Any:
        item = elsewhere(item)
        return Buffer(node.named(item.name) if isinstance(item, Buffer) else item.name) if _is_memory(item) else item

    rest = [
        replace(launch, arguments=tuple(map(elsewhere, launch.arguments)))
        for launch in planned.launches
        if not any(launch is one for one in taken)
    ]
    bound = [replace(launch, arguments=tuple(map(named, launch.arguments)), writes=()) for launch in taken]
    nbytes = planned.workspace_bytes - _before(places, planned.workspace_bytes)
    if any(isinstance(item, Workspace) for launch in rest for item in launch.arguments):
        nbytes = max(nbytes, ALIGN)
    return Launches(tuple(rest), nbytes), tuple(bound), sizes


def _follows(launch: Launch, node: Node, constants: Collection[str]) -> bool:
    """Return whether a launch prepares constants alone."""
    if not launch.prepares or any(isinstance(item, Scalar) for item in launch.arguments):
        return False
    return all(node.named(item.name) in constants for item in launch.arguments if isinstance(item, Buffer))


def _is_memory(item: Any) -> bool:
    return isinstance(item, (Buffer, Kept))


def _before(places: Mapping[int, tuple[str, int]], offset: int) -> int:
    """Return how many bytes in front of an offset went out of the workspace."""
    return sum(nbytes for begin, (_, nbytes) in places.items() if begin < offset)


def prepare(context: Any, preparation: Preparation, constants: Mapping[str, Any]) -> dict[str, Any]:
    """Run the launches once and return what is kept, by name.

    Parameters
    ----------
    context : Context
    preparation : Preparation
    constants : mapping of str to array
        On the device, where it has memory of its own.
    """
    if not preparation.launches:
        return {}
    handle = context.hand_over(preparation, Launches(preparation.launches), preparation.kind)
    made = _memory(context, preparation.sizes)
    Plan(context, preparation, preparation.kind, (), handle).run_on({**constants, **made})
    return made


def _memory(context: Any, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return float32 memory of a device by name, on CPU devices parts of one block, aligned as a workspace is.

    Raises
    ------
    ExecutionError
        With the status CLG_OUT_OF_MEMORY if the device has no room.
    """
    if context.device.host_access == "staged":
        return {name: _on_device(context, nbytes) for name, nbytes in sizes.items()}
    return {name: part.view(np.float32) for name, part in in_one_block(sizes, ALIGN).items()}


def _on_device(context: Any, nbytes: int) -> Any:
    import pyopencl as cl
    import pyopencl.array as device_array

    try:
        return device_array.empty(context.queue, (nbytes // ITEM,), np.float32)
    except cl.MemoryError as error:
        raise ExecutionError(
            f"[graph] got no memory for {nbytes} bytes of prepared weights ({error})", context.lib.CLG_OUT_OF_MEMORY
        ) from None


def reads(launches: Sequence[Launch]) -> set[str]:
    """Return the names of all buffers that launches bind."""
    return {item.name for launch in launches for item in launch.arguments if isinstance(item, Buffer)}
