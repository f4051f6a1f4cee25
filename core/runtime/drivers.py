"""Makes OpenCL drivers findable before the loader first looks: installed ones, and Intel's CPU runtime from pip.

The runtime from pip registers itself nowhere a loader looks, and its libraries do not find each other. So they are
loaded here by name, and a folder of the user's cache lists it together with the installed drivers.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import itertools
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from clgraft.core import settings
from clgraft.core.log import warn_once

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
INTEL_PACKAGE = "intel-opencl-rt"
INTEL_DRIVER = "libintelocl.so"
# in the order in which they need each other
INTEL_NEEDS = ("libintlc.so.5", "libirng.so", "libimf.so", "libsvml.so", "libtbb.so.12")

# what PoCL and Intel's runtime read when they start their threads
PINNING = {"POCL_AFFINITY": "1", "DPCPP_CPU_CU_AFFINITY": "spread", "DPCPP_CPU_PLACES": "threads"}

POCL_ROOM = 4 * 2**20  # bytes without which a folder is not given to PoCL
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

problems: list[str] = []  # runtimes that could not be used, and why
_prepared: list[bool] = []
_pocl_forgets: list[bool] = []  # its cache lies in a folder that goes when the process ends


def cache_folder(*below: str) -> Path | None:
    """Return the user's clgraft cache folder, or the one below it, made on first use; None if there is none.

    ``CLGRAFT_CACHE`` names it (``off``: no cache), else ``XDG_CACHE_HOME`` or ``~/.cache`` holds it. A folder that
    cannot be made or that others may change is not used; a warning says why and what to do, once.
    """
    chosen = settings.CACHE.text()
    if chosen == "off":
        return None
    folder = Path(chosen) if chosen else _home_cache() / "clgraft"
    places = itertools.accumulate(below, Path.joinpath, initial=folder)
    return folder.joinpath(*below) if all(made_private(place) for place in places) else None


def made_private(folder: Path) -> bool:
    """Return whether a folder of the cache can be used, and make it where it is missing; if not, say why, once."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = refusal(folder) or exposure(folder)
    except OSError as error:
        reason = f"it cannot be made ({error.strerror}): set CLGRAFT_CACHE to a folder that can"
    if reason:
        warn_once(f"[cache] {folder} is not used, so kernels are compiled anew in every process: {reason}")
    return not reason


def has_room(folder: Path, nbytes: int = 4096) -> bool:
    """Return whether a file of so many bytes can be made in a folder, which is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
        return True
    except OSError:
        return False


def _home_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def caches_can_grow() -> bool:
    """Return whether there is room for the caches that libraries keep in the user's cache folder."""
    return has_room(_home_cache())


def new_kernel(program: Any, name: str) -> Any:
    """Return a pyopencl kernel of a program, also where no cache can be written."""
    import pyopencl as cl

    if not caches_can_grow():
        # pyopencl keeps lists of arguments in a database, and some versions of it wait for ever for room
        cl._PYOPENCL_NO_CACHE = True
    return cl.Kernel(program, name)


def _until_the_end(prefix: str) -> Path:
    """Make a folder that goes when the process ends."""
    folder = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def own_pocl_cache() -> Path | None:
    """Return the folder for PoCL below clgraft's cache; None without a cache."""
    base = cache_folder()
    return base / "pocl" if base else None


def give_pocl_a_cache() -> None:
    """Choose the folder in which PoCL keeps compiled kernels, unless the user has, or PoCL has begun.

    It is one below clgraft's cache, else PoCL's own, else one that lasts as long as the process: PoCL offers no device
    without a folder, and ends a process when there is no room.
    """
    if "POCL_CACHE_DIR" in os.environ or _pocl_is_loaded():
        return
    own = own_pocl_cache()
    if own and has_room(own, POCL_ROOM):
        os.environ["POCL_CACHE_DIR"] = str(own)
        return
    if has_room(_home_cache() / "pocl", POCL_ROOM):
        return
    with contextlib.suppress(OSError):
        os.environ["POCL_CACHE_DIR"] = str(_until_the_end("clgraft-pocl-"))
        _pocl_forgets.append(True)


def _pocl_is_loaded() -> bool:
    """Return whether the process has loaded PoCL, which then has chosen its folder."""
    try:
        return b"/libpocl" in Path("/proc/self/maps").read_bytes()
    except OSError:
        return False


def pocl_cache() -> Path:
    """Return the folder in which PoCL keeps compiled kernels."""
    return Path(os.environ.get("POCL_CACHE_DIR") or _home_cache() / "pocl")


def pocl_keeps_programs() -> bool:
    """Return whether PoCL keeps compiled kernels for the next process: not without a folder, nor if told not to."""
    return os.environ.get("POCL_KERNEL_CACHE", "1") != "0" and not _pocl_forgets


def _pin_threads() -> None:
    """Have CPU runtimes keep each of their threads on a core of its own, unless the user or an affinity says otherwise.

    Threads that wake up from sleep otherwise share a core for milliseconds while another is idle, and kernels take
    twice their time.
    """
    if os.sched_getaffinity(0) == set(range(os.cpu_count() or 0)):
        for name, value in PINNING.items():
            os.environ.setdefault(name, value)


