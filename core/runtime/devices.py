"""Finds OpenCL devices, describes what may be relied on, and picks one."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from clgraft.core import settings
from clgraft.core.errors import DeviceError, SelectorError, hint
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.runtime import toolchains

PYOPENCL_VARIABLE = settings.PYOPENCL_CTX.name
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # a folder for each, on Linux
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def _cl() -> Any:
    toolchains.prepare()
    import pyopencl

    return pyopencl


@cache
def _describe(device: Any) -> DeviceInfo:
    cl = _cl()
    is_cpu = bool(device.type & cl.device_type.CPU)
    is_gpu = bool(device.type & cl.device_type.GPU)
    extensions = set(device.extensions.split())
    return DeviceInfo(
        name=device.name.strip(),
        platform=device.platform.name.strip(),
        driver=device.driver_version.strip(),
        version=device.version.strip(),
        selector=_selector(device),
        is_cpu=is_cpu,
        is_gpu=is_gpu,
        compute_units=int(device.max_compute_units),
        local_memory=int(device.local_mem_size),
        global_memory=int(device.global_mem_size),
        max_work_group_size=int(device.max_work_group_size),
        has_fp64="cl_khr_fp64" in extensions or bool(getattr(device, "double_fp_config", 0)),
        has_fp16="cl_khr_fp16" in extensions,
        cache_bytes=max(int(device.global_mem_cache_size or 0), largest_cache() if is_cpu else 0),
        **toolchains.of(device).capabilities(),
    )


def largest_cache(folder: Path = CACHES) -> int:
    """Return the bytes of the largest cache that the operating system lists; 0 where it lists none.

    Some drivers report a smaller one than the last level's.
    """
    sizes = [0]
    for file in folder.glob("index*/size"):
        try:
            text = file.read_text(encoding="ascii").strip()
            sizes.append(int(text.rstrip("KMG")) * UNITS.get(text[-1:], 1))
        except (OSError, ValueError):
            continue
    return max(sizes)


def describe(device: Any) -> DeviceInfo:
    """Say what a device can do.

    Parameters
    ----------
    device : pyopencl.Device
    """
    return _describe(device)


def _selector(device: Any) -> str:
    for p, platform in enumerate(_cl().get_platforms()):
        for d, found in enumerate(_devices_of(platform)):
            if found == device:
                return f"{p}:{d}"
    return "?"


def _devices_of(platform: Any) -> list[Any]:
    try:
        return list(platform.get_devices())
    except Exception as error:  # one broken driver must not hide the others
        note = f"{platform.name}: {error}"
        if "DEVICE_NOT_FOUND" not in str(error) and note not in toolchains.problems():
            toolchains.problems().append(note)
        return []


def _all() -> list[Any]:
    try:
        platforms = _cl().get_platforms()
    except Exception as error:  # the loader's way to say that there is no platform
        note = f"the OpenCL loader: {error}"
        if note not in toolchains.problems():
            toolchains.problems().append(note)
        return []
    return [device for platform in platforms for device in _devices_of(platform)]


def available() -> list[DeviceInfo]:
    """Describe every device that was found, best first."""
    return [describe(device) for device in sorted(_all(), key=_rank)]


def unusable() -> list[str]:
    """Say which runtimes could not be used, and why (after a look at the devices)."""
    _all()
    return list(toolchains.problems())


def _rank(device: Any) -> tuple[int, int, str]:
    """Rank discrete GPUs, GPUs that share memory, CPUs and the rest, in a fixed order within each."""
    info = describe(device)
    kinds = (info.is_gpu and info.host_access == "staged", info.is_gpu, info.is_cpu, True)
    order = toolchains.serving(info.platform, info.version).CPU_RANK if info.is_cpu else -info.compute_units
    return kinds.index(True), order, info.selector


def _matches(info: DeviceInfo, word: str) -> bool:
    if word in ("cpu", "gpu"):
        return info.is_cpu if word == "cpu" else info.is_gpu
    if word == info.selector:
        return True
    return not word.replace(":", "").isdigit() and word in f"{info.platform} {info.name} {info.toolchain}".lower()


def select(selector: str | None = None) -> Any:
    """Pick a device.

    Parameters
    ----------
    selector : str, optional
        ``cpu``, ``gpu``, part of a platform's or a device's name, or ``platform:device`` numbers as ``clgraft devices``
        shows them. By default what ``CLGRAFT_DEVICE`` says, else ``PYOPENCL_CTX`` as pyopencl reads it (``0``, ``0:1``
        or parts of the platform's and the device's name), else the best device.

    Returns
    -------
    pyopencl.Device

    Raises
    ------
    SelectorError
        If what a selector or a variable names is not there; the text lists what there is, and the runtimes that could
        not be used.
    DeviceError
        If there is no device at all and none was named.
    """
    word = (selector or settings.DEVICE.text()).strip().lower()
    devices = sorted(_all(), key=_rank)
    answers = "" if word else os.environ.get(PYOPENCL_VARIABLE, "").strip()
    if answers:
        found = _as_pyopencl(answers)
        if found is None:
            word = f"{PYOPENCL_VARIABLE}={answers}"
            raise SelectorError(_what_there_is(word, devices))
        return found
    for device in devices:
        if not word or _matches(describe(device), word):
            return device
    raise (SelectorError if word else DeviceError)(_what_there_is(word, devices))


def _as_pyopencl(answers: str) -> Any | None:
    """Return the device that pyopencl's variable names; of several the first. None if it names none."""
    platform_word, _, device_word = answers.partition(":")
    if not _all():
        return None
    platforms = _cl().get_platforms()
    named = [item for item in platforms if platform_word.lower() in item.name.lower()]
    platform = _numbered(platforms, platform_word) or (named[-1] if named else None)  # pyopencl takes the last one
    if platform is None:
        return None
    devices = _devices_of(platform)
    device_word = device_word.split(",")[0]
    named = [item for item in devices if device_word.lower() in item.name.lower()]
    return _numbered(devices, device_word) or (named[0] if named else None)


def _numbered(items: list[Any], word: str) -> Any | None:
    return items[int(word)] if word.isdigit() and int(word) < len(items) else None


def _what_there_is(word: str, devices: list[Any]) -> str:
    found = [describe(device) for device in devices]
    kind = {"cpu": "CPU", "gpu": "GPU"}.get(word)
    if not word:
        first = "got no OpenCL device, expected at least one; `pip install clgraft[cpu]` brings one for x86 CPUs"
    elif kind:
        expected = "; expected one of those that were:" if found else ", nor any other OpenCL device"
        first = f"got {word!r}, but no {kind} was found{expected}"
    else:
        names = {part for info in found for part in f"{info.platform} {info.name} {info.toolchain}".lower().split()}
        near = hint(word, ["cpu", "gpu", *sorted(names)])
        first = f"got {word!r}, expected 'cpu', 'gpu', part of a name, or numbers{near}, of one of:"
    lines = [f"[device] {first}", *([f"  {info}" for info in found] or ["  (no device was found)"])]
    lines += [f"  not usable: {reason}" for reason in toolchains.problems()]
    if kind == "GPU":
        lines.append("  a GPU needs the OpenCL driver of its vendor: see `clgraft devices` and docs/install.md")
    return "\n".join(lines)
