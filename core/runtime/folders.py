"""The folders and files that clgraft keeps for a user: where they are, and whether others may change them."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import stat
import tempfile
from pathlib import Path

from clgraft.core import settings
from clgraft.core.log import warn_once

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder(*below: str) -> Path | None:
    """Return the user's clgraft cache folder, or the one below it, made on first use; None if there is none.

    ``CLGRAFT_CACHE`` names it (``off``: no cache), else ``XDG_CACHE_HOME`` or ``~/.cache`` holds it. A folder that
    cannot be made or that others may change is not used; a warning says why and what to do, once.
    """
    chosen = settings.CACHE.text()
    if chosen == "off":
        return None
    folder = Path(chosen) if chosen else home_cache() / "clgraft"
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


def home_cache() -> Path:
    """Return the folder in which libraries keep a user's caches."""
    return Path(settings.XDG_CACHE_HOME.text() or os.path.expanduser("~/.cache"))


def caches_can_grow() -> bool:
    """Return whether there is room for the caches that libraries keep in the user's cache folder."""
    return has_room(home_cache())


def until_the_end(prefix: str) -> Path:
    """Make a folder that goes when the process ends."""
    folder = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


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
