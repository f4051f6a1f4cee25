"""clgraft: OpenCL operators inside frameworks that never had them.

Import the part that you use: `clgraft.core`, `clgraft.mxnet_ops` or `clgraft.caffe_layers`. `load` runs models without
their frameworks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clgraft.plugins.models.loading import load

__version__ = "0.1.0"  # stated here alone: pyproject.toml, the C runtime and the program cache read it

__all__ = ["__version__", "load"]

# In a checkout the subpackages stand next to this folder instead of inside it.
if not (Path(__file__).parent / "core").is_dir():
    __path__.append(str(Path(__file__).parent.parent))


def __getattr__(name: str) -> Any:
    if name == "load":  # imported on its first use: with it comes the core
        from clgraft.plugins.models.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
