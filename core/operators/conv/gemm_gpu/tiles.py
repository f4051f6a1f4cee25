"""Tiles of the product: rows of text for each class of devices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clgraft.core.operators.conv.gemm_gpu.forms import FORMS
from clgraft.core.operators.conv.gemm_gpu.tile import Tile
from clgraft.core.planning.precision import FLOAT32, TF32, precision

if TYPE_CHECKING:
    from clgraft.core.planning.device import DeviceInfo

ROWS = Path(__file__).with_name("tiles.txt")
BUSY = ("busy_whole", "busy_mixed", "busy_pixels", "busy_vectors")
NUMBERS = ("bytes", "m", "n", "k", "item_m", "item_n", "patch_m", "patch_n", *BUSY)
SPEEDS = ("whole", "mixed", "pixels", "vectors")
FREE = "free"  # leaves the work-group's size open


@cache
def rows(device_class: str, size: int) -> tuple[Tile, ...]:
    """Read the rows of a class of devices for an element size in bytes; without any, those of the class ``gpu``."""
    found: dict[str, list[Tile]] = {}
    for line in ROWS.read_text().splitlines():
        words = line.split("#")[0].split()
        if words and int(words[1]) == size:
            found.setdefault(words[0], []).append(_tile(words))
    return tuple(found.get(device_class) or found["gpu"])


def _tile(words: list[str]) -> Tile:
    """Return the tile of a row."""
    first, last = 1 + len(NUMBERS), 1 + len(NUMBERS) + len(SPEEDS)
    numbers: dict[str, Any] = dict(zip(NUMBERS, map(int, words[1:first])))
    speeds: dict[str, Any] = dict(zip(SPEEDS, map(float, words[first:last])))
    options = tuple(word for word in words[last:] if word.startswith("-"))
    form_words = tuple(word for word in words[last:] if word not in (*options, FREE))
    form = next(form for form in FORMS if form.words == form_words)
    name, _, operands = words[0].partition(":")
    return Tile(
        name,
        **numbers,
        **speeds,
        form=form,
        operands=operands or FLOAT32,
        options=options,
        fixed_group=FREE not in words[last:],
    )


def candidates(device: DeviceInfo, size: int) -> Iterator[Tile]:
    """Return the tiles that a device can run."""
    listed = rows(device.device_class, size)
    if precision() == TF32:
        further = rows(f"{device.device_class}:{TF32}", size)
        listed += tuple(tile for tile in further if tile.operands == TF32)
    for tile in listed:
        fits = tile.threads <= device.max_work_group_size and tile.local_bytes <= tile.form.local_memory(device)
        if fits and tile.form.runs_on(device, tile.operands):
            yield tile
