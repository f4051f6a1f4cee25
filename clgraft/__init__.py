"""clgraft: OpenCL operators inside frameworks that never had them.

Import the part that you use: `clgraft.core`, `clgraft.mxnet_ops` or `clgraft.caffe_layers`.
"""

from pathlib import Path

__version__ = "0.1.0"  # stated here alone: pyproject.toml, the C runtime and the program cache read it

__all__ = ["__version__"]

# In a checkout the subpackages stand next to this folder instead of inside it.
if not (Path(__file__).parent / "core").is_dir():
    __path__.append(str(Path(__file__).parent.parent))
