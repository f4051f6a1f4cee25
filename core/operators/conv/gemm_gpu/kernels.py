"""The kernels of products: in each form, what packs weights, and what adds sums of parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clgraft.core.operators.conv.arguments import GRID, PHASE_GRID, TAPS, TARGET
from clgraft.core.operators.conv.gemm_gpu.tile import Tile
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.implementation import Planner

FOLDER = "conv/gemm_gpu"
STRUCTS = {**GRID.defines(), **TARGET.defines(), **TAPS.defines(), **PHASE_GRID.defines()}


def product_kernel(planner: Planner, defines: Mapping[str, Any], tile: Tile, dtype: str) -> Any:
    """Return the kernel of a tile's form, with the tile's options on the devices that they were meant for."""
    form, device = tile.form, planner.device
    options = tile.options if device.device_class == tile.device_class else ()
    macros = {**_common(device), **tile.defines(), **defines, **form.defines(device)}
    return planner.kernel(f"{FOLDER}/{form.file}", form.kernel, macros, dtype, options)


def pack_kernel(planner: Planner, tile: Tile, tap_major: bool, dtype: str) -> Any:
    """Return the kernel that packs weights for a tile's form."""
    defines = {name: value for name, value in tile.defines().items() if name in ("TILE_M", "TILE_K")}
    if tile.form.packs_tiles:
        defines = {**tile.defines(), **tile.form.defines(planner.device), "IMAGES": 1}
    defines["TAP_MAJOR"] = int(tap_major)
    return planner.kernel(f"{FOLDER}/pack.cl", "conv_pack_weights", {**_common(planner.device), **defines}, dtype)


def sum_kernel(planner: Planner, target: int, epilogue: Mapping[str, Any], dtype: str) -> Any:
    """Return the kernel that adds the sums of parts."""
    defines = {**_common(planner.device), "TARGET": target, **epilogue}
    return planner.kernel(f"{FOLDER}/sum.cl", "conv_sum", defines, dtype)


def _common(device: DeviceInfo) -> dict[str, Any]:
    return {**STRUCTS, "VL": 4, "SCALAR_ITEMS": int(device.vectorizes_items)}
