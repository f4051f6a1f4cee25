"""Make `libclgraft.so`, the runtime for C and C++ callers, on the machine that will run it.

`python -m clgraft.core.abi.embed FOLDER` compiles the library for the running interpreter, puts `clgraft.h` and
`clgraft.pc` (pkg-config) next to it, and prints the compile line of a program. It needs a C compiler and Python's
headers and shared library.

The first call that plans starts a Python interpreter inside the caller's process (cffi's embedding); runs stay in C.
The interpreter uses the packages of the one that made the library. The environment variable `CLGRAFT_PYTHON` names
another one, for example of a virtual environment; it must be of the same Python version (major and minor) and have
clgraft installed. One that does not fit is refused by the call that plans: CLG_PLANNER_ERROR, with the reason in
`clg_last_error()`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

import cffi

from clgraft.core.abi import build as recipe
from clgraft.core.abi.compiling import find_compiler, make_library
from clgraft.core.errors import BuildError

HERE = Path(__file__).resolve().parent
VERSION = "{}.{}".format(*sys.version_info)
NAME = "libclgraft.so"
PKG_CONFIG = """\
prefix=${{pcfiledir}}

Name: clgraft
Description: OpenCL operators behind a C ABI
Version: {version}
Cflags: -I${{prefix}}
Libs: -L${{prefix}} -Wl,-rpath,${{prefix}} -lclgraft
"""


def compiler() -> list[str]:
    """Return the C compiler's words: `CC`, or without it the one that made this Python, `cc`, `gcc` or `clang`."""
    names = [str(sysconfig.get_config_var("CC")), "cc", "gcc", "clang"]
    return find_compiler("embed", "C", "CC", names, "gcc")


def headers() -> Path:
    """Return the folder of this Python's headers."""
    folder = Path(sysconfig.get_paths()["include"])
    if not (folder / "Python.h").exists():
        raise BuildError(
            f"[embed] got no {folder}/Python.h, expected the headers of Python {VERSION}"
            f" (on Debian: apt install python{VERSION}-dev)"
        )
    return folder


def python_library() -> Path:
    """Return this Python's shared library."""
    libdir, multiarch = (str(sysconfig.get_config_var(name)) for name in ("LIBDIR", "MULTIARCH"))
    folders = [libdir, f"{libdir}/{multiarch}", f"{sys.base_prefix}/lib"]
    names = [str(sysconfig.get_config_var(name)) for name in ("LDLIBRARY", "INSTSONAME")]
    for path in (Path(folder, name) for folder in folders for name in names if ".so" in name):
        if path.exists():
            return path
    raise BuildError(
        f"[embed] got Python {VERSION} without a shared library in {folders[0]}, expected libpython{VERSION}.so"
        f" (on Debian: apt install libpython{VERSION}-dev; pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared)"
    )


def source() -> cffi.FFI:
    """Return cffi's builder of the library."""
    builder = cffi.FFI()
    own = "const char *clg_interpreter_named(void);\n"
    builder.cdef(recipe.declarations("clgraft.h") + recipe.declarations("planner.h") + own)
    builder.embedding_api(recipe.PYTHON_SIDE)
    builder.set_source("_clgraft_embedded", '#include "planner.h"\n' + own)
    builder.embedding_init_code((HERE / "embedded.py").read_text())
    return builder


def make(folder: Path) -> Path:
    """Make `libclgraft.so`, `clgraft.h` and `clgraft.pc` in a folder.

    Parameters
    ----------
    folder : Path
        Where they go; it is made if it does not exist.

    Returns
    -------
    Path
        The library.

    Raises
    ------
    BuildError
        If there is no C compiler, if Python's headers or its shared library are missing, or if the compiler fails.
    """
    libpython, settings = python_library(), recipe.options()
    command = [*compiler(), "-shared", "-fPIC", f"-I{HERE}", f"-I{headers()}", *settings["extra_compile_args"]]
    command += [f"-D{name}={value}" for name, value in settings["define_macros"]]
    command += [f"-DCLG_PYTHON={json.dumps(sys.executable)}"]
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / NAME
    with tempfile.TemporaryDirectory() as scratch:
        generated = Path(scratch, "embedded.c")
        with contextlib.redirect_stdout(io.StringIO()):
            source().emit_c_code(str(generated))  # it says so on stdout
        command += [str(generated), *(str(HERE / name) for name in (*recipe.SOURCES, "interpreter.c"))]
        command += [str(libpython), f"-Wl,-rpath,{libpython.parent}"]
        command += [*settings["extra_link_args"], *(f"-l{name}" for name in settings["libraries"])]
        make_library("embed", "C", command, library)
    shutil.copy(HERE / "clgraft.h", folder)
    (folder / "clgraft.pc").write_text(PKG_CONFIG.format(version=recipe.version()))
    return library


def main() -> int:
    """Run `python -m clgraft.core.abi.embed`."""
    parser = argparse.ArgumentParser(
        prog="python -m clgraft.core.abi.embed",
        description="Make libclgraft.so for C and C++ programs, with clgraft.h and clgraft.pc, for this Python.",
        epilog="The library plans with this Python's packages. CLGRAFT_PYTHON names another interpreter at run time;"
        f" it must be of Python {VERSION} and have clgraft installed, or the call that plans fails and says why."
        " CC names the C compiler.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the files go")
    try:
        library = make(parser.parse_args().folder)
    except (BuildError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    folder = shlex.quote(str(library.parent))
    print(library)
    print("compile a program with either of:")
    print(f"  cc program.c -I{folder} -L{folder} -Wl,-rpath,{folder} -lclgraft -o program")
    print(f"  cc program.c $(PKG_CONFIG_PATH={folder} pkg-config --cflags --libs clgraft) -o program")
    print(f"It plans with the packages of {sys.executable} (Python {VERSION});")
    print(f"CLGRAFT_PYTHON=/path/to/python names another environment of Python {VERSION} at run time.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
