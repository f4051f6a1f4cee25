"""clgraft's layers in Caffe without Python layers: a library of C++ layers that a process of Caffe's loads.

``python -m clgraft.caffe_layers.native FOLDER`` makes the library. ``import clgraft.caffe_layers.native``, in front of
the first net, loads it into pycaffe: the types OclConvolution, ... exist then, and those of Caffe's own that
``CLGRAFT_CAFFE_REPLACE`` names, or `replace`, are clgraft's.
"""

from __future__ import annotations

import sys

from clgraft.caffe_layers.library.process import load, replace, restore, served

if sys.argv[:1] != ["-m"]:  # it is that while Python looks for a module to run, which makes the library
    load()

__all__ = ["load", "replace", "restore", "served"]
