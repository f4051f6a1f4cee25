"""What a device is called in rows of text, and what a result in the user's database depends on."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from clgraft.core.planning.precision import precision
from clgraft.core.runtime import program_cache

if TYPE_CHECKING:
    from clgraft.core.planning.device import DeviceInfo

PACKAGE = Path(__file__).resolve().parents[2]
# lanes of float32 in a CPU's widest register -> the instructions that have them
INSTRUCTIONS = {16: "avx512", 8: "avx2"}


def device_words(device: DeviceInfo) -> tuple[str, ...]:
    """Return the words that a row's device pattern may hold, the class first: ``cpu avx512 DRIVER units2``."""
    words = ["cpu" if device.is_cpu else "gpu"]
    if device.is_cpu:
        words += [INSTRUCTIONS.get(device.vector_width, f"vector{device.vector_width}")]
        words += [device.toolchain]
    else:
        words += [device.device_class]
    words += [f"units{device.compute_units}", *re.findall(r"[a-z0-9]+", device.name.lower())]
    return tuple(dict.fromkeys(words))


def device_class(device: DeviceInfo) -> str:
    """Return the pattern under which results of a device are shipped, such as ``cpu avx512 DRIVER``."""
    return " ".join(device_words(device)[: 3 if device.is_cpu else 2])


def sources() -> list[Path]:
    """Return the files that give a result its meaning: every kernel, and every module and row of the core."""
    kinds = {"core": (".py", ".c", ".h", ".txt", ".cl"), "kernels": (".cl",)}
    return sorted(
        path for folder, suffixes in kinds.items() for path in (PACKAGE / folder).rglob("*") if path.suffix in suffixes
    )


@cache
def source_digest() -> str:
    """Return a digest of `sources`."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


def device_key(device: DeviceInfo) -> str:
    """Return the text that has to be equal for a result to count: device, driver, what steers it, sources, version."""
    return json.dumps(
        {
            "clgraft": program_cache.VERSION,
            "sources": source_digest(),
            "platform": device.platform,
            "device": device.name,
            "driver": [device.driver, device.version],
            "units": device.compute_units,
            "lanes": device.vector_width,
            "environment": program_cache.steering(),
            "precision": precision(),
        },
        sort_keys=True,
    )
