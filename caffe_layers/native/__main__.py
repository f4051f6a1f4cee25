"""`python -m clgraft.caffe_layers.native FOLDER`: make the library for the Caffe of this machine."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from clgraft.caffe_layers.library import build
from clgraft.core.errors import BuildError


def main() -> int:
    """Run `python -m clgraft.caffe_layers.native`."""
    parser = argparse.ArgumentParser(
        prog="python -m clgraft.caffe_layers.native",
        description="Make libclgraft_caffe.so, clgraft's layers for the Caffe of this machine, which needs no change.",
        epilog="It needs a C++ compiler, libcaffe.so and the headers that Caffe's own include. CXX names the compiler,"
        " CXXFLAGS more options of it, CAFFE_ROOT a Caffe that is not the system's.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the files go")
    parser.add_argument("--caffe", metavar="DIR", help="Caffe's folder (default: CAFFE_ROOT, else the system's)")
    options = parser.parse_args()
    try:
        library = build.make(options.folder, options.caffe)
    except (BuildError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(library)
    print("let it serve all layers that it can of an unchanged net:")
    print(f"  CLGRAFT_CAFFE_REPLACE=all LD_PRELOAD={shlex.quote(str(library))} caffe train -solver solver.prototxt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
