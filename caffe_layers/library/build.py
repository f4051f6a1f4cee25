"""Make `libclgraft_caffe.so`, clgraft's layers for the Caffe of this machine, out of the sources in `native/src`.

The library links to the user's libcaffe and to `libclgraft.so` next to it. Headers that Caffe's own need are looked for
first, so that what is missing is said in the words of a package and not of a compiler.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from clgraft.caffe_layers.hosted.classes import types
from clgraft.caffe_layers.library import opencl_branch
from clgraft.core import settings
from clgraft.core.abi import embed
from clgraft.core.abi.compiling import find_compiler, make_library
from clgraft.core.errors import BuildError

SOURCES = Path(__file__).resolve().parents[1] / "native" / "src"
FILES = ("layer.cpp", "library.cpp", "memory_host.cpp", "planner.cpp", "program.cpp")
STOCK = ("device_host.cpp", "net.cpp")  # in addition: memory on Caffe's device, and regions
OPENCL_BRANCH = ("device_opencl.cpp",)
MOST_SHOWN = 4000  # letters of what the compiler says
NAME = "libclgraft_caffe.so"
HEADERS = ("clgraft_caffe.h", "caffe_names.h")  # which programs need, too
LIBRARIES = ("-lglog", "-lprotobuf", "-lpthread")  # that Caffe's headers call
# a header, and the packages of Debian and of Fedora that hold it
NEEDED = (
    ("caffe/layer.hpp", "libcaffe-dev (or CAFFE_ROOT=/folder/of/caffe)", "caffe-devel"),
    ("boost/shared_ptr.hpp", "libboost-dev", "boost-devel"),
    ("gflags/gflags.h", "libgflags-dev", "gflags-devel"),
    ("glog/logging.h", "libgoogle-glog-dev", "glog-devel"),
    ("google/protobuf/message.h", "libprotobuf-dev", "protobuf-devel"),
    ("cblas.h", "libblas-dev or libopenblas-dev", "openblas-devel"),
)
PKG_CONFIG = """\
prefix=${{pcfiledir}}

Name: clgraft_caffe
Description: clgraft's layers for Caffe
Version: {version}
Requires: clgraft
Cflags: -I${{prefix}} -include ${{prefix}}/caffe_names.h {options}
Libs: -L${{prefix}} -Wl,-rpath,${{prefix}} -Wl,--no-as-needed -lclgraft_caffe -Wl,--as-needed {libraries}
"""
CMAKE = """\
# find_package(clgraft_caffe): nets of a program that is linked to clgraft::caffe know clgraft's layers.
if(NOT TARGET clgraft::caffe)
  add_library(clgraft::runtime SHARED IMPORTED)
  set_target_properties(clgraft::runtime PROPERTIES
    IMPORTED_LOCATION "${{CMAKE_CURRENT_LIST_DIR}}/libclgraft.so"
    INTERFACE_INCLUDE_DIRECTORIES "${{CMAKE_CURRENT_LIST_DIR}}")
  add_library(clgraft::layers SHARED IMPORTED)
  set_target_properties(clgraft::layers PROPERTIES
    IMPORTED_LOCATION "${{CMAKE_CURRENT_LIST_DIR}}/libclgraft_caffe.so"
    INTERFACE_INCLUDE_DIRECTORIES "${{CMAKE_CURRENT_LIST_DIR}}"
    IMPORTED_LINK_DEPENDENT_LIBRARIES clgraft::runtime)
  add_library(clgraft::caffe INTERFACE IMPORTED)
  # programs call nothing of it: it must be linked all the same
  set_target_properties(clgraft::caffe PROPERTIES
    INTERFACE_COMPILE_OPTIONS "SHELL:-include \\"${{CMAKE_CURRENT_LIST_DIR}}/caffe_names.h\\"{options}"
    INTERFACE_LINK_LIBRARIES "-Wl,--no-as-needed;clgraft::layers;-Wl,--as-needed;clgraft::runtime{libraries}")
endif()
"""


@dataclass(frozen=True)
class Caffe:
    """A Caffe to build for.

    Attributes
    ----------
    library : Path
        Its libcaffe.so.
    options : tuple of str
        Words for the compiler: folders of headers and definitions.
    sources : tuple of str
        The files for it alone.
    """

    library: Path
    options: tuple[str, ...]
    sources: tuple[str, ...]


def compiler() -> list[str]:
    """Return the C++ compiler's words: `CXX`, else `c++`, `g++` or `clang++`."""
    return find_compiler("native", "C++", "CXX", ("c++", "g++", "clang++"), "g++")