@contextlib.contextmanager
def affinity_kept() -> Iterator[None]:
    """Restore the calling thread's affinity: Intel's runtime pins every thread that enters it, not only its own."""
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        if os.sched_getaffinity(0) != before:
            os.sched_setaffinity(0, before)


def refusal(path: Path) -> str:
    """Return why a file or a folder is not trusted, with the remedy; empty if it belongs to this user alone."""
    try:
        found = path.lstat()
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if stat.S_ISLNK(found.st_mode):
        return "it is a symbolic link; set CLGRAFT_CACHE to the folder itself"
    if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
        return "it is neither a folder nor a regular file; remove it"
    if found.st_uid != os.getuid():
        return f"it belongs to user {found.st_uid}, not to {os.getuid()}; set CLGRAFT_CACHE to a folder of your own"
    if found.st_mode & OTHERS_WRITE:
        return f"others may write to it; run `chmod go-w {path}`"
    return ""


def exposure(folder: Path) -> str:
    """Return which folder above lets others put one of theirs in this one's place; empty if none does."""
    own, trusted, reason = os.getuid(), (0, os.getuid(), os.stat("/").st_uid), ""
    for parent in folder.resolve().parents:
        found = parent.stat()
        if found.st_uid == own and not found.st_mode & 0o077:
            reason = ""  # others do not get to what is below
        elif found.st_uid not in trusted:
            reason = (
                f"it lies below {parent}, which belongs to user {found.st_uid}; set CLGRAFT_CACHE to another folder"
            )
        elif not found.st_mode & stat.S_ISVTX and (
            found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid != os.getgid())
        ):
            reason = f"it lies below {parent}, which others may write to; run `chmod go-w {parent}`"
    return reason


def owned(path: Path) -> bool:
    """Return whether a regular file or a folder belongs to this user, and nobody else may write to it."""
    return not refusal(path)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that others see all of it or nothing."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def intel_driver() -> Path | None:
    """Return Intel's CPU driver where pip put it, its libraries loaded; None where it is not installed."""
    try:
        files = distribution(INTEL_PACKAGE).files or []
    except PackageNotFoundError:
        return None
    found = [Path(str(file.locate())).resolve() for file in files if file.name == INTEL_DRIVER]
    if not found:
        problems.append(f"{INTEL_PACKAGE}: is installed, but holds no {INTEL_DRIVER}")
        return None
    # the libraries lie next to the link that pip made, not next to what it points to
    folder = next(Path(str(file.locate())).parent.resolve() for file in files if file.name == INTEL_DRIVER)
    try:
        for name in INTEL_NEEDS:
            path = folder / name
            ctypes.CDLL(str(path) if path.exists() else name, mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / INTEL_DRIVER))
    except OSError as error:
        problems.append(f"{INTEL_PACKAGE}: {error}")
        return None
    return folder / INTEL_DRIVER


def vendors_folder(driver: Path) -> Path | None:
    """Return a folder that lists the installed drivers and this one."""
    entries = {"clgraft-intel-cpu.icd": f"{driver}\n".encode()}
    if SYSTEM_VENDORS.is_dir():
        for icd in sorted(SYSTEM_VENDORS.glob("*.icd")):
            try:
                entries[icd.name] = icd.read_bytes()
            except OSError as error:
                problems.append(f"{icd}: {error}")
    if any(b"libintelocl" in text for name, text in entries.items() if not name.startswith("clgraft-")):
        return None  # it is installed on the system as well: one of them is enough
    key = hashlib.sha256(repr(sorted(entries.items())).encode()).hexdigest()[:16]
    base = cache_folder()
    try:
        if base is not None:
            with contextlib.suppress(OSError):
                return _listed(base / f"vendors-{key}", entries)
            warn_once(f"[cache] {base} cannot be written: {INTEL_PACKAGE} is listed in a temporary folder")
        return _listed(_until_the_end("clgraft-vendors-"), entries)
    except OSError as error:
        problems.append(f"{INTEL_PACKAGE}: {error}")
        return None


def _listed(folder: Path, entries: Mapping[str, bytes]) -> Path:
    """Return a folder of this user alone that holds these files; those that are missing are written."""
    folder.mkdir(mode=0o700, exist_ok=True)
    reason = refusal(folder)
    if reason:
        raise PermissionError(f"{folder} is not used: {reason}")
    for name, text in entries.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != text:
            write_atomically(path, text)
    return folder


def prepare() -> None:
    """Make every driver findable; does its work once, before OpenCL is first used.

    A user's own ``OCL_ICD_VENDORS`` or ``OCL_ICD_FILENAMES`` is left as it is.
    """
    if _prepared:
        return
    _prepared.append(True)
    if not sys.platform.startswith("linux"):
        return
    give_pocl_a_cache()
    _pin_threads()
    if {"OCL_ICD_VENDORS", "OCL_ICD_FILENAMES"} & set(os.environ):
        return
    driver = intel_driver()
    folder = vendors_folder(driver) if driver else None
    if folder:
        os.environ["OCL_ICD_VENDORS"] = str(folder)
