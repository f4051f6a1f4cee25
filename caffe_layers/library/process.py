"""The library in a process of pycaffe: where it lies, how it is loaded, and which of Caffe's types it serves."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from clgraft.caffe_layers.library import build
from clgraft.core import settings
from clgraft.core.errors import ArgumentError, BuildError, hint
from clgraft.core.log import log
from clgraft.core.runtime import folders

VARIABLE = settings.CAFFE_LIBRARY.name

_loaded: Any = None


class Served(NamedTuple):
    """Layers that this process has set up.

    Attributes
    ----------
    ours : int
        Those that clgraft serves.
    handed_over : int
        Those that Caffe's own took over.
    """

    ours: int
    handed_over: int


def find(root: str | None = None) -> Path:
    """Return the library, which is made if there is none for this Caffe yet.

    `CLGRAFT_CAFFE_LIBRARY` names one; else it lies in clgraft's cache, and is made anew when Caffe's library, clgraft
    or Python change, or when others may write to it.

    Raises
    ------
    BuildError
        If it has to be made and cannot be.
    """
    named = settings.CAFFE_LIBRARY.text()
    if named:
        if not Path(named).is_file():
            raise BuildError(f"[native] got {VARIABLE}={named}, expected a file of clgraft.caffe_layers.native")
        return Path(named).resolve()
    caffe = build.find_caffe(root)
    folder = folders.cache_folder("caffe", _stamp(caffe))
    if folder is None:
        raise BuildError(f"[native] got no cache (CLGRAFT_CACHE), expected {VARIABLE} to name {build.NAME} then")
    if not _is_made(folder):
        with (folder / "lock").open("w") as lock:  # several processes may want it at the same time
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_made(folder):
                log.warning("clgraft: making %s for %s, once", folder / build.NAME, caffe.library)
                build.make(folder, root)
                for path in folder.iterdir():
                    path.chmod(path.stat().st_mode & ~folders.OTHERS_WRITE)
    return folder / build.NAME


def _is_made(folder: Path) -> bool:
    """Return whether the library and the one that it needs are there, and this user's alone, as programs are."""
    return all(folders.owned(folder / name) for name in (build.NAME, build.embed.NAME))


def check_types(given: str) -> None:
    """Raise `ArgumentError` unless these are Caffe's types that clgraft serves, between commas, ``all`` or ``none``."""
    known = [kind for kind, _, replaces in build.types() if replaces]
    unknown = [name for name in given.replace(",", " ").split() if name not in (*known, "all", "none")]
    if unknown:
        near = hint(unknown[0], known)
        expected = f"all, none or some of {', '.join(known)}{near}"
        raise ArgumentError(f"[native] got type {unknown[0]!r}, expected {expected}")


def load(path: Path | str | None = None) -> Any:
    """Load the library into this process, once, and return it.

    Parameters
    ----------
    path : path, optional
        The library; by default what `find` returns.

    Raises
    ------
    BuildError
        If there is no library, or if the Caffe that is imported is not the one that it was made for.
    """
    global _loaded
    if _loaded is None:
        found = Path(path) if path is not None else find()
        try:
            library = ctypes.CDLL(str(found))
        except OSError as error:
            raise BuildError(f"[native] got {found} ({error}), expected a library that can be loaded") from None
        library.clgraft_caffe_types.restype = ctypes.c_char_p
        library.clgraft_caffe_replace.argtypes = [ctypes.c_char_p]
        _check_caffe(found)
        _loaded = library
    return _loaded


def replace(types: str | Iterable[str] = "all") -> None:
    """Let clgraft serve Caffe's own types in nets that are made from now on; others are Caffe's own.

    Parameters
    ----------
    types : str or iterable of str
        ``all``, names between commas, or names.

    Raises
    ------
    ArgumentError
        If clgraft serves no such type.
    """
    names = types if isinstance(types, str) else ",".join(types)
    library = load()
    if library.clgraft_caffe_replace(names.encode()):
        known = library.clgraft_caffe_types().decode()
        raise ArgumentError(f"[native] got types {names!r}, expected all or some of {known}")


def restore() -> None:
    """Let Caffe serve its own types again, in nets that are made from now on."""
    replace("")


def served() -> Served:
    """Return how many layers were set up, and how many of them Caffe's own took over."""
    counts = (ctypes.c_ulonglong * 2)()
    load().clgraft_caffe_served(counts)
    return Served(*counts)


def _stamp(caffe: build.Caffe) -> str:
    """Return a name for what the library is made from."""
    digest = hashlib.sha256(f"{sys.executable} {build.embed.VERSION} {build.embed.recipe.version()} {caffe}".encode())
    digest.update(repr(build.types()).encode())
    digest.update(f"{caffe.library.stat().st_mtime_ns} {settings.CXX.text()} {settings.CXXFLAGS.text()}".encode())
    sources = [*build.SOURCES.iterdir(), *build.embed.HERE.glob("*.[ch]"), build.embed.HERE / "embedded.py"]
    sources += [Path(build.__file__), Path(build.embed.__file__)]
    for path in sorted(sources):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _check_caffe(found: Path) -> None:
    """Raise `BuildError` where pycaffe holds a Caffe of its own, which the library cannot reach."""
    module = sys.modules.get("caffe._caffe")
    origin = getattr(module, "__file__", None)
    if origin and not any(name.startswith("libcaffe") for name in build.linked(Path(origin))):
        raise BuildError(
            f"[native] got {origin}, which holds Caffe itself, expected one that links to libcaffe.so, for which"
            f" {found} was made; use the Python layers there (clgraft swap)"
        )