def find_caffe(root: str | None = None) -> Caffe:
    """Return the Caffe to build for: of a source tree or install folder, or the system's.

    Parameters
    ----------
    root : str, optional
        A folder; by default that of `CAFFE_ROOT`.

    Raises
    ------
    BuildError
        If there is no libcaffe.so.
    """
    folder = root or settings.CAFFE_ROOT.text()
    if folder:
        base = Path(folder).expanduser().resolve()
        builds = [base, base / "build", base / "build" / "install", base / ".build_release"]
        folders = [build / name for build in builds for name in ("lib", "lib64", f"lib/{_multiarch()}")]
        headers = [path for build in builds for path in (build / "include", build / "src") if path.is_dir()]
    else:
        folders = [Path(name) for name in _library_folders()]
        headers = []
    libraries = [path / "libcaffe.so" for path in folders if (path / "libcaffe.so").exists()]
    if not libraries:
        raise BuildError(
            f"[native] got no libcaffe.so in {', '.join(map(str, folders))}, expected one that Caffe's programs share"
            " (on Debian 11: apt install libcaffe-dev; elsewhere CAFFE_ROOT names Caffe's folder). Python wheels of"
            " Caffe have none: use the Python layers there (clgraft swap)"
        )
    library = libraries[0].resolve()
    needs = linked(library)
    options = [f"-I{path}" for path in headers]
    sources: tuple[str, ...] = STOCK
    if opencl_branch.is_branch(headers or [Path("/usr/local/include"), Path("/usr/include")]):
        sources = OPENCL_BRANCH
        options += [f"-D{name}" for name in opencl_branch.definitions(library)]
    elif not any("libcudart" in name for name in needs):
        options.append("-DCPU_ONLY")
    foreign = [name for name in needs if re.match(r"libpython3", name) and f"libpython{embed.VERSION}." not in name]
    if foreign:
        raise BuildError(
            f"[native] got {library}, which holds {foreign[0]}, expected Python {embed.VERSION}: one process cannot"
            " hold two; install clgraft for that Python and run this with it"
        )
    return Caffe(library, tuple(options), sources)


def check_headers(command: list[str]) -> None:
    """Raise `BuildError` with the packages whose headers are missing; `command` compiles."""
    missing = []
    for header, debian, fedora in NEEDED:
        done = subprocess.run(
            [*command, "-x", "c++", "-M", "-"], input=f"#include <{header}>\n", capture_output=True, text=True
        )
        if done.returncode and f"{header}: No such file" in done.stderr:
            missing.append((header, debian, fedora))
    if missing:
        raise BuildError(
            f"[native] got no header {', '.join(row[0] for row in missing)}, expected what Caffe's own include:\n"
            f"  Debian, Ubuntu: apt install {' '.join(row[1] for row in missing)}\n"
            f"  Fedora: dnf install {' '.join(row[2] for row in missing)}"
        )


def make(folder: Path, root: str | None = None, extra: tuple[str, ...] = ()) -> Path:
    """Make `libclgraft_caffe.so` with its header and files for CMake and pkg-config, and `libclgraft.so`, in a folder.

    Parameters
    ----------
    folder : Path
        Where they go; it is made if it does not exist.
    root : str, optional
        Caffe's folder (see `find_caffe`).
    extra : tuple of str
        More words for the C++ compiler, also those of `CXXFLAGS`.

    Returns
    -------
    Path
        The library.

    Raises
    ------
    BuildError
        If something is missing, or the compiler fails.
    """
    caffe = find_caffe(root)
    words = [*compiler(), "-std=c++11", "-O2", *shlex.split(settings.CXXFLAGS.text()), *extra]
    words += [*caffe.options, "-fPIC", f"-I{SOURCES}"]
    check_headers(words)
    folder = Path(folder).resolve()
    runtime = embed.make(folder)
    with tempfile.TemporaryDirectory() as scratch:
        rows = (f'{{"{kind}", "{name}", {str(replaces).lower()}}},\n' for kind, name, replaces in types())
        Path(scratch, "types.inc").write_text("".join(rows))
        # Caffe's headers are not free of warnings
        command = [*words, "-Wall", "-Wno-sign-compare", f"-I{folder}", f"-I{scratch}"]
        # as one file: most of the compiler's time goes into Caffe's headers
        Path(scratch, "all.cpp").write_text("".join(f'#include "{name}"\n' for name in (*caffe.sources, *FILES)))
        command += ["-shared", f"{scratch}/all.cpp"]
        command += [str(runtime), str(caffe.library), *LIBRARIES, "-ldl"]
        command += ["-Wl,-rpath,$ORIGIN", f"-Wl,-rpath,{caffe.library.parent}"]
        make_library("native", "C++", command, folder / NAME, MOST_SHOWN)
    _describe(folder, caffe)
    return folder / NAME


def _describe(folder: Path, caffe: Caffe) -> None:
    """Write what programs with nets of this Caffe are compiled with: headers, and files for pkg-config and CMake."""
    for name in HEADERS:
        shutil.copy(SOURCES / name, folder)
    libraries = (str(caffe.library), f"-Wl,-rpath,{caffe.library.parent}", *LIBRARIES)
    options, links = (" ".join(word.replace(" ", r"\ ") for word in words) for words in (caffe.options, libraries))
    version = embed.recipe.version()
    (folder / "clgraft_caffe.pc").write_text(PKG_CONFIG.format(version=version, options=options, libraries=links))
    options, links = ("".join(f";{word}" for word in words) for words in (caffe.options, libraries))
    (folder / "clgraft_caffe-config.cmake").write_text(CMAKE.format(options=options, libraries=links))


def _multiarch() -> str:
    return str(sysconfig.get_config_var("MULTIARCH") or "")


def _library_folders() -> list[str]:
    """Return where the linker looks for libraries."""
    done = subprocess.run([*compiler(), "-print-search-dirs"], capture_output=True, text=True)
    found = re.search(r"^libraries: =?(.*)$", done.stdout, re.M)
    folders = [os.path.realpath(name) for name in (found[1].split(":") if found else [])]
    return [name for name in dict.fromkeys([*folders, "/usr/local/lib", "/usr/lib"]) if os.path.isdir(name)]


def linked(library: Path) -> list[str]:
    """Return the names of the libraries that a library needs, also by way of others."""
    done = subprocess.run(["ldd", str(library)], capture_output=True, text=True)
    return [line.split()[0].rpartition("/")[2] for line in done.stdout.splitlines() if line.strip()]
