"""Caffe's OpenCL branch: how its headers are told from stock Caffe's, and with which options it was built.

Its classes have members that depend on these options, and an installed branch does not say which it was built with. But
each leaves symbols in its library.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from clgraft.core.errors import BuildError

HEADER = "caffe/backend/vptr.hpp"  # stock Caffe does not have it

# Option -> mangled symbols of libcaffe.so, as a regular expression; a type is `f` for float, `d` for double ...
OPTIONS = {
    "USE_OPENCL": r"N5caffe9OclDevice4InitEv",
    "USE_CUDA": r"N5caffe10CudaDevice4InitEv",
    "USE_HALF": r"N5caffe5LayerIN9half_float4halfE|N5caffe13LayerRegistryIN9?\w*half\w*E",
    "USE_SINGLE": r"N5caffe13LayerRegistryIfffE8Registry",
    "USE_DOUBLE": r"N5caffe13LayerRegistryIdddE8Registry",
    "USE_INT_QUANT_8": r"N5caffe13LayerRegistryIhhhE8Registry",
    "USE_INT_QUANT_16": r"N5caffe13LayerRegistryItttE8Registry",
    "USE_INT_QUANT_32": r"N5caffe13LayerRegistryIjjjE8Registry",
    "USE_INT_QUANT_64": r"N5caffe13LayerRegistryImmmE8Registry",
    "USE_INDEX_64": r"N5caffe4BlobIfE7ReshapeERKSt6vectorIl",
    "USE_LIBDNN": r"N5caffe10LibDNNConv",
    "USE_FFT": r"N5caffe10ClFFTState",
    "USE_SQLITE": r"\bsqlite3_open",
}


def is_branch(includes: list[Path]) -> bool:
    """Return whether the headers in one of these folders are those of the OpenCL branch."""
    return any((folder / HEADER).exists() for folder in includes)


def definitions(library: Path) -> list[str]:
    """Return the options that a library of the branch was built with, as names of macros.

    Parameters
    ----------
    library : Path
        Its libcaffe.so.

    Raises
    ------
    BuildError
        If the library's symbols cannot be read, or if it was built without OpenCL or without float32.
    """
    try:
        done = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"[caffe] got no nm ({error}), expected binutils (on Debian: apt install binutils)") from None
    if done.returncode:
        raise BuildError(f"[caffe] got {library}, expected a shared library of Caffe's: {done.stderr.strip()}")
    found = [name for name, symbol in OPTIONS.items() if re.search(symbol, done.stdout)]
    for needed, what in (("USE_OPENCL", "OpenCL"), ("USE_SINGLE", "float32")):
        if needed not in found:
            raise BuildError(f"[caffe] got {library} without {what}, expected Caffe's OpenCL branch built with {what}")
    return found
