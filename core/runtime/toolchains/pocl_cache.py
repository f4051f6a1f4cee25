"""PoCL's own cache of compiled kernels: its folder, room for it, damaged files in it, its size.

PoCL trusts its files: one that is cut ends every process that reads it, and a disk that fills up ends the process that
writes. So a build starts only where there is room. Each process holds a locked file in the folder for as long as it
lives. Where one was left behind, its process died, perhaps while it wrote or because of what it read: the next process
checks the files, before PoCL reads any, and removes those that are cut. What was checked within the hour, and has not
changed since, is not checked again.

Other processes may use the cache at the same time. PoCL ends a process in which a file is gone that it has just seen,
or in which it cannot rename a file that it has just written. So its temporary files are left alone, and a program is
removed as a whole, by a change of its name, unless it was used lately: PoCL makes its folder again where it is missing.
It also removes and writes anew a program that another process has just finished, and ends where it then finds none: so
one process at a time builds a program.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import mmap
import os
import shutil
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Union

from clgraft.core.errors import BuildError
from clgraft.core.log import log
from clgraft.core.runtime import building, cache_limit, folders
from clgraft.core.runtime.cache_limit import Entry

RUNNING = ".clgraft-running-"  # starts the names of files that processes hold
BUILDING = ".clgraft-building-"  # starts the names of files that processes lock while they build a program
PROBING = ".clgraft-probing-"  # and while they find out what works, in which they may build
PATIENCE, PAUSE = 60.0, 0.02  # seconds to wait for another process, and between two looks
CHECKED = ".clgraft-checked"  # a file of the time of the last check, with the name of the machine's start in it
BOOT = Path("/proc/sys/kernel/random/boot_id")
CHECK_HOLDS, CLOCK_STEPS = 3600.0, 2.0  # seconds until all files are checked anew, and by which their times may be off
REMOVED = ".clgraft-removed-"  # starts the names of folders that are about to go
TEMPORARY = "tempfile_*"  # files that PoCL makes for a moment, and leaves where its process ends
USED = "last_accessed"  # a file of each program, which PoCL touches when it loads the program
FOLDER_ROOM = 4 * 2**20  # bytes without which a folder is not given to PoCL
# What PoCL 3.1 writes while it builds one kernel, with a margin, and what it keeps of each.
ROOM = 2**20
ROOM_OF_A_KERNEL = 2**18
BITCODE, ELF = b"BC\xc0\xde", b"\x7fELF"
ENTER_BLOCK = 1  # the code that starts each outermost block of LLVM's bitcode
STRING_TABLE = 3  # the type of the section that holds an ELF file's names of sections

Content = Union[bytes, mmap.mmap]

_lock = threading.Lock()
_held: list[IO[bytes]] = []
_forgets: list[bool] = []  # the folder goes when the process ends


def own_folder() -> Path | None:
    """Return the folder for PoCL below clgraft's cache; None without a cache."""
    base = folders.cache_folder()
    return base / "pocl" if base else None


def choose_folder() -> None:
    """Choose the folder in which PoCL keeps compiled kernels, unless the user has, or PoCL has begun.

    It is one below clgraft's cache, else PoCL's own, else one that lasts as long as the process: PoCL offers no device
    without a folder, and ends a process when there is no room.
    """
    if "POCL_CACHE_DIR" in os.environ or _is_loaded():
        return
    own = own_folder()
    if own and folders.has_room(own, FOLDER_ROOM):
        os.environ["POCL_CACHE_DIR"] = str(own)
        return
    if folders.has_room(folders.home_cache() / "pocl", FOLDER_ROOM):
        return
    with contextlib.suppress(OSError):
        os.environ["POCL_CACHE_DIR"] = str(folders.until_the_end("clgraft-pocl-"))
        _forgets.append(True)


def _is_loaded() -> bool:
    """Return whether the process has loaded PoCL, which then has chosen its folder."""
    try:
        return b"/libpocl" in Path("/proc/self/maps").read_bytes()
    except OSError:
        return False


def folder() -> Path:
    """Return the folder in which PoCL keeps compiled kernels."""
    return Path(os.environ.get("POCL_CACHE_DIR") or folders.home_cache() / "pocl")


