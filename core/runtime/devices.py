"""Finds OpenCL devices, describes what may be relied on, and picks one."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from clgraft.core import settings
from clgraft.core.errors import DeviceError
from clgraft.core.planning.device import POCL, DeviceInfo
from clgraft.core.runtime import drivers as runtimes

# what a device's vendor calls itself -> device class of a GPU
GPU_CLASSES = (("nvidia", "nvidia"), ("advanced micro", "amd"), ("amd", "amd"), ("intel", "intel-gpu"), ("arm", "mali"))
# among CPU drivers first the one whose calls cost less: whole nets are faster there, although large products are not
CPU_ORDER = ("intel", POCL)
# what Intel's CPU runtime is told to compile for -> lanes of float32, where that is not AVX-512
INTEL_TARGET = "CL_CONFIG_CPU_TARGET_ARCH"
PYOPENCL_VARIABLE = "PYOPENCL_CTX"
INTEL_TARGETS = {"core-avx2": 8, "corei7-avx": 8, "corei7": 4}


def _cl() -> Any:
    runtimes.prepare()
    import pyopencl

    return pyopencl


@cache
def _cpu_flags() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    return frozenset(line.split(":", 1)[1].split())
    except OSError:
        pass
    return frozenset()


def _vector_width(device: Any, is_cpu: bool) -> int:
    native = int(device.native_vector_width_float or 1)
    if not is_cpu:
        return native
    flags = _cpu_flags()
    if not flags & {"avx512f", "avx"}:
        return max(4, min(16, native))
    widest = 16 if "avx512f" in flags else 8
    # a compiler may have been told to leave the widest registers alone; Intel's does not say so of its device
    if POCL in device.platform.name.lower():
        return max(4, min(widest, native))
    return min(widest, INTEL_TARGETS.get(os.environ.get(INTEL_TARGET, ""), widest))


def _host_access(device: Any, is_cpu: bool) -> str:
    fine_grain_system = 1 << 2
    try:
        shared = int(device.svm_capabilities) & fine_grain_system
    except Exception:  # a driver before OpenCL 2 does not know the question
        shared = 0
    # PoCL's kernels run in the caller's address space, although it does not offer this by name
    if shared or (is_cpu and POCL in device.platform.name.lower()):
        return "raw_pointer"
    return "use_host_ptr" if device.host_unified_memory else "staged"


def _compute_capability(device: Any, extensions: set[str]) -> int:
    if "cl_nv_device_attribute_query" not in extensions:
        return 0
    return 10 * int(device.compute_capability_major_nv) + int(device.compute_capability_minor_nv)


@cache
def _describe(device: Any) -> DeviceInfo:
    cl = _cl()
    is_cpu = bool(device.type & cl.device_type.CPU)
    is_gpu = bool(device.type & cl.device_type.GPU)
    vendor = f"{device.vendor} {device.platform.vendor}".lower()
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
        vector_width=_vector_width(device, is_cpu),
        local_memory=int(device.local_mem_size),
        global_memory=int(device.global_mem_size),
        max_work_group_size=int(device.max_work_group_size),
        has_fp64="cl_khr_fp64" in extensions or bool(getattr(device, "double_fp_config", 0)),
        has_fp16="cl_khr_fp16" in extensions,
        host_access=_host_access(device, is_cpu),
        device_class="cpu" if is_cpu else next((name for word, name in GPU_CLASSES if word in vendor), "gpu"),
        cache_bytes=int(device.global_mem_cache_size or 0),
        compute_capability=_compute_capability(device, extensions),
    )


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
        if "DEVICE_NOT_FOUND" not in str(error) and note not in runtimes.problems:
            runtimes.problems.append(note)
        return []


def _all() -> list[Any]:
    try:
        platforms = _cl().get_platforms()
    except Exception as error:  # the loader's way to say that there is no platform
        note = f"the OpenCL loader: {error}"
        if note not in runtimes.problems:
            runtimes.problems.append(note)
        return []
    return [device for platform in platforms for device in _devices_of(platform)]


def available() -> list[DeviceInfo]:
    """Describe every device that was found, best first."""
    return [describe(device) for device in sorted(_all(), key=_rank)]


def unusable() -> list[str]:
    """Say which runtimes could not be used, and why (after a look at the devices)."""
    _all()
    return list(runtimes.problems)


def _rank(device: Any) -> tuple[int, int, str]:
    """Rank discrete GPUs, GPUs that share memory, CPUs and the rest, in a fixed order within each."""
    info = describe(device)
    kinds = (info.is_gpu and info.host_access == "staged", info.is_gpu, info.is_cpu, True)
    platform = info.platform.lower()
    order = next((i for i, word in enumerate(CPU_ORDER) if word in platform), len(CPU_ORDER))
    return kinds.index(True), order if info.is_cpu else -info.compute_units, info.selector


def _matches(info: DeviceInfo, word: str) -> bool:
    if word in ("cpu", "gpu"):
        return info.is_cpu if word == "cpu" else info.is_gpu
    if word == info.selector:
        return True
    aliases = "pocl" if POCL in info.platform.lower() else ""
    return not word.replace(":", "").isdigit() and word in f"{info.platform} {info.name} {aliases}".lower()


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
    DeviceError
        If nothing fits; the text lists what there is, and the runtimes that could not be used.
    """
    word = (selector or settings.DEVICE.text()).strip().lower()
    devices = sorted(_all(), key=_rank)
    answers = "" if word else os.environ.get(PYOPENCL_VARIABLE, "").strip()
    if answers:
        found = _as_pyopencl(answers)
        if found is None:
            word = f"{PYOPENCL_VARIABLE}={answers}"
            raise DeviceError(_what_there_is(word, devices))
        return found
    for device in devices:
        if not word or _matches(describe(device), word):
            return device
    raise DeviceError(_what_there_is(word, devices))


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
    lines = [f"[device] got {word!r}, expected 'cpu', 'gpu', part of a name, or numbers, of one of:"]
    if not word:
        lines = [
            "[device] got no OpenCL device, expected at least one; `pip install clgraft[cpu]` brings one for x86 CPUs"
        ]
    lines += [f"  {describe(device)}" for device in devices] or ["  (no device was found)"]
    lines += [f"  not usable: {reason}" for reason in runtimes.problems]
    return "\n".join(lines)
