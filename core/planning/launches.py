"""Kernel launches as implementations describe them: kernels with bound arguments, without buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

ARGUMENTS = 1000  # bytes of a launch's arguments: every device takes 1024
TENSOR = 16  # of these, what a `Buffer` or a `Workspace` takes: pointer and offset


@dataclass(frozen=True)
class Buffer:
    """Binds a buffer of the problem, or what follows so many bytes of it.

    It is two kernel parameters, base pointer and offset in elements.
    """

    name: str
    offset_bytes: int = 0


@dataclass(frozen=True)
class Workspace:
    """Binds a part of the workspace: base pointer and offset, in elements of `itemsize` bytes."""

    offset_bytes: int
    itemsize: int = 4


@dataclass(frozen=True)
class Statistics:
    """Binds what a layer leaves for the norm after it (see `Sums`): base pointer and offset in elements of 4 bytes."""


@dataclass(frozen=True)
class OfNorm:
    """Binds, for a layer, an argument or a scalar of the batch norm that takes what the layer leaves."""

    item: Buffer | Scalar


@dataclass(frozen=True)
class Constant:
    """Binds a value that never changes: a numpy scalar of at most 8 bytes."""

    value: Any


@dataclass(frozen=True)
class Scalar:
    """Binds a scalar of the problem, as `dtype` (float32 or float64)."""

    name: str
    dtype: str = "float32"


@dataclass(frozen=True)
class Accumulate:
    """Binds an int: 1 if the named output is to be added to, 0 if it is to be overwritten."""

    name: str


@dataclass(frozen=True)
class Local:
    """Binds local memory."""

    nbytes: int


@dataclass(frozen=True)
class Tickets:
    """Binds the context's counter, an int in device memory, as ``kernels/common/tickets.cl`` needs it."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes
    ----------
    writes : tuple of str
        The outputs that it helps to compute. A run that skips all of them leaves it out; empty: never left out.
    prepares : tuple of int
        Set if the launch only rearranges the buffers among its arguments for later launches: the bytes that it writes
        to each part of the workspace among its arguments, in their order. Nothing else writes there, so where the
        buffers never change, one run of it is enough.
    precision : str
        Of products, if it is less than the dtype's: ``tf32``.
    saved : int
        Operations of the direct method that it makes unnecessary (see `Launches.saving`).
    lane : int
        1: it runs on the second queue.
    after : int
        1 + the number of the launch of the other queue that it waits for, or 0.
    """

    kernel: Any
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    arguments: tuple[Any, ...]
    writes: tuple[str, ...] = ()
    prepares: tuple[int, ...] = ()
    precision: str = ""
    saved: int = 0
    lane: int = 0
    after: int = 0


@dataclass(frozen=True)
class Launches:
    """What an implementation plans for a problem: launches in order, and the workspace that they share.

    Attributes
    ----------
    prepared : Launches or None
        What is faster where the buffers of its launches that prepare (`Launch.prepares`) never change, so that these
        run once.
    """

    launches: tuple[Launch, ...]
    workspace_bytes: int = 0
    prepared: Launches | None = None

    @property
    def precision(self) -> str:
        """The precision of the products, if it is less than the dtype's: ``tf32``."""
        return next((launch.precision for launch in self.launches if launch.precision), "")

    @property
    def saved(self) -> int:
        """Operations of the direct method that these launches do without."""
        return sum(launch.saved for launch in self.launches)

    def saving(self, direct: int, needed: int) -> Launches:
        """Return the launches of a method that needs other operations than the direct one: its last launch says so.

        Parameters
        ----------
        direct : int
            Operations of the direct method.
        needed : int
            Those of this one; where they are more, nothing is saved.
        """
        *first, last = self.launches
        return replace(self, launches=(*first, replace(last, saved=max(direct - needed, 0))))

    def again(self) -> Launches:
        """Return the same launches of other kernels: those of a plan that runs the problem once more."""
        return replace(
            self,
            launches=tuple(replace(item, kernel=item.kernel.again()) for item in self.launches),
            prepared=self.prepared and self.prepared.again(),
        )


@dataclass(frozen=True)
class WantedSums:
    """What a batch norm wants to be left by the kernel that makes the rows it reads.

    Attributes
    ----------
    defines : dict
        Macros that let the kernel add up what it stores (``kernels/conv/gemm_gpu/store/sums.cl``).
    arguments : tuple
        The kernel's last arguments, `Statistics` among them.
    scalars : tuple of str
        Names of scalars among these.
    gradient : bool
        Whether the rows are the gradient of the norm's result, not the norm's input.
    """

    defines: Mapping[str, Any]
    arguments: tuple[Any, ...]
    scalars: tuple[str, ...] = ()
    gradient: bool = False


@dataclass(frozen=True)
class Sums:
    """A layer's launches, one of which leaves the sums that a batch norm over the rows of its result needs.

    Attributes
    ----------
    launches : Launches
        With `Statistics` among the arguments.
    tiles : int
        Parts of the rows that have sums (``kernels/batchnorm/tiles.cl``).
    channels : int
    """

    launches: Launches
    tiles: int
    channels: int

    @property
    def nbytes(self) -> int:
        """Bytes of the sums: three float32 for each channel of a tile, and one for the tile."""
        return self.tiles * (3 * self.channels + 1) * 4


def ints(*values: int) -> tuple[Constant, ...]:
    """Return constants for the int parameters of a kernel."""
    return tuple(Constant(np.int32(v)) for v in values)
