"""Products, their tiles, and what a form of the product says of a tile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clgraft.core.operators.conv.gemm_gpu.constants import operand_number
from clgraft.core.planning.precision import FLOAT32
from clgraft.core.problem import ceil_div

if TYPE_CHECKING:
    from clgraft.core.planning.device import DeviceInfo


@dataclass(frozen=True)
class ProductShape:
    """The size of `groups` products of matrices, (rows, depth) by (depth, columns).

    `channels` says how many of them a tap has in the depth; 0: the depth is pixels, of which with `vectors` four
    neighbours are read at once. `one_tap`: columns are pixels of the source, of which four neighbours are a vector.
    """

    rows: int
    columns: int
    depth: int
    groups: int
    channels: int = 0
    vectors: bool = False
    one_tap: bool = False

    @property
    def operations(self) -> int:
        """Multiply-adds, counted as two operations."""
        return 2 * self.rows * self.columns * self.depth * self.groups


class Form(ABC):
    """A way to compute products: a loader, a micro kernel and a store as one kernel, which is one implementation.

    Attributes
    ----------
    name : str
        Of the implementation.
    words : tuple of str
        Of a row of ``tiles.txt``; the first one is the micro kernel. Names of tiles hold them.
    file, kernel : str
        The kernel, and its file in ``kernels/conv/gemm_gpu``.
    needs : str
        What a device has to have.
    packs_tiles : bool
        Whether weights are packed as tiles of A lie in local memory.
    splits : bool
        Whether the depth can be split into parts.
    """

    name: str
    words: tuple[str, ...] = ()
    file: str
    kernel: str
    needs = "nothing"
    packs_tiles = False
    splits = True

    @abstractmethod
    def runs_on(self, device: DeviceInfo, operands: str) -> bool:
        """Return whether a device has the units for a type of operands, and has gains by them."""

    def defines(self, device: DeviceInfo) -> dict[str, int]:
        """Return the kernel's macros on a device."""
        return {}

    def serves(self, tile: Tile, product: ProductShape) -> bool:
        """Return whether a tile is meant for a product and computes it with the accuracy of its dtype."""
        return True

    @abstractmethod
    def local_bytes(self, tile: Tile) -> int:
        """Return the local memory of a work-group, with the padding and the taps of the loader that needs most."""

    def local_memory(self, device: DeviceInfo) -> int:
        """Return the local memory that a work-group can have on a device."""
        return device.local_memory

    def parts_of_element(self, operands: str) -> int:
        """Return how many numbers an element of the weights becomes when they are packed."""
        return 1

    def unhidden(self, busy: int) -> float:
        """Return how often the time before and after a tile's products counts, next to `busy` work-groups' products."""
        return 1 + 1 / busy


@dataclass(frozen=True)
class Tile:
    """A row of ``tiles.txt``; the names are its columns'.

    `operands` is the type of what the micro kernel multiplies: ``float32``, or ``tf32``, to which it is rounded.
    """

    device_class: str
    bytes: int
    m: int
    n: int
    k: int
    item_m: int
    item_n: int
    patch_m: int
    patch_n: int
    busy_whole: int
    busy_mixed: int
    busy_pixels: int
    busy_vectors: int
    whole: float
    mixed: float
    pixels: float
    vectors: float
    form: Form
    operands: str = FLOAT32
    options: tuple[str, ...] = ()
    fixed_group: bool = True

    @property
    def name(self) -> str:
        """The tile as a setting: rows, columns and depth, and the words of its form and its operands."""
        rounded = () if self.operands == FLOAT32 else (self.operands,)
        return "-".join((f"{self.m}x{self.n}x{self.k}", *self.form.words[:1], *rounded, *self.form.words[1:]))

    @property
    def threads(self) -> int:
        """Work-items of a work-group."""
        return self.m // self.item_m * (self.n // self.item_n)

    @property
    def local_bytes(self) -> int:
        """Local memory of a work-group."""
        return self.form.local_bytes(self)

    @property
    def parts_of_element(self) -> int:
        """Numbers that an element of the weights becomes when they are packed."""
        return self.form.parts_of_element(self.operands)

    @property
    def precision(self) -> str:
        """The precision of the products, if it is less than the dtype's."""
        return "" if self.operands == FLOAT32 else self.operands

    def load(self, product: ProductShape) -> tuple[int, float]:
        """Return the work-groups that keep a unit busy, and its speed then, with the loader that a product needs."""
        if not product.channels:
            return (self.busy_vectors, self.vectors) if product.vectors else (self.busy_pixels, self.pixels)
        if product.channels % self.k:
            return self.busy_mixed, self.mixed
        return self.busy_whole, self.whole

    def serves(self, product: ProductShape) -> bool:
        """Return whether the tile is meant for a product and computes it with the accuracy of its dtype."""
        return self.form.serves(self, product)

    def counts(self, product: ProductShape) -> tuple[int, int]:
        """Return a product's number of tiles, and how many of the tile's depths its depth has."""
        tiles = ceil_div(product.rows, self.m) * ceil_div(product.columns, self.n)
        return tiles * product.groups, ceil_div(product.depth, self.k)

    def defines(self) -> dict[str, Any]:
        """Return the kernel's macros."""
        return {
            "VL": 4,
            "TILE_M": self.m,
            "TILE_N": self.n,
            "TILE_K": self.k,
            "ITEM_M": self.item_m,
            "ITEM_N": self.item_n,
            "PATCH_M": self.patch_m,
            "PATCH_N": self.patch_n,
            "FIXED_GROUP": int(self.fixed_group),
            "OPERANDS": operand_number(self.operands),
        }