def keeps_programs() -> bool:
    """Return whether PoCL keeps compiled kernels for the next process: not without a folder, nor if told not to."""
    return os.environ.get("POCL_KERNEL_CACHE", "1") != "0" and not _forgets


def expect_room(kernels: int) -> None:
    """Check that PoCL's folder has room for the build of so many kernels.

    Raises
    ------
    BuildError
        If it has not.
    """
    place, needed = folder(), ROOM + kernels * ROOM_OF_A_KERNEL
    if not folders.has_room(place, needed):
        raise BuildError(
            f"[kernel] got no room in PoCL's cache {place}, expected {needed} bytes to build in: free some, or set "
            "POCL_CACHE_DIR to another folder"
        )


def enter() -> None:
    """Hold a file in PoCL's cache until this process ends; check the cache first if a process before has died."""
    with _lock:
        if _held or not keeps_programs():
            return
        place = folder()
        left = _left_behind(place)
        if left:
            repair()
        with contextlib.suppress(OSError):
            for path in left:
                path.unlink()
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=RUNNING, dir=place)
            _held.append(os.fdopen(handle, "r+b"))
            atexit.register(_leave, Path(name), os.getpid(), os.fstat(handle).st_mtime)
            fcntl.flock(_held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def alone(program: str, prefix: str = BUILDING) -> Iterator[None]:
    """Build a program in this block while no other process builds it, as far as locks tell.

    `prefix` starts the names of the locked files.

    The locks are those of POSIX, which no forked process inherits. Programs share 256 files.
    """
    if not keeps_programs():
        yield
        return
    path = folder() / f"{prefix}{hashlib.sha256(program.encode()).hexdigest()[:2]}"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file = stack.enter_context(path.open("ab"))
            deadline = time.monotonic() + PATIENCE
            while not _locked(file) and time.monotonic() < deadline:
                time.sleep(PAUSE)
        yield


def _locked(file: IO[bytes]) -> bool:
    """Lock a file, and return whether that was possible; it is unlocked when it is closed."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _leave(path: Path, process: int, began: float) -> None:
    """Remove the held file, and the programs that exceed the limit if there are new ones since this process began."""
    if os.getpid() != process:
        return
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(Exception):
        if building.built[0] and is_own() and _has_new_programs(path.parent, began):
            trim(path.parent)


def _has_new_programs(place: Path, since: float) -> bool:
    """Return whether programs have come since a time: most that this process built were there, which PoCL does not say.

    Programs are in folders of folders, which change when one comes. To look at each takes a second where many are kept.
    """
    with os.scandir(place) as found:
        return any(each.stat(follow_symlinks=False).st_mtime >= since for each in found if each.is_dir())


def _left_behind(place: Path) -> list[Path]:
    """Return the files of processes that have died: nobody holds them."""
    found = []
    for path in place.glob(f"{RUNNING}*"):
        with contextlib.suppress(OSError), path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(path)
    return found


def repair() -> int:
    """Remove the files of PoCL's cache that are cut, say so, and return how many they were.

    Files that have not changed since the last check are left out.
    """
    place, removed = folder(), 0
    began, since = time.time(), _last_check(place)
    for inside, _, names in os.walk(place):
        for name in names:
            if not name.endswith((".so", ".bc")) or fnmatchcase(name, TEMPORARY):
                continue
            path = Path(inside, name)
            with contextlib.suppress(OSError):
                state = path.lstat()
                if stat.S_ISREG(state.st_mode) and state.st_ctime >= since and _is_cut_file(path):
                    path.unlink()
                    removed += 1
    with contextlib.suppress(OSError):
        (place / CHECKED).write_bytes(_boot())
        os.utime(place / CHECKED, (began, began))
    if removed:
        files = "a damaged file" if removed == 1 else f"{removed} damaged files"
        log.warning("[cache] removed %s from PoCL's cache %s: kernels are built anew", files, place)
    return removed


def _boot() -> bytes:
    """Return what tells one start of the machine from others: one that loses power loses what was written lately."""
    try:
        return BOOT.read_bytes()
    except OSError:
        return b""


def _last_check(place: Path) -> float:
    """Return the time since when files have to be checked; 0 after a restart, and where the last check is long ago."""
    with contextlib.suppress(OSError):
        path = place / CHECKED
        if path.read_bytes() == _boot() != b"" and 0 <= time.time() - path.stat().st_mtime < CHECK_HOLDS:
            return path.stat().st_mtime - CLOCK_STEPS
    return 0.0


def _is_cut_file(path: Path) -> bool:
    """Return whether a file is cut; only the pages that say so are read."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return True
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return is_cut(content)


def is_cut(content: Content) -> bool:
    """Return whether a library or LLVM's bitcode is empty, ends early or ends in zeros; other formats pass."""
    magic = bytes(content[:4])
    with contextlib.suppress(struct.error, IndexError):
        if magic == ELF:
            return _is_cut_library(content)
        if magic == BITCODE:
            return _is_cut_bitcode(content)
        return not any(magic)
    return True


def _is_cut_library(content: Content) -> bool:
    """Return whether the table of sections, which linkers write last, is not all there."""
    order = "<" if content[5] == 1 else ">"
    wide = content[4] == 2
    (start,) = struct.unpack_from(order + ("Q" if wide else "I"), content, 40 if wide else 32)
    size, count, names = struct.unpack_from(order + "HHH", content, 58 if wide else 46)
    if start + size * count > len(content):
        return True
    return count > 0 and struct.unpack_from(order + "I", content, start + names * size + 4) != (STRING_TABLE,)


def _is_cut_bitcode(content: Content) -> bool:
    """Return whether the outermost blocks, each with its number of words, do not fill the file."""
    place = len(BITCODE)
    while place < len(content):
        head, words = struct.unpack_from("<II", content, place)
        if head & 3 != ENTER_BLOCK:
            return True
        place += 8 + 4 * words
    return place > len(content)


def programs(place: Path) -> list[Entry]:
    """Return the folders of PoCL's programs with their sizes, the least recently used first."""
    found = []
    for path, below, names in os.walk(place):
        if USED not in names:
            continue
        below.clear()
        with contextlib.suppress(OSError):
            files = [os.path.join(inside, name) for inside, _, those in os.walk(path) for name in those]
            nbytes = sum(os.lstat(file).st_size for file in files)
            found.append(Entry(Path(path), nbytes, os.stat(os.path.join(path, USED)).st_mtime))
    return sorted(found, key=lambda entry: (entry.used, entry.path.name))


def trim(place: Path) -> None:
    """Remove the programs that were used least recently until the rest fits the cache's limit, and old leftovers."""
    most = cache_limit.limit()
    kept = [] if most is None else programs(place)
    total = sum(entry.nbytes for entry in kept)
    for entry in kept:
        if most is None or total <= most:
            break
        with contextlib.suppress(OSError):
            if (entry.path / USED).stat().st_mtime == entry.used:  # not since the programs were listed
                _remove(place, entry.path)
                total -= entry.nbytes
    _remove_leftovers(place)


def _remove(place: Path, path: Path) -> None:
    """Remove a folder of PoCL's cache, which other processes see whole or not at all."""
    path.rename(tempfile.mkdtemp(prefix=REMOVED, dir=place))
    for aside in place.glob(f"{REMOVED}*"):
        shutil.rmtree(aside, ignore_errors=True)


def _remove_leftovers(place: Path) -> None:
    """Remove temporary files that are too old to be of a living process."""
    young = time.time() - cache_limit.LEFTOVER_SECONDS
    for path in place.glob(TEMPORARY):
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < young:
                path.unlink()


def is_own() -> bool:
    """Return whether PoCL's cache is the one below clgraft's, so that it may be cleared."""
    return folder() == own_folder()


def clear() -> tuple[int, int]:
    """Remove what clgraft's own cache for PoCL holds, and return how many programs and bytes they were."""
    place = folder()
    if not is_own() or not place.is_dir():
        return 0, 0
    found = programs(place)
    for path in list(place.iterdir()):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                _remove(place, path)
            elif not path.name.startswith(RUNNING) and not path.match(TEMPORARY):
                path.unlink()
    _remove_leftovers(place)
    return len(found), sum(entry.nbytes for entry in found)
