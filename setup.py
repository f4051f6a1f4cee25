"""What pyproject.toml cannot say: the list of packages, the C extensions, and one wheel for every Python."""

import importlib.util
import sys
import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.editable_wheel import editable_wheel

# without cffi, setuptools would ignore cffi_modules and build a package that cannot be imported
if importlib.util.find_spec("cffi") is None:
    raise SystemExit(
        f"[setup] got no cffi in {sys.executable}, expected cffi 1.15 or later, which compiles clgraft's C runtime:"
        " pip install cffi, or build without --no-build-isolation"
    )


class EditableWheel(editable_wheel):
    """Install this folder itself as a path entry, where `clgraft` is a regular package that no other folder shadows."""

    def finalize_options(self):
        super().finalize_options()
        self.package_dir = {"": "."}


def packages():
    """Name every folder that holds Python or OpenCL C as the package that it becomes."""
    roots = ("core", "kernels", "mxnet_ops", "caffe_layers", "plugins")
    folders = {file.parent for root in roots for kind in ("*.py", "*.cl") for file in Path(root).rglob(kind)}
    return ["clgraft", *sorted("clgraft." + ".".join(folder.parts) for folder in folders)]


FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))  # these Pythons have no limited API

setup(
    packages=packages(),
    cffi_modules=["core/abi/build.py:ffibuilder", "mxnet_ops/engine/calls/build.py:ffibuilder"],
    cmdclass={"editable_wheel": EditableWheel},
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp39"}},
)
