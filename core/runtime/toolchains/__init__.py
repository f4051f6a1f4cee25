"""Toolchains: all that is known of single drivers. Nothing outside of this folder names one.

A driver has a file here with a subclass of `base.Toolchain`, which is listed in `TOOLCHAINS`. To end support of a
driver or of a version, remove its file or folder and its place in the list.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from clgraft.core.runtime.toolchains import base
from clgraft.core.runtime.toolchains.amd import AMD
from clgraft.core.runtime.toolchains.base import DriverCache, Toolchain
from clgraft.core.runtime.toolchains.intel import Intel
from clgraft.core.runtime.toolchains.mesa import Mesa
from clgraft.core.runtime.toolchains.nvidia import NVIDIA
from clgraft.core.runtime.toolchains.pocl import PoCL
from clgraft.core.runtime.toolchains.pocl3 import PoCL3

# the first that serves a platform is taken; for all others `Toolchain` itself
TOOLCHAINS: tuple[type[Toolchain], ...] = (PoCL3, PoCL, Intel, NVIDIA, AMD, Mesa)

_prepared: list[bool] = []


def serving(platform: str, version: str) -> type[Toolchain]:
    """Return the toolchain of a platform with this name and version."""
    return next((each for each in TOOLCHAINS if each.serves(platform.lower(), version)), Toolchain)


def of(cl_device: Any) -> Toolchain:
    """Return a new toolchain for a pyopencl device."""
    platform = cl_device.platform
    return serving(platform.name, platform.version)(cl_device)


def prepare() -> None:
    """Make every driver findable; does its work once, before OpenCL is first used.

    A user's own ``OCL_ICD_VENDORS`` or ``OCL_ICD_FILENAMES`` is left as it is.
    """
    if _prepared:
        return
    _prepared.append(True)
    if not sys.platform.startswith("linux"):
        return
    for each in TOOLCHAINS:
        each.prepare()
    _pin_threads()
    if {"OCL_ICD_VENDORS", "OCL_ICD_FILENAMES"} & set(os.environ):
        return
    folder = next(filter(None, (each.vendors_folder() for each in TOOLCHAINS)), None)
    if folder:
        os.environ["OCL_ICD_VENDORS"] = str(folder)


def _pin_threads() -> None:
    """Have CPU runtimes keep each of their threads on a core of its own, unless the user or an affinity says otherwise.

    Threads that wake up from sleep otherwise share a core for milliseconds while another is idle, and kernels take
    twice their time.
    """
    if os.sched_getaffinity(0) == set(range(os.cpu_count() or 0)):
        for name, value in pinning().items():
            os.environ.setdefault(name, value)


def pinning() -> dict[str, str]:
    """Return the variables with which drivers keep each of their threads on a core of its own."""
    return {name: value for each in TOOLCHAINS for name, value in each.PINNING.items()}


def steering() -> Iterator[str]:
    """Return the names of the environment variables that change what drivers' compilers make of a source."""
    beginnings = tuple(word for each in TOOLCHAINS for word in each.STEERING)
    nothing = {name for each in TOOLCHAINS for name in each.STEERING_NOTHING}
    return (name for name in os.environ if name.startswith(beginnings) and name not in nothing)


def thread_variables() -> tuple[str, ...]:
    """Return the environment variables that hold a driver's number of threads."""
    return tuple(dict.fromkeys(name for each in TOOLCHAINS for name in each.THREADS))


def caches() -> tuple[DriverCache, ...]:
    """Return the caches that drivers keep themselves."""
    found = {each.CACHE.key: each.CACHE for each in TOOLCHAINS if each.CACHE}
    return tuple(found.values())


def problems() -> list[str]:
    """Return the list of drivers that could not be used, and why, to read and to add to."""
    return base.problems
